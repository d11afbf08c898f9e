"""The charts and tables of error rates."""

import re
from dataclasses import replace

import pytest

from toolkit.report.charts import MARKER_SIZE
from toolkit.report.run_data import error_table, interval_figures
from toolkit.score.results import Result

LETTER = 7.0
"""At least the width of a digit in pixels."""


def result(system, lm, wer=10.0):
    counts = {"insertions": 0, "deletions": 0, "substitutions": 1, "ref_words": 10}
    return Result(system, "test", lm, wer=wer, cer=5.0, rtf=0.1, command="run.py", **counts)


def test_systems_have_colours_and_language_models_shapes():
    names = ["mono", "tri", "lda", "sat", "ce", "smbr", "chain", "combined"]
    rows = [result(name, lm) for name in names for lm in ("3gram", "4gram")]
    wide = interval_figures(rows).partition('<div class="narrow">')[0]
    found = re.findall(r'<path class="marker (c\d)" d="(.*?)"><title>(\w+) (\w+)', wide)
    assert len(found) == len(rows)
    assert len({(system, colour) for colour, _, system, _ in found}) == len(names)
    assert len({colour for colour, _, _, _ in found}) == len(names)
    # A square has straight sides, a circle arcs.
    assert {(lm, "h" in path) for _, path, _, lm in found} == {("3gram", False), ("4gram", True)}
    swatches = re.findall(r'swatch (c\d)"></i>(\w+)', error_table(rows).html())
    assert set(swatches) == {(colour, system) for colour, _, system, _ in found}


@pytest.mark.parametrize("highest", [100.0, 10.0, 9.0])
def test_a_marker_stands_off_the_number_and_the_name(highest):
    rows = [result("mono", "3gram", highest), result("a" * 60, "4gram", 0.0)]
    for drawing in re.findall(r"<svg.*?</svg>", interval_figures(rows)):
        width = float(re.search(r'viewBox="0 0 (\d+)', drawing)[1])
        right, left = (
            float(x) + MARKER_SIZE for x in re.findall(r'marker \w+" d="M([\d.]+)', drawing)
        )
        number = width - LETTER * len(f"{highest:.2f}")
        assert right + MARKER_SIZE <= number - MARKER_SIZE
        names = re.findall(r'x="0" y="[\d.]+">([^<]+)', drawing)
        assert LETTER * max(map(len, names)) + MARKER_SIZE <= left - MARKER_SIZE


def test_error_rates_with_speakers_unknown_are_in_the_table_where_they_were_measured():
    rows = [result("sat", "4gram"), result("lstm", "4gram")]
    assert "speaker unknown" not in error_table(rows).html()
    html = error_table([replace(rows[0], wer_unknown_speaker=17.5), rows[1]]).html()
    assert "WER %, speaker unknown" in html
    assert "17.50" in html
