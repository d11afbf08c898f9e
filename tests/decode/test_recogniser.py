"""Recognisers of bundles: by utterance, by speaker, and with the rescoring of the recipe."""

from dataclasses import replace

import pytest
import torch

from tests.decode.conftest import make_bundle
from tests.dummies import dummy_recording
from toolkit.align.config import EmConfig
from toolkit.corpus.manifest import make_cut, write_cuts
from toolkit.decode import recogniser as recogniser_module
from toolkit.decode.bundle import BundleError, NeuralFiles, TunedSearch, write_speaker_bundle
from toolkit.decode.config import DecodeConfig, NeuralRescoringConfig
from toolkit.decode.recogniser import NetworkRecogniser, SpeakerRecogniser, recognise_alone
from toolkit.decode.rescore import RescoringWeights, rescore_system
from toolkit.decode.search import DecoderFiles
from toolkit.features.config import FrontendConfig
from toolkit.features.gmm_features import GmmFeatures, GmmFrontend
from toolkit.features.shards import FAILED_CUTS, SHARDS, FeatureStore, write_manifest, write_shard
from toolkit.fsa.config import Beam
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.lang.arpa import write_binary
from toolkit.models.config import WordLstmConfig
from toolkit.models.lstm import WordLstm
from toolkit.models.neural_lm import NeuralLm, Shortlist


@pytest.fixture
def stored(tmp_path, babble):
    """Store the features of four utterances of one speaker by a recogniser's front end."""

    def store(frontend):
        folder, config = tmp_path / "features", frontend.config
        utterances = [
            (make_cut(f"u{n}", dummy_recording(0), "", "ann"), "ann", frontend(babble(n, 1.5)))
            for n in range(4)
        ]
        written, frames = write_shard(folder / SHARDS, 0, utterances, config)
        write_manifest(folder, config, [{"utterances": written, "frames": frames}])
        return folder

    return store


def test_the_running_mean_restarts_with_each_utterance(bundle, stored):
    folder = bundle()
    recogniser = NetworkRecogniser(folder)
    features = stored(recogniser.frontend)
    store = FeatureStore(features)
    without_mean = {
        name: recogniser.recognise_features(store.load(name)).text for name in store.ids
    }
    with_mean = {
        name: recogniser.recognise_features(store.load(name), store.cmn_state(name)).text
        for name in store.ids
    }
    assert without_mean != with_mean
    for jobs in 1, 3:
        texts = recognise_alone(folder, features, jobs)
        assert list(texts) == store.ids
        assert texts == without_mean


def test_the_text_of_an_utterance_without_features_is_empty(bundle, stored):
    folder = bundle()
    features = stored(NetworkRecogniser(folder).frontend)
    texts = recognise_alone(folder, features, jobs=1)
    write_cuts([make_cut("short", dummy_recording(0), "UP", "ann")], features / FAILED_CUTS)
    assert recognise_alone(folder, features, jobs=1) == texts | {"short": ""}


NUM_CEPS = 4


@pytest.fixture
def speaker_bundle(recogniser, tmp_path):
    """GMMs of made-up means, adapted and not."""
    senones = recogniser.senones
    torch.manual_seed(0)
    count = torch.full((senones.num_pdfs,), 100.0).double()
    for name in ("sat", "lda_mllt"):
        means = torch.randn(senones.num_pdfs, 3 * NUM_CEPS).double()
        moments = count, count[:, None] * means, count[:, None] * (means**2 + 1)
        gmm = Gmm.from_moments(*moments, torch.full((3 * NUM_CEPS,), 0.01))
        features = GmmFeatures(tmp_path, GmmFrontend())
        (tmp_path / name).mkdir()
        GmmSystem(features, senones, gmm).save(tmp_path / name)
    (tmp_path / "tuned.json").write_text('{"acoustic_scale": 0.3, "word_penalty": 1.0}')
    config = DecodeConfig(0.3, beam=Beam(100.0, 6.0))
    search = TunedSearch(recogniser.graph, config, tmp_path / "tuned.json")
    write_speaker_bundle(
        tmp_path / "sat",
        search,
        recogniser.folder / "lang",
        FrontendConfig("plp", num_ceps=NUM_CEPS),
        tmp_path / "bundle",
        first_pass=(tmp_path / "lda_mllt", search, recogniser.graph, EmConfig()),
    )
    return tmp_path / "bundle"


def cepstra_of(seed, frames=(250, 260)):
    """The cepstra of a speaker's utterances; the default is enough to adapt to."""
    generator = torch.Generator().manual_seed(seed)
    cepstra = [torch.randn(count, NUM_CEPS, generator=generator) for count in frames]
    for x in cepstra:
        x[:, 0].abs_()  # a negative C0 of PLP stands for digital silence
    return cepstra


def recognise_cepstra(recogniser, cepstra):
    return recogniser.recognise_batch([(utterance, None) for utterance in cepstra])


def test_a_system_that_needs_all_of_a_speaker_has_no_streams(speaker_bundle):
    with pytest.raises(BundleError, match="needs whole recordings, grouped by speaker"):
        SpeakerRecogniser(speaker_bundle).stream()


