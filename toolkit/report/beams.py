"""The report's curves of error rate against the time of the search, by the width of its beam."""

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.report.chart import Chart, Series
from toolkit.report.curves import margins
from toolkit.report.folder import RunFolder
from toolkit.report.page import figure, side_by_side

BEAMS, SWEEP = "beams.json", "sweep.json"
"""Written by `python -m benchmarks beams --json`, and by the CTC recipe."""


def beam_figures(run: RunFolder) -> str:
    """Return a curve for each of the files that the run has."""
    charts = [_beams(run.json(BEAMS)), _sweep(run.json(SWEEP))]
    return side_by_side(filter(None, charts)) if any(charts) else ""


def _beams(found: Any) -> str:
    rows = _rows(found, "widths")
    points = [
        (row["real_time_factor"], row["wer"], f"beam {row['beam']:g}, {row['active']:,} states")
        for row in rows
    ]
    caption = (
        "Each point is a width of the search; the time is of search and rescoring on one core. "
        f"System {found['system']}, by python -m benchmarks beams."
        if rows
        else ""
    )
    return _curve(points, "real-time factor", caption)


def _sweep(found: Any) -> str:
    rows = _rows(found, "rows")
    points = [(row["seconds"], row["wer"], f"width {row['width']:,}") for row in rows]
    caption = (
        f"Each point is a width of the CTC search, timed on all of {found['split']}."
        if rows
        else ""
    )
    return _curve(points, "seconds", caption)


def _rows(found: Any, key: str) -> Sequence[Mapping[str, Any]]:
    return found.get(key, []) if isinstance(found, dict) else []


def _curve(points: Sequence[tuple[float, float, str]], x_label: str, caption: str) -> str:
    if len(points) < 2:
        return ""
    x, y, names = zip(*sorted(points), strict=True)
    titles = [f"{name}: {rate:.2f} %" for name, rate in zip(names, y, strict=True)]
    series = Series("", x, y, 0, markers=True, titles=titles)
    label = "WER in % against the time of the search"
    chart = Chart(label, x_label, "WER in %", [series], y_range=margins(y))
    return figure(chart, "Beam: WER against time", caption)
