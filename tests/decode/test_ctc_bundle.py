"""The bundle of a CTC network: recognition of wholes and of streams, alignment, export."""

import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from click.testing import CliRunner

from toolkit.align.ctm_textgrid import read_ctm
from toolkit.align.folder import align_folder
from toolkit.cli import main
from toolkit.decode.bundle import (
    Bundle,
    BundledSystem,
    BundleError,
    CtcFiles,
    write_ctc_bundle,
    write_systems,
)
from toolkit.decode.config import EndpointConfig, WordsConfig
from toolkit.decode.ctc import recogniser as scorer_module
from toolkit.decode.ctc.recogniser import CtcAlignerFiles, CtcRecogniser, CtcScorer
from toolkit.decode.recogniser import load_recogniser
from toolkit.decode.rescore import RescoringWeights, neural_scores, to_nbest_list
from toolkit.errors import ToolkitError
from toolkit.features.config import FrontendConfig
from toolkit.features.normalise import Cmvn, GlobalStats
from toolkit.lang.arpa import read_binary, write_arpa
from toolkit.lang.ngram import estimate
from toolkit.lang.text_policy import TextPolicy
from toolkit.lang.units import Characters
from toolkit.models.config import CtcConfig, WordLstmConfig
from toolkit.models.ctc import CtcModel
from toolkit.models.lstm import WordLstm
from toolkit.models.neural_lm import NeuralLm, Shortlist
from toolkit.models.store import save_model

UNITS = Characters()
WORDS = ("A", "ABBA", "AN", "BAND", "CAB", "DO", "DOG", "OX", "TO", "ZOO")
FRONTEND = FrontendConfig(num_mel_bins=8)


def noise(seconds, seed=0):
    return 0.1 * torch.randn(int(16000 * seconds), generator=torch.Generator().manual_seed(seed))


SENTENCES = [["A", "DOG"], ["TO", "A", "ZOO"], ["DO", "AN", "OX"]]


def write(
    folder,
    mode="forecast",
    bidirectional=False,
    inputs=8,
    neural=None,
    units=UNITS,
    words=WORDS,
    sentences=SENTENCES,
    kernel=5,
    stride=3,
):
    """Write the bundle of an untrained network with confident outputs."""
    torch.manual_seed(3)
    config = CtcConfig(inputs, units.size, (6,), (kernel,), (stride,), lstm_layers=2, hidden=8)
    config = CtcConfig(**{**vars(config), "bidirectional": bidirectional})
    model = CtcModel(config)
    with torch.no_grad():
        model.output.weight *= 12
        model.output.bias[units.blank] += 1
    save_model(folder / "net", model)
    features = FrontendOnly.frontend(noise(20, 9)).double()
    stats = GlobalStats.of(features)
    zero = GlobalStats.of(features - stats.mean)
    Cmvn(stats.mean, zero).save(folder / "normaliser.json")
    write_arpa(estimate(sentences, set(words), 3)[0], folder / "lm.arpa")
    arpa, normaliser = folder / "lm.arpa", folder / "normaliser.json"
    files = CtcFiles(folder / "net", normaliser, units, words, arpa, neural)
    search = WordsConfig(16, mode, lm_weight=0.5, word_bonus=1.0)
    fast = search if neural else None
    if neural:
        search = replace(search, lm_weight=0.8, word_bonus=0.0, nbest=12)
    write_ctc_bundle(files, search, FRONTEND, folder / "final" / "ctc", fast)
    roles = ("speaker_known", "speaker_unknown", *(() if bidirectional else ("stream",)))
    system = BundledSystem("ctc", "words+3gram", not bidirectional, {"dev": 12.5}, roles)
    write_systems(folder / "final", [system])
    return folder / "final" / "ctc"


class FrontendOnly:
    """The front end alone, to estimate a normaliser."""

    @staticmethod
    def frontend(samples):
        from toolkit.features.frontend import Frontend

        return Frontend(FRONTEND)(samples)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write(tmp_path_factory.mktemp("forward"))


@pytest.fixture(scope="module")
def rescored(tmp_path_factory):
    """The same network; an untrained LSTM language model chooses from lists."""
    folder = tmp_path_factory.mktemp("rescored")
    torch.manual_seed(5)
    shortlist = Shortlist.of(dict.fromkeys(WORDS, 1), WORDS, None)
    network = WordLstm(WordLstmConfig(vocabulary=len(WORDS) + 3, hidden=4))
    with torch.no_grad():
        network.output.bias.normal_(0, 5)
    NeuralLm(network, shortlist).save(folder / "lm")
    RescoringWeights(1.0, 0.5, 0.0).save(folder / "weights.json")
    return write(folder, neural=(folder / "lm", folder / "weights.json"))


