"""Breakdown of a recipe's processing time, as a page beside the paper's figures (C34)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from toolkit.report.pages import Cell, Column, Page, Row, Section, Table, macros
from toolkit.stages.log import duration
from toolkit.stages.marker import Marker
from toolkit.stages.run import Run
from toolkit.storage.files import write_atomically

HOUR, DAY = 3600.0, 86_400.0


@dataclass(frozen=True)
class Published:
    """A processing time of the paper."""

    seconds: float
    """The time in seconds."""
    text: str
    """The time as the paper states it."""


@dataclass(frozen=True)
class Subsystem:
    """Parts of the processing whose times the paper reports together."""

    title: str
    """Heading of its parts in the table."""
    parts: Mapping[str, Published]
    """The paper's time of each part."""
    total: str = ""
    """The paper's time of all parts, where it states one."""


STORING = "storing of the utterances"
"""A part that the recipe does not have: its simulation writes the recordings where they stay."""
STUDENT = Subsystem(
    "student: from stored audio to model",
    {
        "unlabelled features and targets": Published(7.6 * DAY, "7.6 days"),
        "student": Published(4.5 * DAY, "4.5 days"),
    },
    "12 days",
)
"""The paper's breakdown of the student's pipeline (figure 3)."""
SUBSYSTEMS = (
    STUDENT,
    Subsystem(
        "teacher and storing: in addition",
        {"teacher": Published(2 * DAY, "2 days"), STORING: Published(2 * DAY, "2 days")},
        "4 days",
    ),
    Subsystem(
        "supervised system of 7,000 hours",
        {
            "labelled data and its targets": Published(14 * DAY, "nearly 2 weeks"),
            "baseline": Published(21 * HOUR, "about 21 hours"),
        },
    ),
)
"""All times of the paper (C34, section VIII-B). Of the 4 days for the teacher and the storing, the
teacher takes 2."""


def write_breakdown(run: Run, parts: Mapping[str, Iterable[int]]) -> None:
    """Write `breakdown.html` and `breakdown.json` of the wall times in the stages' markers.

    Args:
      run: the run of the stage.
      parts: the stages of each part, all of them done, by the name of the part; without those
        that the settings do not ask for, whose markers may be of earlier settings. Parts that the
        paper reports have the names of `SUBSYSTEMS`.
    """
    spent = {part: sum(_seconds(run, n) for n in stages) for part, stages in parts.items()}
    published = {part: t.seconds for s in SUBSYSTEMS for part, t in s.parts.items()}
    plain = {"seconds": spent, "published_seconds": published}
    write_atomically(run.make("breakdown.json"), json.dumps(plain, indent=1) + "\n")
    colours = {part: number for number, part in enumerate(spent)}
    texts = {part: duration(seconds) for part, seconds in spent.items()}
    of_paper = {part: time.seconds for part, time in STUDENT.parts.items()}
    paper_texts = {part: time.text for part, time in STUDENT.parts.items()}
    total = duration(sum(spent.values()))
    run_bar = _bar(f"This run, all parts: {total}", spent, texts, colours)
    title = f"The paper, a million hours, the student: {STUDENT.total}"
    paper_bar = _bar(title, of_paper, paper_texts, colours)
    page = Page("Processing time", "Wall time of the parts of the processing.")
    box = macros("parts.html").boxed([run_bar, paper_bar])
    page.add(Section("parts", "Parts", parts=[box, _table(spent).html()]))
    write_atomically(run.make("breakdown.html"), page.html())


def _seconds(run: Run, stage: int) -> float:
    marker = Marker.read(run.need(f"stages/{stage:02d}.json"))
    return 0.0 if marker is None else marker.seconds


def _bar(
    title: str, seconds: Mapping[str, float], texts: Mapping[str, str], colours: Mapping[str, int]
) -> Markup:
    """Return a bar with a piece for each part, and its key.

    Args:
      title: what all parts together take.
      seconds: the time of each part.
      texts: the same times for the key.
      colours: index of each part's colour in the page's palette.
    """
    total = sum(seconds.values()) or 1.0
    labels = {
        part: f"{part} {texts[part]} ({100 * s / total:.0f} %)" for part, s in seconds.items()
    }
    pieces = [(f"c{colours[part]}", s / total, labels[part]) for part, s in seconds.items()]
    key = macros("parts.html").key((f"swatch c{colours[p]}", text) for p, text in labels.items())
    return macros("parts.html").stacked_bar(title, pieces, key)


def _table(spent: Mapping[str, float]) -> Table:
    """Return the run's times beside those of the paper, and the parts that the paper lacks."""
    rows = []
    for subsystem in SUBSYSTEMS:
        total = sum(spent.get(part, 0.0) for part in subsystem.parts)
        heading = subsystem.title, duration(total), subsystem.total
        rows.append(Row([Cell(text, best=True) for text in heading]))
        for part, time in subsystem.parts.items():
            seconds = duration(spent[part]) if part in spent else ""
            rows.append(Row([Cell(part), Cell(seconds), Cell(time.text)]))
    reported = {part for subsystem in SUBSYSTEMS for part in subsystem.parts}
    other = {part: seconds for part, seconds in spent.items() if part not in reported}
    heading = "other parts", duration(sum(other.values())), ""
    rows.append(Row([Cell(text, best=True) for text in heading]))
    rows += [Row([Cell(part), Cell(duration(s)), Cell("")]) for part, s in other.items()]
    return Table(
        "Times beside the paper's",
        [Column("part"), Column("this run"), Column("the paper")],
        rows,
        note="The paper states 12 days for the student; its parts, rounded, add up to 12.1. The"
        " teacher and the storing take 4 days more, the teacher 2 of them.",
    )
