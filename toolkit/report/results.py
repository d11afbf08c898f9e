"""The report's results: error rates with intervals, confidences, and grids of tuned weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from toolkit.report.chart import SHAPES, linear_ticks, marker
from toolkit.report.folder import RunFolder
from toolkit.report.page import HALF, NARROW, Cell, Column, Row, Table, side_by_side
from toolkit.report.stages import StageView
from toolkit.score.results import Result, ResultsError, read_results

LETTER = 7.3
"""Width of a letter of a system's name in pixels."""
MARKER = 5.0
"""Half of the size of a system's marker in pixels."""


def read_rows(run: RunFolder, stages: Sequence[StageView]) -> list[Result]:
    """Return the rows of `decode/*/rows.json`, in the order of the stages, and of `results.json`.

    The former exist before the recipe is finished, and are newer when a stage has run again; the
    latter has the error rates with speakers unknown.
    """
    made = [name for stage in stages if stage.marker for name in stage.marker.outputs]
    order = {f"{name}/rows.json": n for n, name in enumerate(made)}
    paths = run.find("decode/*/rows.json")
    paths.sort(key=lambda path: order.get(run.name(path), len(order)))
    rows: dict[tuple[str, str, str], Result] = {}
    for path in [*paths, run.root / "results.json"]:
        try:
            for row in read_results(path):
                first = rows.setdefault(row.key, row)
                if replace(row, wer_unknown_speaker=None) == first:
                    rows[row.key] = row
        except ResultsError as error:
            run.note(path, error)
    return list(rows.values())


def splits_of(rows: Sequence[Result]) -> list[str]:
    """Return the splits in the order of their rows."""
    return list(dict.fromkeys(row.split for row in rows))


def best_of(rows: Sequence[Result]) -> dict[str, Result]:
    """Return the row with the lowest WER of each split."""
    return {
        split: min((row for row in rows if row.split == split), key=lambda row: row.wer)
        for split in splits_of(rows)
    }


def compared_splits(rows: Sequence[Result]) -> list[str]:
    """Return the splits with several rows, or all splits if there are none."""
    every = splits_of(rows)
    return [s for s in every if sum(row.split == s for row in rows) > 1] or every


def colours_of(rows: Sequence[Result]) -> dict[str, int]:
    """Return the colour of each system, an index into the page's palette."""
    return {name: n for n, name in enumerate(dict.fromkeys(row.system for row in rows))}


def shapes_of(rows: Sequence[Result]) -> dict[str, str]:
    """Return the shape of the markers of each language model."""
    names = dict.fromkeys(row.lm for row in rows)
    return {name: SHAPES[n % len(SHAPES)] for n, name in enumerate(names)}


def error_table(rows: Sequence[Result]) -> Table:
    """Return a table of WER with interval and CER, a row per system and language model."""
    splits, best = splits_of(rows), best_of(rows)
    found = {row.key: row for row in rows}
    names = list(dict.fromkeys((row.system, row.lm) for row in rows))
    colours = colours_of(rows)
    alone = {row.split for row in rows if row.unknown_speaker}
    table = []
    for system, lm in names:
        cells = [Cell(system, lm), Cell(lm)]
        for split in splits:
            row = found.get((system, split, lm))
            if row is None:
                cells += [Cell("-")] * (2 + (split in alone))
                continue
            first = row.wer == best[split].wer
            cells.append(Cell(f"{row.wer:.2f}", row.interval, best=first))
            if split in alone:
                cells.append(Cell(row.unknown_speaker or "-"))
            cells.append(Cell(f"{row.cer:.2f}"))
        table.append(Row(cells, colours[system]))
    columns = [Column("system"), Column("LM", text=True, extra=True)]
    for split in splits:
        columns.append(Column("WER %, 95 % interval", split))
        if split in alone:
            columns.append(Column("WER %, speaker unknown", split))
        columns.append(Column("CER %", split, extra=True))
    note = (
        "In bold: the lowest of each split. Error rates of splits that weights were tuned on are "
        "optimistic."
    )
    if alone:
        note += " Speaker unknown: every utterance recognised alone, by the bundle of the system."
    return Table("Error rates", columns, table, note)


def gains_table(run: RunFolder) -> str:
    """Return the relative WER reductions of recipes that compare with a baseline (C33)."""
    found = run.json("werr.json") or {}
    splits = list(dict.fromkeys(gain["split"] for gains in found.values() for gain in gains))
    rows = []
    for system, gains in found.items():
        by_split = {gain["split"]: gain for gain in gains}
        cells = [_gain(by_split.get(split, {})) for split in splits]
        rows.append(Row([Cell(system), *cells]))
    columns = [Column("system"), *map(Column, splits)]
    note = "In percent of the baseline's WER, with the 95 % interval of a paired bootstrap."
    return Table("Relative WER reduction", columns, rows, note).html() if rows else ""