@pytest.fixture(scope="module")
def bidirectional_bundle(tmp_path_factory):
    return write(tmp_path_factory.mktemp("both"), "words", bidirectional=True)


@pytest.mark.parametrize("form", ["bundle", "bidirectional_bundle"])
@pytest.mark.parametrize("seconds", [0.3, 3])
def test_digital_silence_alone_has_no_words(request, form, seconds):
    recogniser = CtcRecogniser(request.getfixturevalue(form))
    assert recogniser.recognise(torch.zeros(int(16000 * seconds))) == ""


@pytest.mark.parametrize(("kernel", "stride"), [(5, 3), (11, 2), (11, 4)])
def test_an_utterance_of_a_stream_ends_in_digital_silence(tmp_path, kernel, stride):
    recogniser = CtcRecogniser(write(tmp_path, kernel=kernel, stride=stride))
    samples = torch.cat([noise(1.5, 1), torch.zeros(16000 * 6)])
    stream = recogniser.stream(EndpointConfig(silence=0.5))
    results = [stream.push(piece) for piece in samples.split(1600)]
    ends = [result.end for result in results if result.final is not None]
    assert ends
    assert 1.5 < ends[0] < 2.6


def test_no_word_lies_in_digital_silence(bundle):
    recogniser, zeros, words = CtcRecogniser(bundle), torch.zeros(16000), []
    for seed in range(4):
        samples = torch.cat([zeros, noise(1.5, seed), zeros, noise(1.5, seed + 9), zeros])
        features = recogniser.frontend(samples)
        words += recogniser.recognise_features(features, details=True).words
    middles = [(word.start_s + word.end_s) / 2 for word in words]
    assert all(0.9 < t < 2.8 or 3.4 < t < 5.3 for t in middles)
    assert len(words) >= 4


def test_a_stream_with_digital_silence_has_the_words_of_the_whole(bundle):
    recogniser, zeros = CtcRecogniser(bundle), torch.zeros(16000)
    samples = torch.cat([zeros, noise(1.5), zeros, noise(1.5, 9), zeros])
    stream = recogniser.stream()
    for number, piece in enumerate(samples.split(1600)):  # the zeros last ten pieces
        assert stream.has_sound == (number > 10)
        stream.push(piece)
    assert stream.finish().text == recogniser.recognise(samples) != ""


@pytest.mark.parametrize("piece", [160, 1600, 7777, 10**6])
@pytest.mark.parametrize("form", ["bundle", "rescored"])
def test_a_stream_has_the_words_of_the_whole(request, form, piece):
    recogniser = CtcRecogniser(request.getfixturevalue(form))
    for seed, seconds in enumerate((0.1, 1.3, 4.0)):
        samples = noise(seconds, seed)
        whole = recogniser.recognise_features(recogniser.frontend(samples), details=True)
        stream = recogniser.stream(details=True)
        partial_results = [
            stream.push(samples[at : at + piece]) for at in range(0, len(samples), piece)
        ]
        last = stream.finish()
        assert last.text == whole.text
        for word, expected in zip(last.final.words, whole.words, strict=True):
            assert word._replace(confidence=expected.confidence) == expected
            assert word.confidence == pytest.approx(expected.confidence, abs=1e-4)
        assert all(result.final is None for result in partial_results)
        assert set(" ".join(result.text for result in partial_results).split()) <= set(WORDS)
    assert len(whole.text.split()) > 3
    assert last.onset < 4
    for word in whole.words:
        assert 0 <= word.start_s < word.end_s <= 4.0
        assert 0 < word.confidence <= 1


def test_the_neural_model_chooses_from_the_list(bundle, rescored):
    unrescored, recogniser = CtcRecogniser(bundle), CtcRecogniser(rescored)
    weights = RescoringWeights(1.0, 0.5, 0.0)
    lm, neural = read_binary(rescored / "lm.safetensors"), NeuralLm.load(rescored / "neural_lm")
    changed = 0
    for seed in range(6):
        features = recogniser.frontend(noise(2.0, seed))
        hypotheses = recogniser.decoder.decode(recogniser.scorer.log_probs(features))
        assert len(hypotheses) > 3
        listed = to_nbest_list(hypotheses, lm, recogniser.settings.search)
        expected = weights.best(listed, neural_scores(neural, [listed])[0])
        assert recogniser.recognise(noise(2.0, seed)) == expected
        without = unrescored.recognise(noise(2.0, seed))
        changed += expected != without
        assert load_recogniser(rescored, fast=True).recognise(noise(2.0, seed)) == without
    assert changed > 0
    (rescored / "neural_lm" / "weights.json").rename(rescored / "elsewhere")
    with pytest.raises(ToolkitError, match=r"weights\.json"):
        CtcRecogniser(rescored).recognise(noise(1.0))
    (rescored / "elsewhere").rename(rescored / "neural_lm" / "weights.json")
    settings = json.loads((rescored / "ctc.json").read_text())
    settings["search"]["mode"] = "words"
    without = shutil.copytree(rescored, rescored.parent / "without")
    (without / "ctc.json").write_text(json.dumps(settings))
    with pytest.raises(BundleError, match="rescoring needs a search with n-grams"):
        CtcRecogniser(without).recognise(noise(1.0))


