"""Relative gains of one system on another, with their intervals."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from lhotse import Recording
from lhotse.audio import AudioSource

from local.farfield.config import FarfieldConfig
from tests.dummies import setting_of
from toolkit.corpus.findings import write_exclusions
from toolkit.corpus.manifest import make_cut, write_cuts
from toolkit.lang.config import NgramConfig
from toolkit.score.results import Result, read_results, record_results, score_split
from toolkit.score.wer import score

PLACEMENTS = [f"DP{n}" for n in range(1, 6)]


def score_with_errors(errors):
    """Return a score: substitutions by utterance of ten words."""
    refs = {f"u{n:03d}": " ".join("abcdefghij") for n in range(len(errors))}
    hyps = {
        name: " ".join(["x"] * wrong + list("abcdefghij")[wrong:])
        for (name, _), wrong in zip(refs.items(), errors, strict=True)
    }
    return score(refs, hyps)


def test_a_gain_is_relative_and_its_interval_is_that_of_pairs():
    from recipes.steps.farfield import gain

    chance = np.random.default_rng(5)
    baseline = chance.integers(0, 7, 200)
    system = np.maximum(baseline - chance.integers(0, 2, 200), 0)
    result = gain("DP1", score_with_errors(baseline), score_with_errors(system))
    reduction, total = baseline - system, baseline.sum()
    assert result.werr == pytest.approx(100 * reduction.sum() / total, abs=0.01)
    assert (result.baseline, result.system) == (
        pytest.approx(total / 20, abs=0.01),
        pytest.approx(system.sum() / 20, abs=0.01),
    )
    # By the delta method for a ratio of means.
    spread = 100 * np.std(reduction - reduction.sum() / total * baseline) * np.sqrt(200) / total
    assert result.high - result.low == pytest.approx(2 * 1.96 * spread, rel=0.1)
    assert 0 < result.low < result.werr < result.high
    assert result.p_value < 1e-4


class Decoded:
    """A run whose two systems have decoded every placement."""

    command = "./run.py"

    def __init__(self, root, systems):
        """Write references and hypotheses; `errors` gives the errors by system and sentence."""
        self.root = root
        write_exclusions([], root / "check/excluded.tsv")
        refs = {
            f"u{n:03d}": " ".join("abcdefghij") for n in range(len(next(iter(systems.values()))))
        }
        source = [AudioSource("file", [0], "u.flac")]
        for split in PLACEMENTS:
            cuts = [
                make_cut(f"{u}-{split}", Recording(u, source, 16000, 16000, 1.0), text, "s")
                for u, text in refs.items()
            ]
            write_cuts(cuts, root / f"data/{split}.jsonl")
        for system, errors in systems.items():
            rows = [
                score_split(
                    {f"{u.id}-{split}": u.ref_text for u in score_with_errors(errors).utterances},
                    {f"{u.id}-{split}": u.hyp_text for u in score_with_errors(errors).utterances},
                    {f"{u.id}-{split}": "s" for u in score_with_errors(errors).utterances},
                    root / f"decode/{system}/{split}",
                    system=system, split=split, lm="4gram", rtf=0.1, command="",
                )
                for split in PLACEMENTS
            ]  # fmt: skip
            record_results(root / f"decode/{system}/rows.json", rows)

    def need(self, name):
        return self.root / name


def test_copies_of_a_sentence_at_other_placements_add_no_evidence(tmp_path):
    """Every sentence has the same errors at all five, so intervals and tests equal those of one."""
    from recipes.steps.farfield import gains, placement_rows

    chance = np.random.default_rng(3)
    baseline = chance.integers(0, 7, 60)
    student = np.maximum(baseline - chance.integers(-1, 3, 60), 0)
    run = Decoded(tmp_path, {"baseline": baseline, "student": student})
    gains_by_split = {gain.split: gain for gain in gains(run, "baseline", "student")}
    for name in ("DP2-DP5", "TST"):
        assert replace(gains_by_split[name], split="DP1", p_value=0.0) == replace(
            gains_by_split["DP1"], p_value=0.0
        )
        assert gains_by_split[name].p_value == pytest.approx(gains_by_split["DP1"].p_value)
    rows = {row.split: row for row in placement_rows(run, "student", "4gram")}
    assert rows["TST"].ref_words == 5 * rows["DP1"].ref_words
    assert rows["TST"].interval == rows["DP1"].interval != ""


def test_an_utterance_without_a_hypothesis_is_deleted(tmp_path):
    """Decodes of an earlier version lack utterances whose extraction failed."""
    from recipes.steps.farfield import scores

    run = Decoded(tmp_path, {"student": [1, 2, 3]})
    lines = (tmp_path / "decode/student/DP1/text").read_text().splitlines(keepends=True)
    (tmp_path / "decode/student/DP1/text").write_text("".join(lines[:2]))
    utterances = scores(run, "student", ["DP1"])["DP1"].utterances
    assert [u.id for u in utterances] == ["u000-DP1", "u001-DP1", "u002-DP1"]
    assert utterances[-1].deletions == utterances[-1].ref_units > 0


def test_a_baseline_without_errors_gives_no_gain():
    from recipes.steps.farfield import gain, gains_table

    no_gain = gain("DP1", score_with_errors([0, 0, 0]), score_with_errors([0, 1, 0]))
    assert (no_gain.werr, no_gain.low, no_gain.high) == (None, None, None)
    assert "| student |  |" in gains_table({"student": [no_gain] * 7})


@pytest.mark.parametrize(("order", "name"), [(3, "3gram-rescored"), (4, "4gram")])
def test_without_arrays_there_is_no_front_end_and_the_rest_is_listed(
    tmp_path, monkeypatch, order, name
):
    """The last pass of each system is listed, even if both language models have one order."""
    from recipes.farfield_ssl.run import decode_front_end, front_end, recipe
    from recipes.steps import farfield
    from recipes.steps.decoding import passes

    config = SimpleNamespace(
        rooms=FarfieldConfig(array_hours=0),
        lm=NgramConfig(),
        rescoring=NgramConfig(order=order),
    )
    run = SimpleNamespace(
        config=config, setting=setting_of(config), make=lambda name: tmp_path / name
    )
    assert [p.lm for p in passes(run, tmp_path, rescore=True)] == ["3gram", name]
    stages = [stage for stage in recipe.stages if stage.function in (front_end, decode_front_end)]
    assert [stage.is_enabled(run.config) for stage in stages] == [False, False]

    def rows(run, system, lm):
        named = {"system": system, "split": "TST", "lm": lm, "rtf": 1.0, "command": ""}
        return [Result.of(score_with_errors([1, 2]), score_with_errors([1, 2]), **named)]

    monkeypatch.setattr(farfield, "placement_rows", rows)
    monkeypatch.setattr(
        farfield, "scores", lambda run, system, splits: {"DP1": score_with_errors([1, 2])}
    )
    monkeypatch.setattr(farfield, "SETS", dict.fromkeys(farfield.SETS, ("DP1",)))
    headline = farfield.compare_placements(run, "baseline", ["student"])
    assert headline["werr student"] == 0.0  # none, which is a number too
    listed = read_results(tmp_path / "results.json")
    systems = [row.system for row in listed]
    assert systems == ["baseline", "student"]
    assert {row.lm for row in listed} == {name}
