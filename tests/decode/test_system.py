"""Decoding of a store of made-up scores with a graph of two words: tuning, lists, times, passes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.dummies import dummy_recording
from toolkit.align.ctm_textgrid import read_ctm
from toolkit.corpus.manifest import make_cut
from toolkit.decode.config import DecodeConfig, NbestConfig
from toolkit.decode.search import DecoderFiles, decode_store, real_time_factor, remove_lattices
from toolkit.decode.system import Pass, decode_passes, write_nbest_and_ctm, write_word_times
from toolkit.errors import ToolkitError
from toolkit.fsa.config import Beam
from toolkit.fsa.lattice import Weights
from toolkit.score.results import write_texts

CONFIG = DecodeConfig(
    acoustic_scale=1.0, scales=(0.5, 1.0), penalties=(-200.0, 0.0), beam=Beam(1000.0, 1000.0)
)


TEXTS = {"a1": "YES NO", "a2": "NO", "b1": "NO YES YES", "b2": "YES"}


def test_certain_scores_give_the_transcripts(recogniser, tmp_path):
    decoder = DecoderFiles(recogniser.graph, recogniser.words, CONFIG)
    weights = [[Weights(1.0, 0.0), Weights(1.0, -100.0)]]
    (decoded,) = decode_store(recogniser.scorer(TEXTS), decoder, weights, tmp_path, jobs=1)
    assert {d.utterance: d.hypotheses[0] for d in decoded} == TEXTS
    assert all(len(d.hypotheses[1].split()) <= len(d.hypotheses[0].split()) for d in decoded)
    assert real_time_factor(decoded) > 0


def test_an_impossible_utterance_still_gets_a_line(recogniser, tmp_path):
    texts = {**TEXTS, "mumble": "YES"}
    decoder = DecoderFiles(recogniser.graph, recogniser.words, CONFIG)
    (decoded,) = decode_store(recogniser.scorer(texts), decoder, [[Weights(1.0)]], tmp_path, jobs=1)
    mumbled = decoded[-1]
    assert (mumbled.utterance, mumbled.hypotheses, mumbled.beam) == ("mumble", ("",), 0.0)


def test_other_weights_need_no_new_search(recogniser, tmp_path):
    texts = {**TEXTS, "mumble": "YES", "doubt": "NO"}
    scorer, decoder = (
        recogniser.scorer(texts),
        DecoderFiles(recogniser.graph, recogniser.words, CONFIG),
    )
    other_weights = [[Weights(0.7, -100.0), Weights(2.0, 3.0)]]
    expected = decode_store(scorer, decoder, other_weights, tmp_path / "anew", jobs=1)
    decode_store(scorer, decoder, [[Weights(1.0)]], tmp_path, jobs=1)
    decoder = replace(decoder, graph=tmp_path / "removed")  # which another search would need
    decoded_passes = decode_store(scorer, decoder, other_weights, tmp_path, jobs=1)
    assert [(d.utterance, d.hypotheses, d.beam, d.cut) for d in decoded_passes[0]] == [
        (d.utterance, d.hypotheses, d.beam, d.cut) for d in expected[0]
    ]
    remove_lattices(tmp_path)
    with pytest.raises(ToolkitError, match="removed"):
        decode_store(scorer, decoder, [[Weights(3.0)]], tmp_path, jobs=1)


def test_among_equals_the_smallest_penalty_is_chosen(recogniser, tmp_path):
    config = replace(CONFIG, scales=(1.0, 2.0), penalties=(-0.2, -0.1, 0.1))
    scorers, out = {"dev": recogniser.scorer(TEXTS)}, tmp_path / "out"
    decoder = DecoderFiles(recogniser.graph, recogniser.words, config)
    decode_passes("made-up", scorers, ["dev"], decoder, [Pass("2gram", out)], out, 1, "./run.py")
    grid = [line.split("\t") for line in (out / "grid.tsv").read_text().splitlines()[1:]]
    assert {errors for _, _, errors, *_ in grid} == {"0"}
    tuned = json.loads((out / "tuned.json").read_text())
    assert tuned == {"acoustic_scale": 1.0, "word_penalty": -0.1}


def test_weights_are_tuned_on_dev_and_used_on_test(recogniser, tmp_path):
    dev, test = recogniser.scorer(TEXTS), recogniser.scorer({"c1": "NO NO", "mumble": "YES YES"})
    out = tmp_path / "out"
    headline = decode_passes(
        "made-up",
        {"dev": dev, "test": test},
        ["dev"],
        DecoderFiles(recogniser.graph, recogniser.words, CONFIG),
        [Pass("2gram", out)],
        out,
        jobs=1,
        command="./run.py",
    )
    assert headline == {"wer dev": 0.0, "wer test": 50.0, "no path": 1}
    grid = (out / "grid.tsv").read_text().splitlines()
    # A penalty of 0 was the highest of the grid, which was widened.
    assert {line.split("\t")[1] for line in grid[1:]} == {"-200", "0", "200"}
    assert {line.split("\t")[5] for line in grid[1:]} == {"1"}
    tuned = json.loads((out / "tuned.json").read_text())
    errors = {
        tuple(map(float, line.split("\t")[:2])): int(line.split("\t")[2]) for line in grid[1:]
    }
    assert errors[tuned["acoustic_scale"], tuned["word_penalty"]] == min(errors.values()) == 0
    assert max(errors.values()) > 0  # the penalty of -200 per word loses words
    rows = {row["split"]: row for row in json.loads((out / "rows.json").read_text())}
    assert (rows["test"]["del"], rows["test"]["ref_words"], rows["test"]["lm"]) == (2, 4, "2gram")
    assert "mumble\n" in (out / "test/text").read_text()
    assert (
        (out / "test/wer.txt").read_text().startswith("%WER 50.00 [ 2 / 4, 0 ins, 2 del, 0 sub ]")
    )


def decoded(recogniser, out, dev, **other_splits):
    """Decode `dev` and other splits, tuned on those whose names begin with "dev"."""
    splits = {"dev": dev, **other_splits}
    scorers = {split: recogniser.scorer(texts) for split, texts in splits.items()}
    tune_on = [split for split in splits if split.startswith("dev")]
    config = replace(CONFIG, acoustic_scale=0.8, penalties=(-200.0, -1.0))
    decoder = DecoderFiles(recogniser.graph, recogniser.words, config)
    passes = [Pass("2gram", out)]
    return decode_passes("made-up", scorers, tune_on, decoder, passes, out, 1, "./run.py")


@pytest.mark.parametrize("dev", [{"hush": ""}, {"a": "YES NO"}])
def test_a_tuning_split_with_hardly_a_word_tunes_nothing(recogniser, tmp_path, caplog, dev):
    headline = decoded(recogniser, tmp_path, dev, test={"c": "NO NO"})
    tuned = json.loads((tmp_path / "tuned.json").read_text())
    assert tuned == {"acoustic_scale": 0.8, "word_penalty": -1.0}
    assert any("NOT TUNED" in message for message in caplog.messages)
    assert headline["wer test"] == 0.0
    assert ("wer dev" in headline) == ("a" in dev)
    assert len((tmp_path / "grid.tsv").read_text().splitlines()) == 2
    assert (tmp_path / "dev/text").read_text() == "".join(
        f"{u} {t}".rstrip() + "\n" for u, t in dev.items()
    )


def test_a_tuning_split_without_words_is_pooled_with_the_others(recogniser, tmp_path, caplog):
    headline = decoded(recogniser, tmp_path, {"hush": ""}, dev2=TEXTS, test={"c": "NO"})
    assert headline == {"wer dev2": 0.0, "wer test": 0.0}
    assert any(message.startswith("dev has no error rate") for message in caplog.messages)
    grid = [line.split("\t") for line in (tmp_path / "grid.tsv").read_text().splitlines()[1:]]
    assert {words for *_, words, _, _ in grid} == {"7"}
    assert [*(tmp_path / "dev").glob("text")]


def without_features(name, text):
    """The cut of an utterance that is too short for a frame."""
    return make_cut(name, dummy_recording(0, 0.02), text, "speaker")


def test_utterances_without_features_are_deletions(recogniser, tmp_path):
    scorers = {
        "dev": recogniser.scorer(TEXTS),
        "test": recogniser.scorer({"c1": "NO NO", "c2": "YES"}),
    }
    scorers["dev"].store.failed_cuts = [without_features("short1", "NO")]
    scorers["test"].store.failed_cuts = [without_features("short2", "YES NO YES")]
    config = replace(CONFIG, penalties=(0.0,))
    decoder = DecoderFiles(recogniser.graph, recogniser.words, config)
    passes = [Pass("2gram", tmp_path)]
    headline = decode_passes("made-up", scorers, ["dev"], decoder, passes, tmp_path, 1, "./run.py")
    assert headline == {"wer dev": 12.5, "wer test": 50.0, "no path": 2}
    rows = {row["split"]: row for row in json.loads((tmp_path / "rows.json").read_text())}
    assert (rows["test"]["del"], rows["test"]["ref_words"]) == (3, 6)
    assert (tmp_path / "test/text").read_text() == "c1 NO NO\nc2 YES\nshort2\n"
    grid = (tmp_path / "grid.tsv").read_text().splitlines()[1:]
    assert {line.split("\t")[3] for line in grid} == {"8"}  # words of the tuning
    write_word_times(
        scorers, decoder, recogniser.folder / "lang", recogniser.senones, tmp_path, jobs=1
    )
    assert {entry.utterance for entry in read_ctm(tmp_path / "test/words.ctm")} == {"c1", "c2"}
    nbest = NbestConfig()
    arguments = scorers, ["dev"], decoder, Weights(1.0), recogniser.folder / "lang"
    write_nbest_and_ctm(*arguments, recogniser.senones, nbest, tmp_path, jobs=1)
    assert {entry.utterance for entry in read_ctm(tmp_path / "test/words.ctm")} == {"c1", "c2"}


RESCORED_TEXTS = {"a1": "YES NO", "doubt1": "YES NO", "b1": "NO YES YES", "mumble": "YES"}


def decode_twice(recogniser, out, **changes):
    from toolkit.decode.config import DecodeConfig
    from toolkit.decode.search import DecoderFiles
    from toolkit.decode.system import Pass, decode_passes
    from toolkit.fsa.config import Beam, RescoreLimits
    from toolkit.lang.arpa import write_binary

    big = recogniser.model([["YES", "YES"], ["NO", "NO"]] * 50 + recogniser.text, 3)
    rescorer = recogniser.folder / "big.safetensors"
    write_binary(big, rescorer)
    config = DecodeConfig(
        acoustic_scale=1.0,
        scales=(1.0,),
        penalties=(0.0,),
        beam=Beam(1000.0, 1000.0),
        rescoring=RescoreLimits(beam=1000.0),
    )
    scorers = {
        "dev": recogniser.scorer({"a1": "YES NO"}),
        "test": recogniser.scorer(RESCORED_TEXTS),
    }
    config = replace(config, **changes)
    return decode_passes(
        "made-up",
        scorers,
        ["dev"],
        DecoderFiles(recogniser.graph, recogniser.words, config, rescorer),
        [Pass("2gram", out / "first_pass"), Pass("3gram", out)],
        out,
        jobs=1,
        command="./run.py",
    )


def hypotheses(folder):
    lines = (folder / "test/text").read_text().splitlines()
    return {line.split(" ")[0]: " ".join(line.split(" ")[1:]) for line in lines}


def test_the_large_model_decides_ambiguous_utterances(recogniser, tmp_path):
    out = tmp_path / "out"
    headline = decode_twice(recogniser, out)
    assert hypotheses(out / "first_pass") == {**RESCORED_TEXTS, "mumble": ""}
    second = hypotheses(out)
    assert second.pop("doubt1") in ("YES YES", "NO NO")
    assert second == {"a1": "YES NO", "b1": "NO YES YES", "mumble": ""}
    # Eight words in the references; the mumbled one is lost, and one is rescored for the worse.
    assert headline == {"wer dev": 0.0, "wer test": 25.0, "no path": 1}
    rows = {(row["split"], row["lm"]): row for row in json.loads((out / "rows.json").read_text())}
    assert rows.keys() == {(s, lm) for s in ("dev", "test") for lm in ("2gram", "3gram")}
    assert rows["test", "2gram"]["wer"] == 12.5
    assert rows["test", "3gram"]["rtf"] >= rows["test", "2gram"]["rtf"] > 0
    for folder in (out, out / "first_pass"):
        assert len((folder / "grid.tsv").read_text().splitlines()) == 2
        assert (folder / "dev/wer.txt").exists()


def test_utterances_that_meet_the_bound_are_counted(recogniser, tmp_path):
    from toolkit.fsa.config import RescoreLimits

    limits = RescoreLimits(beam=1000.0, max_active=2)
    headline = decode_twice(recogniser, tmp_path / "out", rescoring=limits)
    assert headline["cut in rescoring"] == 4


LISTED_TEXTS = {"a1": "YES NO", "doubt1": "YES NO", "b1": "NO YES YES", "hush": "", "mumble": "YES"}


def test_lists_times_and_confidences(recogniser, tmp_path):
    from toolkit.decode.config import DecodeConfig, NbestConfig
    from toolkit.decode.search import DecoderFiles
    from toolkit.decode.system import write_nbest_and_ctm
    from toolkit.fsa.config import Beam

    config = DecodeConfig(acoustic_scale=1.0, beam=Beam(1000.0, 1000.0))
    out = tmp_path / "out"
    scorers = {
        "dev": recogniser.scorer({"doubt1": "NO YES"}),
        "test": recogniser.scorer(LISTED_TEXTS),
    }
    arguments = (
        scorers,
        ["dev"],
        DecoderFiles(recogniser.graph, recogniser.words, config),
        Weights(1.0),
        recogniser.folder / "lang",
        recogniser.senones,
        NbestConfig(count=4),
        out,
        1,
    )
    errors = write_nbest_and_ctm(*arguments)
    assert errors.keys() == {"ece dev", "ece test"}
    assert all(0 <= error <= 1 for error in errors.values())

    # Frames of 10 ms, two per state: YES has three phones of two states, NO two, silences one.
    words = {}
    for entry in read_ctm(out / "test/words.ctm"):
        words.setdefault(entry.utterance, []).append(entry)
    spans = [(e.token, round(e.start, 3), round(e.duration, 3)) for e in words["b1"]]
    assert spans == [("NO", 0.02, 0.08), ("YES", 0.12, 0.12), ("YES", 0.26, 0.12)]
    assert words.keys() == {"a1", "doubt1", "b1"}  # nothing is said in "hush", "mumble" is lost
    sure, doubtful = (min(e.confidence for e in words[u]) for u in ("b1", "doubt1"))
    assert 0 < doubtful < sure < 1

    lines = [line.split("\t") for line in (out / "test/nbest.tsv").read_text().splitlines()[1:]]
    assert [line[:2] for line in lines[:4]] == [["a1", str(rank)] for rank in (1, 2, 3, 4)]
    assert lines[0][5] == "YES NO"
    assert len({line[5] for line in lines[:4]}) == 4
    table = [line.split("\t") for line in (out / "confidence.tsv").read_text().splitlines()]
    assert [row[:2] for row in table[1:]] == [["dev", "2"], ["test", "7"]]

    first_ctm = (out / "test/words.ctm").read_bytes()
    (out / "test/words.ctm").unlink()
    for scorer in scorers.values():
        scorer.log_likelihoods = None  # finished shards are not decoded again
    assert write_nbest_and_ctm(*arguments) == errors
    assert (out / "test/words.ctm").read_bytes() == first_ctm


def test_lattices_of_the_decode_are_reused(recogniser, tmp_path):
    from toolkit.decode.config import DecodeConfig, NbestConfig
    from toolkit.decode.search import DecoderFiles, remove_lattices
    from toolkit.decode.system import Pass, decode_passes, write_nbest_and_ctm
    from toolkit.fsa.config import Beam
    from toolkit.lang.arpa import write_binary

    config = DecodeConfig(2.0, scales=(1.0,), penalties=(-0.5,), beam=Beam(1000.0, 1000.0))
    write_binary(recogniser.model(recogniser.text, 3), tmp_path / "larger")
    decoder = DecoderFiles(recogniser.graph, recogniser.words, config, tmp_path / "larger")
    scorers = {
        "dev": recogniser.scorer({"doubt1": "NO YES"}),
        "test": recogniser.scorer(LISTED_TEXTS),
    }

    def decode(out):
        passes = [Pass("2gram", out / "first_pass"), Pass("3gram", out)]
        return decode_passes("made-up", scorers, ["dev"], decoder, passes, out, 1, "./run.py")

    def listed(out, decoder):
        weights = Weights.load(out / "tuned.json")
        decoder = decoder.at(weights.acoustic_scale)
        arguments = (scorers, ["dev"], decoder, weights, recogniser.folder / "lang")
        headline = write_nbest_and_ctm(*arguments, recogniser.senones, NbestConfig(), out, jobs=1)
        return headline, [
            (out / name).read_bytes()
            for name in ("test/nbest.tsv", "test/words.ctm", "dev/nbest.tsv", "calibration.json")
        ]

    decode(tmp_path / "anew")
    assert [*(tmp_path / "anew").rglob("searched.*")]
    remove_lattices(tmp_path / "anew")
    assert not [*(tmp_path / "anew").rglob("searched.*")]
    expected = listed(tmp_path / "anew", decoder)
    decode(tmp_path / "kept")
    without_graph = replace(decoder, graph=tmp_path / "removed")
    assert listed(tmp_path / "kept", without_graph) == expected


TIMED_TEXTS = {"a1": "YES NO", "b1": "NO YES YES", "hush": "", "mumble": "YES"}


def word_spans(path):
    spans = {}
    for entry in read_ctm(path):
        times = round(entry.start, 3), round(entry.duration, 3)
        spans.setdefault(entry.utterance, []).append((entry.token, *times))
    return spans


def test_times_are_those_of_the_decoded_words(recogniser, tmp_path):
    from toolkit.decode.config import DecodeConfig
    from toolkit.decode.search import DecoderFiles
    from toolkit.decode.system import write_word_times
    from toolkit.fsa.config import Beam

    config = DecodeConfig(acoustic_scale=1.0, beam=Beam(1000.0, 1000.0))
    decoder = DecoderFiles(recogniser.graph, recogniser.words, config)
    write_texts(TIMED_TEXTS | {"a1": "YES YES"}, tmp_path / "dev")
    scorers = {"dev": recogniser.scorer(TIMED_TEXTS)}
    lang, senones = recogniser.folder / "lang", recogniser.senones
    write_word_times(scorers, decoder, lang, senones, tmp_path, jobs=1)
    spans = word_spans(tmp_path / "dev/words.ctm")
    # Frames of 10 ms, two per state: YES has three phones of two states, NO two, silences one.
    assert spans["b1"] == [("NO", 0.02, 0.08), ("YES", 0.12, 0.12), ("YES", 0.26, 0.12)]
    assert [word for word, *_ in spans["a1"]] == ["YES", "YES"]  # as decoded, though NO was said
    assert spans.keys() == {"a1", "b1"}  # nothing was recognised in "hush"; "mumble" has no frame


@pytest.mark.parametrize("text", ["A CAT", "CAT A"])
def test_times_by_a_network_of_characters(tmp_path, text):
    from toolkit.decode.system import write_ctc_word_times
    from toolkit.decode.words import CtcWordAligner
    from toolkit.lang.units import Characters

    units = Characters()
    labels = units.encode(text)
    frames = [units.blank] + [label for label in labels for _ in range(3)] + [units.blank]
    log_probs = np.full((len(frames), units.size), -20.0, np.float32)
    log_probs[range(len(frames)), frames] = 0.0
    texts = {"right": text, "hush": "", "long": "CAT " * 20, "digits": "4"}
    write_texts(texts, tmp_path)
    aligner = CtcWordAligner(units, frame_shift=0.04, offset=-0.02)
    write_ctc_word_times(dict.fromkeys(texts, log_probs), aligner, tmp_path)
    words = text.split()
    first, second = 0.12 * len(words[0]), 0.12 * len(words[1])
    assert word_spans(tmp_path / "words.ctm") == {
        "right": [
            (words[0], 0.02, pytest.approx(first)),
            (words[1], pytest.approx(0.02 + first + 0.12), pytest.approx(second)),
        ]
    }