def test_words_that_have_too_few_frames_share_them(bundle):
    recogniser = CtcRecogniser(bundle)
    log_probs = torch.full((4, UNITS.size), 1 / UNITS.size).log()
    utterance = recogniser.with_words("BAND ZOO", log_probs)
    assert utterance.text == "BAND ZOO"
    first, second = utterance.words
    assert (first.token, second.token) == ("BAND", "ZOO")
    assert first.end_s == second.start_s
    assert second.end_s - first.start_s == pytest.approx(4 * recogniser.frame_shift)
    assert first.confidence == second.confidence == 0


def test_utterances_of_a_stream_end_after_blanks(bundle, monkeypatch):
    recogniser = CtcRecogniser(bundle)
    stream = recogniser.stream(EndpointConfig(longest=1.0))
    results = [stream.push(piece) for piece in noise(3.5).split(1600)]
    finals = [result for result in [*results, stream.finish()] if result.final is not None]
    assert len(finals) > 2
    assert [result.start for result in finals[1:]] == pytest.approx(
        [result.end for result in finals[:-1]]
    )
    blank = torch.full((1, UNITS.size), -20.0)
    blank[0, UNITS.blank] = 0.0
    spoken = torch.roll(blank, 2, dims=1)  # a letter
    rows = iter([*[spoken] * 3, *[blank] * 40])
    monkeypatch.setattr(CtcScorer, "stream", lambda self, inputs, state: (next(rows, blank), None))
    stream = recogniser.stream(EndpointConfig(silence=0.3))
    results = [stream.push(piece) for piece in noise(3).split(1600)]
    ended = [n for n, result in enumerate(results) if result.final is not None]
    assert results[ended[0]].onset == 0.0
    # 10 rows of 30 ms after the last that was spoken
    assert len(ended) == 1
    assert 12 <= ended[0] <= 14


def test_a_long_recording_is_scored_in_parts(bundle, bidirectional_bundle, monkeypatch):
    for folder, exact in ((bundle, True), (bidirectional_bundle, False)):
        scorer = CtcScorer(folder)
        features = FrontendOnly.frontend(noise(4))
        whole = scorer.log_probs(features)
        monkeypatch.setattr(scorer_module, "WHOLE", 10)
        monkeypatch.setattr(scorer_module, "WINDOW", 100)
        monkeypatch.setattr(scorer_module, "CONTEXT", 60)
        parts = scorer.log_probs(features)
        monkeypatch.undo()
        assert parts.shape == whole.shape
        same = (parts.argmax(dim=1) == whole.argmax(dim=1)).float().mean()
        assert same == 1 if exact else same > 0.9
        if exact:
            assert torch.allclose(parts, whole, atol=1e-3)


def test_models_that_need_the_whole_utterance_cannot_stream(bidirectional_bundle):
    with pytest.raises(BundleError, match=r"train\.model\.bidirectional=false"):
        CtcRecogniser(bidirectional_bundle).stream()
    assert CtcRecogniser(bidirectional_bundle).recognise(noise(2)) != ""


def test_bundles_are_found(bundle, bidirectional_bundle, tmp_path):
    assert isinstance(load_recogniser(bundle), CtcRecogniser)
    for folder in (bundle, bundle.parent, bundle.parent.parent):
        assert Bundle(folder).ctc_network() == bundle
    assert Bundle(tmp_path).ctc_network() is None
    assert Bundle(bidirectional_bundle.parent).network() == bidirectional_bundle
    with pytest.raises(BundleError, match="is not the bundle of a CTC network"):
        CtcRecogniser(tmp_path)


def test_mismatched_parts_are_refused(tmp_path):
    folder = write(tmp_path)
    path = folder / "normaliser.json"
    stats = GlobalStats.of(torch.ones(4, 7))
    Cmvn(stats.mean, stats).save(path)
    with pytest.raises(BundleError, match="different training runs"):
        CtcRecogniser(folder)