def test_each_model_is_loaded_once(speaker_bundle):
    recogniser = SpeakerRecogniser(speaker_bundle)
    results = [recognise_cepstra(recogniser, cepstra_of(1))]
    models = [speaker_bundle / "first_pass/gmm", speaker_bundle / "gmm"]
    for path in models:
        path.rename(path.with_name("hidden"))
    results += [recognise_cepstra(recogniser, cepstra_of(seed)) for seed in (2, 1)]
    for path in models:
        path.with_name("hidden").rename(path)
    assert results[0] == results[2] != results[1]
    assert results[1] == recognise_cepstra(SpeakerRecogniser(speaker_bundle), cepstra_of(2))
    assert any(result.text for results in results for result in results)


def test_skipping_adaptation_on_too_little_speech_changes_no_text(speaker_bundle, monkeypatch):
    short = [cepstra_of(seed, frames) for seed, frames in enumerate([(60, 90), (1,), (499,)])]
    recogniser = SpeakerRecogniser(speaker_bundle)
    expected = [recognise_cepstra(recogniser, utterances) for utterances in short]
    assert any(result.text for results in expected for result in results)
    monkeypatch.setattr(recogniser_module, "MIN_FRAMES", 0)
    assert [
        recognise_cepstra(SpeakerRecogniser(speaker_bundle), utterances) for utterances in short
    ] == expected


COUNT = 30
UTTERANCES = 8


class NetworkScorer:
    """The scores that a bundle's network gives to made-up features."""

    frame_shift = 0.03

    def __init__(self, recogniser, store, model):
        self.store, self.model = store, model

    def log_likelihoods(self, utterance):
        return self.model.log_likelihoods(made_up_features(utterance))


def made_up_features(utterance):
    generator = torch.Generator().manual_seed(int(utterance.removeprefix("u")))
    return torch.randn(90, 8, generator=generator) * 3 + 17


@pytest.fixture
def neural_lm(tmp_path):
    """An untrained LSTM with large weights, which changes texts."""
    torch.manual_seed(1)
    shortlist = Shortlist.of({"YES": 2, "NO": 1}, ["YES", "NO"], None)
    model = WordLstm(WordLstmConfig(vocabulary=5, hidden=4))
    with torch.no_grad():
        model.output.weight *= 20
        model.output.bias.normal_()
    lm = NeuralLm(model.eval(), shortlist)
    lm.save(tmp_path / "lstm_lm")
    return lm


@pytest.mark.parametrize("passes", [1, 2])
def test_the_bundle_gives_the_recipes_texts(recogniser, neural_lm, tmp_path, passes):
    larger = None
    if passes == 2:
        larger = tmp_path / "larger.safetensors"
        write_binary(recogniser.model(recogniser.text, 3), larger)
    config = DecodeConfig(0.5, scales=(0.4, 0.6), penalties=(0.5,), beam=Beam(12.0, 6.0))
    tuned, out = tmp_path / "tuned.json", tmp_path / "rescored"
    tuned.write_text('{"acoustic_scale": 0.4, "word_penalty": 0.5}')
    unrescored = NetworkRecogniser(make_bundle(recogniser, tmp_path / "plain"))
    texts = {f"u{n}": "YES NO" for n in range(UTTERANCES)}
    scorer = NetworkScorer(recogniser, recogniser.scorer(texts).store, unrescored.model)
    decoder = DecoderFiles(recogniser.graph, recogniser.words, config, larger)
    rescore_system(
        "made-up",
        "lm",
        {"dev": scorer},
        ["dev"],
        decoder,
        tuned,
        neural_lm,
        NeuralRescoringConfig(COUNT, weights=(0.75,)),
        out,
        jobs=1,
        command="./run.py",
    )
    expected = dict(line.split(" ", 1) for line in (out / "dev/text").read_text().splitlines())
    assert len(set(expected.values())) >= 4

    files = NeuralFiles(tmp_path / "lstm_lm", out / "weights.json", tuned, COUNT)
    bundle = make_bundle(
        recogniser,
        tmp_path / "bundle",
        config=config,
        tuned=tuned,
        rescorer=larger,
        rescorer_tuned=larger and tuned,
        neural=files,
    )
    scale = RescoringWeights.load(out / "weights.json").acoustic_scale
    assert scale == NetworkRecogniser(bundle).decoder.acoustic_scale
    utterances = {
        name: NetworkRecogniser(bundle).recognise_features(made_up_features(name)) for name in texts
    }
    assert {name: utterance.text for name, utterance in utterances.items()} == expected
    detailed = NetworkRecogniser(bundle).recognise_features(made_up_features("u0"), details=True)
    assert detailed.text == expected["u0"]
    assert [word.token for word in detailed.words] == expected["u0"].split()
    assert all(0 < word.confidence < 1 for word in detailed.words)
    starts = [word.start_s for word in detailed.words]
    assert starts == sorted(starts)
    assert starts[-1] < detailed.words[-1].end_s <= 0.91

    fast = {name: NetworkRecogniser(bundle, fast=True) for name in texts}
    first = {
        name: utterance.recognise_features(made_up_features(name)).text
        for name, utterance in fast.items()
    }
    settings = replace(config, acoustic_scale=0.4)
    alone = NetworkRecogniser(
        make_bundle(recogniser, tmp_path / "alone", config=settings, tuned=tuned)
    )
    assert first == {name: alone.recognise_features(made_up_features(name)).text for name in texts}
    assert first != expected
