"""The page that compares two runs: settings, error rates side by side, utterances that changed."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from toolkit.report import corpus
from toolkit.report.decodes import Decode, read_decodes
from toolkit.report.errors import KEY, alignment
from toolkit.report.folder import RunFolder
from toolkit.report.page import Cell, Column, Page, Row, Section, Table
from toolkit.report.provenance import commands_table, problems
from toolkit.report.stages import StageView, read_stages
from toolkit.report.versus import difference, p_text
from toolkit.score.alignment import UtteranceScore
from toolkit.score.compare import compare
from toolkit.score.wer import ScoreError
from toolkit.storage.files import write_atomically

STYLE = Path(__file__).with_name("run_page.css")
READ = "Of what the stages have read."
MOST_CHANGED = 40
"""Most utterances of a split that are listed as better, and as worse."""
MOST_CHARACTERS = 200
"""Most characters of a setting that are shown."""

Decodes = Mapping[tuple[str, str], Decode]


def write_comparison(first: Path, second: Path, out: Path) -> list[str]:
    """Write the page that compares the runs in two directories to the file `out`.

    Returns:
      The files that could not be read, with reasons; the page lists them too.

    Raises:
      ReportError: one of the two is no run directory.
    """
    runs = RunFolder.open(first), RunFolder.open(second)
    names = _names(runs)
    stages: list[list[StageView]] = [run.part(partial(read_stages, run), []) for run in runs]
    decodes: list[Decodes] = [run.part(partial(_decodes, run), {}) for run in runs]
    page = Page(
        f"{names[0]} and {names[1]}",
        f"A is {names[0]}, B is {names[1]}. Differences are B minus A: below 0, B is better.",
        style=STYLE.read_text(encoding="utf-8"),
        footer="Made by toolkit report.",
    )
    page.add(Section("results", "Error rates", parts=[_error_table(*decodes)]))
    differing = runs[1].part(lambda: _settings_table(*stages), "")
    page.add(Section("settings", "Settings that differ", READ, [differing]))
    page.add(Section("utterances", "Utterances that changed", parts=_changes(*decodes)))
    made = [
        f'<h3 class="over">{name}</h3>{table.html()}'
        for name, run, one in zip("AB", runs, stages, strict=True)
        if (table := run.part(partial(commands_table, one), None))
    ]
    page.add(Section("provenance", "Provenance", parts=[*made, *map(problems, runs)]))
    write_atomically(out, page.html())
    return list(dict.fromkeys(problem for run in runs for problem in run.problems))


def _names(runs: Sequence[RunFolder]) -> tuple[str, str]:
    """Return the names of the directories, with as many parents as tell them apart."""
    first, second = (run.root.parts for run in runs)
    depths = range(1, max(len(first), len(second)) + 1)
    depth = next((n for n in depths if first[-n:] != second[-n:]), 1)
    return "/".join(first[-depth:]), "/".join(second[-depth:])


def _decodes(run: RunFolder) -> Decodes:
    """Return the decodes by name and split."""
    found = read_decodes(run, corpus.read_splits(run))
    return {(decode.name, decode.split): decode for decode in found}


def _error_table(first: Decodes, second: Decodes) -> str:
    keys = sorted({**first, **second}, key=lambda key: (key[1], key[0]))
    rows = [
        Row([Cell(name), Cell(split), *_cells(first.get(key), second.get(key))])
        for key in keys
        for name, split in [key]
    ]
    heads = ("A: WER %", "B: WER %", "difference", "p", "better, worse")
    columns = [Column("system"), Column("split", text=True), *map(Column, heads)]
    note = (
        "The difference has its 95 % interval, in bold where NIST's matched pairs test (MAPSSWE) "
        "(of few segments, the exact test that exchanges the systems of utterances) "
        "has a p below 0.05; then the numbers of utterances with fewer and with more errors in B. "
        "Only decodes of the same utterances with the same references are compared."
    )
    return Table("Word error rates", columns, rows, note, stacked=True).html() if rows else ""


def _cells(first: Decode | None, second: Decode | None) -> list[Cell]:
    own = [Cell(f"{one.score.percent:.2f}" if one else "-") for one in (first, second)]
    if first is None or second is None:
        return [*own, Cell("-"), Cell("-"), Cell("-")]
    try:
        found = compare(first.score, second.score)
    except ScoreError:
        return [*own, Cell("other references"), Cell("-"), Cell("-")]
    test = difference(first, second)
    interval = f"{found.interval.low:+.2f} to {found.interval.high:+.2f}" if found.interval else ""
    better, _, worse = found.utterances
    return [
        *own,
        Cell(f"{found.difference:+.2f}", interval, best=test.significant),
        Cell(p_text(test.p_value), f"{test.test.segments:,} segments"),
        Cell(f"{better:,}, {worse:,}"),
    ]


def _settings_table(first: Sequence[StageView], second: Sequence[StageView]) -> str:
    sides = _flat(_settings(first)), _flat(_settings(second))
    names = [name for name in sorted({**sides[0], **sides[1]}) if _differ(name, *sides)]
    rows = [
        Row([Cell(name), *map(Cell, _shown(*(side.get(name, "not read") for side in sides)))])
        for name in names
    ]
    columns = [Column("setting"), Column("A", text=True), Column("B", text=True)]
    if not rows:
        return '<div class="box"><p>None.</p></div>'
    return Table("Settings", columns, rows).html()


def _differ(name: str, first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    return first.get(name) != second.get(name)


def _settings(stages: Sequence[StageView]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for stage in stages:
        found |= stage.marker.provenance.parameters if stage.marker else {}
    return found


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Return nested settings as `section.key`, each as JSON."""
    if isinstance(value, dict) and value:
        parts = (
            _flat(inner, f"{name}.{key}" if name else str(key)) for key, inner in value.items()
        )
        return {key: text for part in parts for key, text in part.items()}
    return {name: json.dumps(value, ensure_ascii=False)}