def test_outputs_that_are_no_numbers_name_the_bundle(tmp_path):
    folder = write(tmp_path)
    recogniser = CtcRecogniser(folder)
    with torch.no_grad():
        recogniser.scorer.model.output.bias.fill_(float("nan"))
    with pytest.raises(BundleError, match=f"{folder}: the network's outputs are not finite"):
        recogniser.recognise(noise(1))
    with pytest.raises(BundleError, match=f"{folder}: the network's outputs are not finite"):
        recogniser.warm_up()


def run(*arguments):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def audio(tmp_path):
    folder = tmp_path / "audio"
    folder.mkdir()
    for name, seconds in (("one", 2.0), ("two", 3.0)):
        soundfile.write(folder / f"{name}.wav", noise(seconds, len(name)).numpy(), 16000)
    return folder


def test_the_commands_take_the_bundle(bundle, audio, tmp_path):
    final = bundle.parent
    whole = run("transcribe", "--model", final, audio / "two.wav")
    stream = run("transcribe", "--model", final, "--stream", audio / "two.wav")
    line = next(text for text in whole.splitlines() if text.startswith("two "))
    assert line in stream.splitlines()
    timed = run("transcribe", "--model", final, "--format", "ctm", audio)
    assert len(timed.splitlines()) > 3
    out = tmp_path / "exported"
    run("export", "--model", final, "--format", "torchscript", "--out", out)
    metadata = json.loads((out / "metadata.json").read_text())
    assert metadata["units"] == UNITS.symbols
    assert metadata["frontend"]["num_mel_bins"] == 8


def test_a_folder_is_aligned(bundle, audio, tmp_path):
    (tmp_path / "text").write_text("one a dog, to 2 a zoo\ntwo an ox do\nthree a\n")
    arguments = ("--model", bundle.parent, "--audio-dir", audio, "--text", tmp_path / "text")
    result = CliRunner().invoke(main, ["align", *map(str, arguments), "--out", str(tmp_path / "o")])
    assert result.exit_code == 1  # three has no audio
    assert "Aligned 2 of 3" in result.output
    words = list(read_ctm(tmp_path / "o" / "words.ctm"))
    by_name = {name: [w.token for w in words if w.utterance == name] for name in ("one", "two")}
    assert by_name == {"one": ["A", "DOG", "TO", "A", "ZOO"], "two": ["AN", "OX", "DO"]}
    letters = [u.token for u in read_ctm(tmp_path / "o" / "units.ctm") if u.utterance == "one"]
    assert "".join(letters) == "adogtoazo_o"
    starts = [w.start for w in words if w.utterance == "one"]
    assert starts == sorted(starts)
    assert math.isfinite(words[0].confidence)
    table = (tmp_path / "o" / "table.tsv").read_text()
    assert "left out of the text: 2" in table
    assert "three\tfailed" in table
    grid = (tmp_path / "o" / "textgrid" / "one.TextGrid").read_text()
    assert '"units"' in grid
    assert np.isclose(float(grid.split("xmax = ")[1].split()[0]), 2.0)
    (tmp_path / "text").write_text("one a dog\ntwo 2\n")
    CliRunner().invoke(main, ["align", *map(str, arguments), "--out", str(tmp_path / "o")])
    assert [path.stem for path in (tmp_path / "o").rglob("*.TextGrid")] == ["one"]


def test_an_as_given_bundle_keeps_words_unnormalised(audio, tmp_path):
    words = ["a.", "Dog", "dog", "3"]
    units = Characters.of_texts(words, TextPolicy("as-given"))
    bundle = write(tmp_path / "given", units=units, words=words, sentences=[words, words[::-1]])
    transcribed = run("transcribe", "--model", bundle.parent, audio)
    recognised = {word for line in transcribed.splitlines()[-2:] for word in line.split()[1:]}
    assert recognised
    assert recognised <= {*words}
    (tmp_path / "text").write_text("one a. Dog [noise] 3 dog\ntwo A. dog\n")
    outcomes = align_folder(CtcAlignerFiles(bundle), audio, tmp_path / "text", tmp_path / "o")
    assert [w.token for w in read_ctm(tmp_path / "o/words.ctm")] == ["a.", "Dog", "3", "dog"]
    assert outcomes[0].reason == "left out of the text: [noise]"
    assert "'A' is not among" in outcomes[1].reason


