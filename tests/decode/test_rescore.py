"""A second pass with a model that knows better."""

import json
from dataclasses import replace

from toolkit.align.ctm import read_ctm

TEXTS = {"a1": "YES NO", "doubt1": "YES NO", "b1": "NO YES YES", "mumble": "YES"}


def decoded(recogniser, out, **changes):
    from toolkit.decode.first_pass import DecodeConfig
    from toolkit.decode.rescore import rescore_system
    from toolkit.fsa.rescore import RescoreLimits
    from toolkit.fsa.search import Beam
    from toolkit.lang.arpa import write_arpa

    big = recogniser.model([["YES", "YES"], ["NO", "NO"]] * 50 + recogniser.text, 3)
    write_arpa(big, recogniser.folder / "big.arpa")
    config = DecodeConfig(
        acoustic_scale=1.0,
        scales=(1.0,),
        penalties=(0.0,),
        beam=Beam(1000.0, 1000.0),
        rescoring=RescoreLimits(beam=1000.0),
    )
    scorers = {"dev": recogniser.scorer({"a1": "YES NO"}), "test": recogniser.scorer(TEXTS)}
    return rescore_system(
        "made-up",
        scorers,
        ["dev"],
        recogniser.graph,
        recogniser.words,
        ("2gram", "3gram"),
        recogniser.folder / "big.arpa",
        replace(config, **changes),
        out,
        jobs=1,
        command="./run.py",
    )


def hypotheses(folder):
    lines = (folder / "test/text").read_text().splitlines()
    return {line.split(" ")[0]: " ".join(line.split(" ")[1:]) for line in lines}


def test_the_large_model_decides_where_the_sound_leaves_doubt(recogniser, tmp_path):
    out = tmp_path / "out"
    headline = decoded(recogniser, out)
    assert hypotheses(out / "first_pass") == {**TEXTS, "mumble": ""}
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
    from toolkit.fsa.rescore import RescoreLimits

    limits = RescoreLimits(beam=1000.0, max_active=2)
    headline = decoded(recogniser, tmp_path / "out", rescoring=limits)
    assert headline["cut in rescoring"] == 4


def test_lists_times_and_confidences(recogniser, tmp_path):
    from toolkit.decode.first_pass import DecodeConfig, Decoder
    from toolkit.decode.nbest import NbestConfig, explore_system
    from toolkit.fsa.lattice_store import LatticeStore
    from toolkit.fsa.search import Beam

    config = DecodeConfig(acoustic_scale=1.0, beam=Beam(1000.0, 1000.0))
    out, tuned = tmp_path / "out", tmp_path / "tuned.json"
    tuned.write_text('{"acoustic_scale": 1.0, "word_penalty": 0.0}')
    scorers = {"dev": recogniser.scorer({"doubt1": "NO YES"}), "test": recogniser.scorer(TEXTS)}
    arguments = (
        scorers,
        ["dev"],
        Decoder(recogniser.graph, recogniser.words, config),
        tuned,
        recogniser.folder / "lang",
        recogniser.senones,
        NbestConfig(count=4, lattices=True),
        out,
        1,
    )
    errors = explore_system(*arguments)
    assert errors.keys() == {"ece dev", "ece test"}
    assert all(0 <= error <= 1 for error in errors.values())

    # Frames of 10 ms, two per state: YES has three phones of two states, NO two, silences one.
    words = {}
    for entry in read_ctm(out / "test/words.ctm"):
        words.setdefault(entry.utterance, []).append(entry)
    spans = [(e.token, round(e.start, 3), round(e.duration, 3)) for e in words["b1"]]
    assert spans == [("NO", 0.02, 0.08), ("YES", 0.12, 0.12), ("YES", 0.26, 0.12)]
    assert "mumble" not in words
    sure, doubtful = (min(e.confidence for e in words[u]) for u in ("b1", "doubt1"))
    assert 0 < doubtful < sure < 1

    lines = [line.split("\t") for line in (out / "test/nbest.tsv").read_text().splitlines()[1:]]
    assert [line[:2] for line in lines[:4]] == [["a1", str(rank)] for rank in (1, 2, 3, 4)]
    assert lines[0][5] == "YES NO"
    assert len({line[5] for line in lines[:4]}) == 4
    table = [line.split("\t") for line in (out / "confidence.tsv").read_text().splitlines()]
    assert [row[:2] for row in table[1:]] == [["dev", "2"], ["test", "7"]]

    store = LatticeStore(out / "test/lattices", recogniser.graph)
    assert sorted(store.ids) == ["a1", "b1", "doubt1"]
    assert store.load("a1").num_arcs > 20
    before = (out / "test/words.ctm").read_bytes()
    (out / "test/words.ctm").unlink()
    for scorer in scorers.values():
        scorer.log_likelihoods = None  # finished shards are not decoded again
    assert explore_system(*arguments) == errors
    assert (out / "test/words.ctm").read_bytes() == before
