"""Breakdown of a recipe's processing time, as a page of stacked bars (C34)."""

import json
from collections.abc import Iterable, Mapping
from html import escape

from toolkit.report.page import Page, Section
from toolkit.stages.marker import Marker
from toolkit.stages.run import Run
from toolkit.stages.stage_log import duration
from toolkit.storage.files import write_atomically

DAY = 86_400.0
PUBLISHED = {
    "labelled data and its targets": 14.0 * DAY,
    "baseline": 21.0 * 3600,
    "teacher": 2.0 * DAY,
    "unlabelled features": 7.6 * DAY,
    "targets": 2.0 * DAY,
    "student": 4.5 * DAY,
}
"""Seconds of each part in the paper (C34): "nearly 2 weeks" for features and targets of 7,000 h,
21 h for a model trained on them; 4 days for teacher and targets, 2 of them for the teacher."""


def write_breakdown(run: Run, parts: Mapping[str, Iterable[int]]) -> None:
    """Write `breakdown.html` and `breakdown.json` of the wall times in the stages' markers.

    Args:
      run: the run of the stage.
      parts: the stages of each part, all of them done, by the name of the part; without those
        that the settings do not ask for, whose markers may be of earlier settings. Parts that the
        paper reports have the names of `PUBLISHED`.
    """
    spent = {part: sum(_seconds(run, number) for number in own) for part, own in parts.items()}
    plain = {"seconds": spent, "published_seconds": PUBLISHED}
    write_atomically(run.make("breakdown.json"), json.dumps(plain, indent=1) + "\n")
    bars = _bar("This run", spent), _bar("The paper, a million hours", PUBLISHED)
    page = Page("Processing time", "Wall time of the parts of the processing.")
    page.add(Section("parts", "Parts", parts=[f'<div class="box">{"".join(bars)}</div>']))
    write_atomically(run.make("breakdown.html"), page.html())


def _seconds(run: Run, stage: int) -> float:
    marker = Marker.read(run.need(f"stages/{stage:02d}.json"))
    return 0.0 if marker is None else marker.seconds


def _bar(title: str, spent: Mapping[str, float]) -> str:
    total = sum(spent.values()) or 1.0
    labels = [f"{part} {duration(s)} ({100 * s / total:.0f} %)" for part, s in spent.items()]
    pieces = "".join(
        f'<i class="c{n}" style="flex:{seconds / total:.5f}" title="{escape(text)}"></i>'
        for n, (seconds, text) in enumerate(zip(spent.values(), labels, strict=True))
    )
    key = "".join(f'<li><i class="swatch c{n}"></i>{escape(t)}</li>' for n, t in enumerate(labels))
    return (
        f"<h3>{escape(title)}: {duration(total)}</h3>"
        f'<div class="stack" aria-hidden="true">{pieces}</div><ul class="key">{key}</ul>'
    )
