"""Further tables: published results, final error rates, beam sweep, stages (A31, A33, A39)."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.report.page import Cell, Column, Row, Table
from toolkit.score.results import Result, read_results
from toolkit.storage.reading import NATURAL, read_json, reading, validated
from toolkit.tta.published import Value, published
from toolkit.tta.runs import BenchRunError, Platform, recipe_folder, stage_times
from toolkit.tta.tables import NA, duration

_ROW = {"width": NATURAL, "seconds": float, "wer": float, "cer": float}


def published_table(item: str) -> Table:
    """Return a paper's table as printed, marked as published, with its known errors as remarks."""
    table = published(item)
    columns, digits = [], []
    for name, values in zip(table.columns, zip(*table.rows, strict=True), strict=True):
        columns.append(Column(name, text=any(isinstance(value, str) for value in values)))
        digits.append(max(map(_digits, values)))
    shares = table.percent or [[None] * (len(columns) - 1)] * len(table.rows)
    rows = [
        Row(
            [
                Cell(_value(value, places), "" if share is None else f"{share:g} %")
                for value, places, share in zip(row, digits, [None, *percent], strict=True)
            ]
        )
        for row, percent in zip(table.rows, shares, strict=True)
    ]
    note = f"{table.source}, {table.place}."
    return Table(table.title, columns, rows, note, published=True, remarks=table.errata)


def _digits(value: Value) -> int:
    """Return the number of digits after the decimal point."""
    return len(f"{value:g}".partition(".")[2]) if isinstance(value, int | float) else 0


def _value(value: Value, digits: int) -> str:
    if value is None:
        return NA
    return value if isinstance(value, str) else f"{value:,.{digits}f}"


def final_table(platforms: Sequence[Platform], first: Sequence[Result] = ()) -> Table | None:
    """Final WERs from the results.json of the recipes' runs (A33); None where there are none.

    Args:
      platforms: the platforms and their runs.
      first: results of the first platform, if its run has not yet written results.json.
    """
    found = [(0, platforms[0].name, row) for row in first]
    for colour, platform in list(enumerate(platforms))[bool(first) :]:
        folder = recipe_folder(platform.first.folder) or platform.first.folder
        found += [(colour, platform.name, row) for row in read_results(folder / "results.json")]
    splits = list(dict.fromkeys(row.split for _, _, row in found))
    cells: dict[tuple[int, str, str, str], dict[str, float]] = {}
    for colour, name, row in found:
        cells.setdefault((colour, name, row.system, row.lm), {})[row.split] = row.wer
    rows, shown = [], set()
    for (colour, name, system, lm), by in cells.items():
        rates = [Cell(f"{by[split]:.2f}" if split in by else NA) for split in splits]
        again = colour in shown
        shown.add(colour)
        first = Cell("" if again else name)
        rows.append(Row([first, Cell(system), Cell(lm), *rates], None if again else colour))
    columns = [Column("platform"), Column("system", text=True), Column("LM", text=True)]
    columns += [Column(split, "WER in percent") for split in splits]
    return Table("Final word error rates", columns, rows) if rows else None


def sweep_table(path: Path) -> Table:
    """Read the beam sweep that `toolkit tta sweep` wrote (A31); the title names its split.

    Raises:
      BenchRunError: the file is not a sweep.
    """
    with reading(path, BenchRunError, "write one by `toolkit tta sweep`", "is no sweep"):
        plain = read_json(path)
        found = validated(plain["rows"] if isinstance(plain, dict) else plain, [_ROW])
        rows = [(int(row["width"]), row["seconds"], row["wer"], row["cer"]) for row in found]
        split = plain.get("split") if isinstance(plain, dict) else None
    return Table(
        "Beam width against time and accuracy" + (f" on {split}" if split else ""),
        [Column("width"), Column("seconds"), Column("WER"), Column("CER")],
        [
            Row([Cell(f"{w:,}"), Cell(f"{s:.3g}"), Cell(f"{wer:.2f}"), Cell(f"{cer:.3f}")])
            for w, s, wer, cer in rows
        ],
    )


def stage_table(platforms: Sequence[Platform]) -> Table | None:
    """Wall time of every stage of the recipes' runs (A39); None where no stage has finished."""
    times = [stage_times(platform.first.folder) for platform in platforms]
    titles = {number: title for stages in times for number, title, _ in stages}
    if not titles:
        return None
    by_stage = [{number: seconds for number, _, seconds in stages} for stages in times]
    rows = []
    for number in sorted(titles):
        own = [stages.get(number) for stages in by_stage]
        cells = [Cell(NA if s is None else duration(s)) for s in own]
        rows.append(Row([Cell(f"{number}"), Cell(titles[number]), *cells]))
    total = [Cell(duration(sum(stages.values()))) for stages in by_stage]
    rows.append(Row([Cell(""), Cell("all"), *total]))
    columns = [Column("stage"), Column("", text=True), *(Column(p.name) for p in platforms)]
    return Table("Wall time of the recipe's stages", columns, rows)
