"""A second pass with a model that knows better."""

import json
from dataclasses import replace

TEXTS = {"a1": "YES NO", "doubt1": "YES NO", "b1": "NO YES YES", "mumble": "YES"}


def decoded(recogniser, out, **changes):
    from toolkit.decode.search import DecodeConfig, Decoder
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
    scorers = {"dev": recogniser.scorer({"a1": "YES NO"}), "test": recogniser.scorer(TEXTS)}
    config = replace(config, **changes)
    return decode_passes(
        "made-up",
        scorers,
        ["dev"],
        Decoder(recogniser.graph, recogniser.words, config, rescorer),
        [Pass("2gram", out / "first_pass"), Pass("3gram", out)],
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
    from toolkit.fsa.config import RescoreLimits

    limits = RescoreLimits(beam=1000.0, max_active=2)
    headline = decoded(recogniser, tmp_path / "out", rescoring=limits)
    assert headline["cut in rescoring"] == 4