def _shown(*sides: str) -> list[str]:
    """Cut the texts of a setting that differs; long ones begin shortly before they differ."""
    skipped = 0
    if max(map(len, sides)) > MOST_CHARACTERS:
        letters = enumerate(zip(*sides, strict=False))
        differing = (place for place, each in letters if len(set(each)) > 1)
        skipped = max(0, next(differing, min(map(len, sides))) - MOST_CHARACTERS // 4)
    texts = [f"{'…' if skipped else ''}{side[skipped:]}" for side in sides]
    return [
        text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…" for text in texts
    ]


def _changes(first: Decodes, second: Decodes) -> list[str]:
    """Return the utterances of each split with other errors, by the system of B with fewest."""
    parts = []
    for split in sorted({split for _, split in second}):
        both = [key for key in second if key[1] == split and key in first]
        both = [key for key in both if _comparable(first[key], second[key])]
        if both:
            key = min(both, key=lambda key: second[key].score.errors)
            parts += _changed(first[key], second[key])
    return [KEY, *parts] if parts else []


def _comparable(first: Decode, second: Decode) -> bool:
    sides = ([(u.id, u.ref_text) for u in decode.score.utterances] for decode in (first, second))
    return next(sides) == next(sides)


def _changed(first: Decode, second: Decode) -> list[str]:
    pairs = list(zip(first.score.utterances, second.score.utterances, strict=True))
    pairs.sort(key=lambda pair: (pair[1].errors - pair[0].errors, pair[0].id))
    better = [pair for pair in pairs if pair[1].errors < pair[0].errors]
    worse = [pair for pair in reversed(pairs) if pair[1].errors > pair[0].errors]
    title = escape(f"{second.split}, by {second.name}")
    return [
        f'<h3 class="over">{title}: {len(found):,} {kind}</h3>'
        + "".join(_card(*pair) for pair in found[:MOST_CHANGED])
        + (_more(len(found)) if len(found) > MOST_CHANGED else "")
        for kind, found in (("better", better), ("worse", worse))
        if found
    ]


def _more(number: int) -> str:
    return f'<p class="note">And {number - MOST_CHANGED:,} more.</p>'


def _card(first: UtteranceScore, second: UtteranceScore) -> str:
    return (
        f'<article class="box utterance"><h4><code>{escape(first.id)}</code> <span>'
        f"{first.errors} errors, then {second.errors}</span></h4>"
        f'<dl class="said"><dt>said</dt><dd>{escape(first.ref_text)}</dd>'
        f"<dt>A</dt><dd>{alignment(first)}</dd><dt>B</dt><dd>{alignment(second)}</dd></dl>"
        "</article>"
    )
