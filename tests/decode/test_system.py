"""Decoding a store of made-up scores with a graph of two words."""

import json
from dataclasses import replace

import pytest

from tests.dummies import dummy_recording
from toolkit.align.times import read_ctm
from toolkit.corpus.manifest import make_cut
from toolkit.decode.search import (
    DecodeConfig,
    Decoder,
    decode_store,
    real_time_factor,
    remove_lattices,
)
from toolkit.decode.system import (
    NbestConfig,
    Pass,
    decode_passes,
    write_nbest_and_ctm,
    write_word_times,
)
from toolkit.errors import ToolkitError
from toolkit.fsa.config import Beam
from toolkit.fsa.lattice import Weights

CONFIG = DecodeConfig(
    acoustic_scale=1.0, scales=(0.5, 1.0), penalties=(-200.0, 0.0), beam=Beam(1000.0, 1000.0)
)


TEXTS = {"a1": "YES NO", "a2": "NO", "b1": "NO YES YES", "b2": "YES"}


def test_certain_scores_give_the_transcripts(recogniser, tmp_path):
    decoder = Decoder(recogniser.graph, recogniser.words, CONFIG)
    weights = [[Weights(1.0, 0.0), Weights(1.0, -100.0)]]
    (decoded,) = decode_store(recogniser.scorer(TEXTS), decoder, weights, tmp_path, jobs=1)
    assert {d.utterance: d.hypotheses[0] for d in decoded} == TEXTS
    assert all(len(d.hypotheses[1].split()) <= len(d.hypotheses[0].split()) for d in decoded)
    assert real_time_factor(decoded) > 0


def test_an_impossible_utterance_still_gets_a_line(recogniser, tmp_path):
    texts = {**TEXTS, "mumble": "YES"}
    decoder = Decoder(recogniser.graph, recogniser.words, CONFIG)
    (decoded,) = decode_store(recogniser.scorer(texts), decoder, [[Weights(1.0)]], tmp_path, jobs=1)
    mumbled = decoded[-1]
    assert (mumbled.utterance, mumbled.hypotheses, mumbled.beam) == ("mumble", ("",), 0.0)


def test_other_weights_need_no_other_search(recogniser, tmp_path):
    texts = {**TEXTS, "mumble": "YES", "doubt": "NO"}
    scorer, decoder = (
        recogniser.scorer(texts),
        Decoder(recogniser.graph, recogniser.words, CONFIG),
    )
    others = [[Weights(0.7, -100.0), Weights(2.0, 3.0)]]
    expected = decode_store(scorer, decoder, others, tmp_path / "anew", jobs=1)
    (once,) = decode_store(scorer, decoder, [[Weights(1.0)]], tmp_path, jobs=1)
    decoder = replace(decoder, graph=tmp_path / "removed")  # which another search would need
    found = decode_store(scorer, decoder, others, tmp_path, jobs=1)
    assert [(d.utterance, d.hypotheses, d.beam, d.cut) for d in found[0]] == [
        (d.utterance, d.hypotheses, d.beam, d.cut) for d in expected[0]
    ]
    remove_lattices(tmp_path)
    (again,) = decode_store(scorer, decoder, [[Weights(1.0)]], tmp_path, jobs=1)
    assert again == once  # the best paths of before are kept
    with pytest.raises(ToolkitError, match="removed"):
        decode_store(scorer, decoder, [[Weights(3.0)]], tmp_path, jobs=1)


def test_among_equals_the_smallest_penalty_is_chosen(recogniser, tmp_path):
    config = replace(CONFIG, scales=(1.0, 2.0), penalties=(-0.2, -0.1, 0.1))
    scorers, out = {"dev": recogniser.scorer(TEXTS)}, tmp_path / "out"
    decoder = Decoder(recogniser.graph, recogniser.words, config)
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
        Decoder(recogniser.graph, recogniser.words, CONFIG),
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


def decoded(recogniser, out, dev, **others):
    """Decode `dev` and other splits, tuned on those whose names begin with "dev"."""
    splits = {"dev": dev, **others}
    scorers = {split: recogniser.scorer(texts) for split, texts in splits.items()}
    tune_on = [split for split in splits if split.startswith("dev")]
    config = replace(CONFIG, acoustic_scale=0.8, penalties=(-200.0, -1.0))
    decoder = Decoder(recogniser.graph, recogniser.words, config)
    passes = [Pass("2gram", out)]
    return decode_passes("made-up", scorers, tune_on, decoder, passes, out, 1, "./run.py")


@pytest.mark.parametrize("dev", [{"hush": ""}, {"a": "YES NO"}])
def test_a_tuning_split_with_hardly_a_word_tunes_nothing(recogniser, tmp_path, caplog, dev):
    found = decoded(recogniser, tmp_path, dev, test={"c": "NO NO"})
    tuned = json.loads((tmp_path / "tuned.json").read_text())
    assert tuned == {"acoustic_scale": 0.8, "word_penalty": -1.0}
    assert any("NOT TUNED" in message for message in caplog.messages)
    assert found["wer test"] == 0.0
    assert ("wer dev" in found) == ("a" in dev)
    assert len((tmp_path / "grid.tsv").read_text().splitlines()) == 2
    assert (tmp_path / "dev/text").read_text() == "".join(
        f"{u} {t}".rstrip() + "\n" for u, t in dev.items()
    )


def test_a_tuning_split_without_words_is_pooled_with_the_others(recogniser, tmp_path, caplog):
    found = decoded(recogniser, tmp_path, {"hush": ""}, dev2=TEXTS, test={"c": "NO"})
    assert found == {"wer dev2": 0.0, "wer test": 0.0}
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
    decoder = Decoder(recogniser.graph, recogniser.words, config)
    passes = [Pass("2gram", tmp_path)]
    found = decode_passes(
        "made-up", scorers, ["dev"], decoder, passes, tmp_path, 1, "./run.py", keep_lattices=True
    )
    assert found == {"wer dev": 12.5, "wer test": 50.0, "no path": 2}
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
    arguments = scorers, ["dev"], decoder, tmp_path / "tuned.json", recogniser.folder / "lang"
    write_nbest_and_ctm(*arguments, recogniser.senones, nbest, tmp_path, jobs=1)
    assert {entry.utterance for entry in read_ctm(tmp_path / "test/words.ctm")} == {"c1", "c2"}