def _gain(gain: Mapping[str, float | None]) -> Cell:
    if gain.get("werr") is None:
        return Cell("-")
    interval = "" if gain["low"] is None else f"{gain['low']:.1f} to {gain['high']:.1f}"
    return Cell(f"{gain['werr']:.1f}", interval)


def detail_table(rows: Sequence[Result]) -> str:
    """Return a table of the kinds of errors and the cost of decoding, collapsed."""
    heads = ("WER %", "insertions", "deletions", "substitutions", "words", "real-time factor")
    columns = [Column("system"), Column("LM", text=True), Column("split", text=True)]
    table = [
        Row(
            [
                Cell(row.system),
                Cell(row.lm),
                Cell(row.split),
                Cell(f"{row.wer:.2f}"),
                Cell(f"{row.insertions:,}"),
                Cell(f"{row.deletions:,}"),
                Cell(f"{row.substitutions:,}"),
                Cell(f"{row.ref_words:,}"),
                Cell(f"{row.rtf:.4f}"),
            ]
        )
        for row in rows
    ]
    note = "Real-time factor: processor seconds of decoding per second of audio."
    html = Table("Kinds of errors, cost", [*columns, *map(Column, heads)], table, note).html()
    return f"<details><summary>Kinds of errors, cost of decoding</summary>{html}</details>"


def interval_figures(rows: Sequence[Result]) -> str:
    """Return, for each split, a figure of the systems' WERs with confidence intervals.

    Each system has a colour, each language model a shape. Splits with a single row are left out,
    unless there are no others.
    """
    colours, shapes = colours_of(rows), shapes_of(rows)
    figures = []
    for split in compared_splits(rows):
        chosen = [row for row in rows if row.split == split]
        figures.append(
            f"<figure><h3>{escape(split)}: WER in % with 95 % interval</h3>"
            f'<div class="wide">{_intervals(chosen, HALF[0], colours, shapes)}</div>'
            f'<div class="narrow">{_intervals(chosen, NARROW[0], colours, shapes)}</div></figure>'
        )
    return side_by_side(figures)


def _intervals(
    rows: Sequence[Result], width: float, colours: Mapping[str, int], shapes: Mapping[str, str]
) -> str:
    names = [f"{row.system} {row.lm}" for row in rows]
    left = min(0.45 * width, 4 * MARKER + LETTER * max(map(len, names)))
    numbers = LETTER * max(len(f"{row.wer:.2f}") for row in rows)
    right, step, top = width - numbers - 3 * MARKER, 26.0, 8.0
    high = max(row.wer if row.wer_high is None else row.wer_high for row in rows) or 1.0
    base = top + step * len(rows)

    def x(value: float) -> float:
        return left + (right - left) * value / high

    best = min(row.wer for row in rows)
    parts = [
        f'<svg viewBox="0 0 {width:g} {base + 24:g}" role="img" '
        f'aria-label="Error rates of {len(rows)} systems">'
    ]
    for tick in linear_ticks(0.0, high, max(3, round((right - left) / 80))):
        parts.append(
            f'<path class="grid" d="M{x(tick):.1f} {top:g}V{base:g}"/><text class="tick" '
            f'x="{x(tick):.1f}" y="{base + 18:g}" text-anchor="middle">{tick:g}</text>'
        )
    for n, (row, name) in enumerate(zip(rows, names, strict=True)):
        y, colour = top + step * (n + 0.5), f"c{colours[row.system] % 8}"
        fitting = int((left - 3 * MARKER) / LETTER)
        shown = name if len(name) <= fitting else f"{name[: fitting - 1]}…"
        if row.wer_low is not None and row.wer_high is not None:
            parts.append(
                f'<path class="whisker {colour}" d="M{x(row.wer_low):.1f} {y:g}'
                f'H{x(row.wer_high):.1f}"/>'
            )
        title = f"{name}: {row.wer:.2f} %" + (f" ({row.interval})" if row.interval else "")
        strong = " best" if row.wer == best else ""
        parts.append(
            f'<text class="label{strong}" x="0" y="{y + 4:g}">{escape(shown)}</text>'
            f"{marker(shapes[row.lm], x(row.wer), y, MARKER, colour, title)}"
            f'<text class="label{strong}" x="{width:g}" y="{y + 4:g}" text-anchor="end">'
            f"{row.wer:.2f}</text>"
        )
    return "".join([*parts, "</svg>"])


def confidence_table(run: RunFolder) -> str:
    """Return a table of the calibration of word confidences."""
    rows = [
        Row([Cell(path.parent.name), Cell(row["split"])] + [Cell(row[name]) for name in heads])
        for path in run.find("decode/*/confidence.tsv")
        for row in run.table(path)
        for heads in [("words", "correct", "ece", "nce", "calibrated_on")]
    ]
    names = ("words", "correct", "ECE", "NCE", "calibrated on")
    columns = [Column("system"), Column("split", text=True), *map(Column, names)]
    note = "ECE: expected calibration error, 0 is best; NCE: normalised cross entropy, 1 is best."
    return Table("Word confidences", columns, rows, note).html() if rows else ""
