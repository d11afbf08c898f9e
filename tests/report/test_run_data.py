"""Stages, decodes and error rates of a run."""

import dataclasses
import re
from dataclasses import replace

import pytest

from tests.report.conftest import marker
from toolkit.report.charts import MARKER_SIZE
from toolkit.report.run_data import (
    interval_figures,
    read_decodes,
    read_splits,
    read_stages,
)
from toolkit.report.run_folder import RunFolder
from toolkit.report.run_page import error_table
from toolkit.score.results import Result, read_results


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("2026-01-02T12:00:00+00:00", "done"),
        ("2026-01-02T14:00:00+00:00", "failed"),
        ("2026-01-02T12:00:00", "failed"),
        ("Traceback", "failed"),
    ],
)
def test_a_failed_stage_counts_as_done_once_the_run_went_past_it(made_up, line, kind):
    """A trial with other settings failed; with the earlier settings the run reached stage 5."""
    for number, hour in ((4, 11), (5, 13)):
        done = marker(number, "Stage")
        done = dataclasses.replace(done, started=f"2026-01-02T{hour}:00:00+00:00")
        done.write(made_up.root / f"stages/{number:02d}.json")
    made_up.write("stages/04.failed.txt", f"no such text\n\n{line}\nTraceback")
    first, second = read_stages(RunFolder.open(made_up.root))
    assert (first.number, first.state, second.state) == (4, kind, "done")


def test_a_failed_stage_without_outputs_stays_failed(made_up):
    later = dataclasses.replace(marker(5, "Stage"), started="2026-01-02T13:00:00+00:00")
    later.write(made_up.root / "stages/05.json")
    made_up.write("stages/04.failed.txt", "no such text\n\n2026-01-02T12:00:00+00:00\nTraceback")
    assert [stage.state for stage in read_stages(RunFolder.open(made_up.root))] == [
        "failed",
        "done",
    ]


def read(made_up):
    run = RunFolder.open(made_up.root)
    return {decode.name: decode for decode in read_decodes(run, read_splits(run))}


def test_an_utterance_that_no_system_has_decoded_does_not_count(made_up):
    """Its features could not be extracted; the recipe's results are without it too."""
    whole = list(made_up.texts)
    made_up.data()
    made_up.texts = tuple(whole[:3])
    for system in ("mono", "tri"):
        made_up.decode(system, splits=("dev",))
    (row,) = read_results(made_up.root / "decode/mono/rows.json")
    decodes = read(made_up)
    for system in ("mono", "tri"):
        score = decodes[system].score
        assert [u.id for u in score.utterances] == ["dev-0", "dev-1", "dev-2"]
        assert score.percent == pytest.approx(row.wer, abs=0.005)


def test_utterances_that_one_system_lacks_count_as_its_errors(made_up):
    made_up.data()
    for system in ("mono", "tri"):
        made_up.decode(system, splits=("dev",))
    path = made_up.root / "decode/tri/dev/text"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    decodes = read(made_up)
    assert len(decodes["mono"].score.utterances) == len(decodes["tri"].score.utterances) == 4
    assert decodes["tri"].by_id["dev-0"].errors == len(made_up.texts[0].split())


LETTER = 7.0
"""At least the width of a digit in pixels."""


def result(system, lm, wer=10.0):
    counts = {"insertions": 0, "deletions": 0, "substitutions": 1, "ref_words": 10}
    return Result(system, "test", lm, wer=wer, cer=5.0, rtf=0.1, command="run.py", **counts)


def test_systems_have_colours_and_language_models_shapes():
    names = ["mono", "tri", "lda", "sat", "ce", "smbr", "chain", "combined"]
    rows = [result(name, lm) for name in names for lm in ("3gram", "4gram")]
    wide = interval_figures(rows).partition('<div class="narrow">')[0]
    markers = re.findall(r'<path class="marker (c\d)" d="(.*?)"><title>(\w+) (\w+)', wide)
    assert len(markers) == len(rows)
    assert len({(system, colour) for colour, _, system, _ in markers}) == len(names)
    assert len({colour for colour, _, _, _ in markers}) == len(names)
    # A square has straight sides, a circle arcs.
    assert {(lm, "h" in path) for _, path, _, lm in markers} == {("3gram", False), ("4gram", True)}
    swatches = re.findall(r'swatch (c\d)"></i>(\w+)', error_table(rows).html())
    assert set(swatches) == {(colour, system) for colour, _, system, _ in markers}


@pytest.mark.parametrize("highest", [100.0, 10.0, 9.0])
def test_markers_keep_a_distance_from_numbers_and_names(highest):
    rows = [result("mono", "3gram", highest), result("a" * 60, "4gram", 0.0)]
    for drawing in re.findall(r"<svg.*?</svg>", interval_figures(rows)):
        width = float(re.search(r'viewBox="0 0 (\d+)', drawing)[1])
        right_marker, left_marker = (
            float(x) + MARKER_SIZE for x in re.findall(r'marker \w+" d="M([\d.]+)', drawing)
        )
        number = width - LETTER * len(f"{highest:.2f}")
        assert right_marker + MARKER_SIZE <= number - MARKER_SIZE
        names = re.findall(r'x="0" y="[\d.]+">([^<]+)', drawing)
        assert LETTER * max(map(len, names)) + MARKER_SIZE <= left_marker - MARKER_SIZE


def test_measured_error_rates_with_speakers_unknown_are_in_the_table():
    rows = [result("sat", "4gram"), result("lstm", "4gram")]
    assert "speaker unknown" not in error_table(rows).html()
    html = error_table([replace(rows[0], wer_unknown_speaker=17.5), rows[1]]).html()
    assert "WER %, speaker unknown" in html
    assert "17.50" in html