def test_words_in_brackets_are_not_aligned(bundle, audio, tmp_path):
    (tmp_path / "text").write_text("one <s> a [noise] dog </s>\ntwo <unk>\n")
    outcomes = align_folder(CtcAlignerFiles(bundle), audio, tmp_path / "text", tmp_path / "o")
    assert [w.token for w in read_ctm(tmp_path / "o/words.ctm")] == ["A", "DOG"]
    assert [(outcome.utterance, outcome.reason) for outcome in outcomes] == [
        ("one", "left out of the text: </s> <s> [noise]"),
        ("two", "its transcript has no words"),
    ]


def test_ctm_has_the_channel_that_is_read(bundle, audio, tmp_path):
    samples, rate = soundfile.read(audio / "two.wav", dtype="int16")
    soundfile.write(tmp_path / "s.wav", np.stack([samples[::-1], samples], axis=1), rate)
    (tmp_path / "wav.scp").write_text(f"two {tmp_path}/s.wav\n")
    (tmp_path / "reco2file_and_channel").write_text("two s B\n")
    arguments = ("transcribe", "--model", bundle.parent, "--format", "ctm")

    def words(*more):
        lines = run(*arguments, *more).splitlines()
        return [line.split()[1:] for line in lines if line.startswith(("two ", "s "))]

    mono = words(audio / "two.wav")
    assert mono
    assert words(tmp_path / "wav.scp") == [["B", *fields[1:]] for fields in mono]
    stereo = words("--channel", 2, tmp_path / "s.wav")
    assert stereo == [["2", *fields[1:]] for fields in mono]


def test_one_channel_is_aligned(bundle, audio, tmp_path):
    (tmp_path / "text").write_text("one a dog\n")
    align_folder(CtcAlignerFiles(bundle), audio, tmp_path / "text", tmp_path / "mono")
    samples, rate = soundfile.read(next(audio.rglob("one.*")), dtype="int16")
    stereo_folder = tmp_path / "both"
    stereo_folder.mkdir()
    soundfile.write(stereo_folder / "one.wav", np.stack([samples[::-1], samples], axis=1), rate)
    align_folder(
        CtcAlignerFiles(bundle), stereo_folder, tmp_path / "text", tmp_path / "stereo", channel=1
    )
    words = read_ctm(tmp_path / "mono/words.ctm")
    expected = [replace(word, channel="2") for word in words]
    assert read_ctm(tmp_path / "stereo/words.ctm") == expected != []


def test_unused_speakers_are_reported(bundle, audio, tmp_path):
    (tmp_path / "text").write_text("one a dog\ntwo an ox\n")
    (tmp_path / "utt2spk").write_text("one ann\ntwo ann\n")
    arguments = ["--model", bundle, "--audio-dir", audio, "--text", tmp_path / "text"]
    arguments = ["align", *map(str, arguments), "--out", str(tmp_path / "o")]
    assert "--speakers" not in CliRunner().invoke(main, arguments).stderr
    result = CliRunner().invoke(main, [*arguments, "--speakers", str(tmp_path / "utt2spk")])
    assert (result.exit_code, result.stderr.count("--speakers has no effect")) == (0, 1)


def test_texts_of_other_alphabets_are_aligned_with_their_letters(audio, tmp_path):
    words = ("GRUND", "GRÜN", "ÜBER")
    german = write(
        tmp_path, units=Characters.of_texts(words), words=words, sentences=[["ÜBER", "GRÜN"]]
    )
    (tmp_path / "text").write_text("one über Grün.\ntwo GRUND\n")
    align_folder(CtcAlignerFiles(german), audio, tmp_path / "text", tmp_path / "out")
    assert [w.token for w in read_ctm(tmp_path / "out/words.ctm")] == ["ÜBER", "GRÜN", "GRUND"]
    letters = [u.token for u in read_ctm(tmp_path / "out/units.ctm")]
    assert "".join(letters) == "übergrüngrund"


def test_streams_of_one_bundle_in_several_threads_do_not_mix(bundle):
    shared = load_recogniser(bundle)
    shared.warm_up()
    assert shared.sampling_rate == 16000

    def final_results(seed):
        stream = shared.stream(EndpointConfig(longest=1.0), details=True)
        results = [stream.push(piece) for piece in noise(2.5, seed).split(1600)]
        return [result for result in [*results, stream.finish()] if result.final is not None]

    expected = [final_results(seed) for seed in range(4)]
    assert len({result[0].text for result in expected}) > 1
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(final_results, [*range(4)] * 2)) == expected * 2


def test_a_network_that_needs_the_whole_utterance_is_not_shared_by_streams(bidirectional_bundle):
    with pytest.raises(BundleError, match="unidirectional LSTMs"):
        load_recogniser(bidirectional_bundle).warm_up()
