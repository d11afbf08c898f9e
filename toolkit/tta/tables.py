"""Tables of time to accuracy, and tables that the papers published, which are marked."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from toolkit.report.pages import Cell, Column, Table, TableRow
from toolkit.score.results import Result, read_results
from toolkit.storage.reading import NATURAL, read_json, reading, validated
from toolkit.tta.config import TtaConfig
from toolkit.tta.runs import BenchRunError, Platform, recipe_folder, stage_times
from toolkit.tta.utilisation import mean_utilisation

PUBLISHED_FILE = Path(__file__).with_name("published.json")
PUBLISHED_MARK = "published"
"""Mark of every published row."""
Value = str | float | None


@dataclass(frozen=True)
class Published:
    """A table of a paper."""

    item: str
    """Item code in the project's list of the papers' items, such as A32."""
    title: str
    source: str
    """Title of the paper."""
    place: str
    """Table, figure or section of the paper."""
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    """Values as printed; None where the paper has NA or nothing."""
    percent: tuple[tuple[float | None, ...], ...] = ()
    """Percentages as printed beside the values, by row, without the first column."""
    errata: tuple[str, ...] = ()
    """Known errors of the table, and where the values here differ from the print."""

    def row(self, name: Value) -> dict[str, Value]:
        """Return the row whose first value is `name`, as values by column.

        Raises:
          KeyError: there is no such row.
        """
        for row in self.rows:
            if row[0] == name:
                return dict(zip(self.columns, row, strict=True))
        raise KeyError(name)


def published(item: str) -> Published:
    """Return the table of an item, such as `published("A32")`.

    Raises:
      KeyError: there is no table of that item.
    """
    return published_tables()[item]


@cache
def published_tables() -> dict[str, Published]:
    """Return all tables by item."""
    content = json.loads(PUBLISHED_FILE.read_text(encoding="utf-8"))
    return {
        item: _read_published(item, entry, content["sources"])
        for item, entry in content["tables"].items()
    }


def _read_published(item: str, entry: dict[str, Any], sources: dict[str, str]) -> Published:
    """Read one published table."""
    return Published(
        item=item,
        title=entry["title"],
        source=sources[entry["source"]],
        place=entry["place"],
        columns=tuple(entry["columns"]),
        rows=tuple(map(tuple, entry["rows"])),
        percent=tuple(map(tuple, entry.get("percent", ()))),
        errata=tuple(entry.get("errata", ())),
    )


NA = "NA"
NAMES = {"cer": "CER", "wer": "WER"}
Times = Callable[[Platform, str, float], float | None]


def minutes(value: float | None) -> str:
    """Format minutes with at least three digits: 2,450, 12.3 and 1.04; NA for None."""
    if value is None:
        return NA
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def duration(seconds: float) -> str:
    """Format a time in a suitable unit: 48 s, 12.5 min, 3.2 h, 2.4 d."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        # 80 s rather than 1.3 min: the smaller unit up to one and a half of the larger.
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def tta_table(platforms: Sequence[Platform], config: TtaConfig, title: str) -> Table:
    """Return a table of TTA in minutes and in percent of the first platform's (A32, A34)."""

    def times(platform: Platform, metric: str, target: float) -> float | None:
        return platform.tta(metric, target, config.epochs)

    rows = [
        TableRow(_row_of_times(platform, platforms[0], config, times), colour)
        for colour, platform in enumerate(platforms)
    ]
    several = any(len(platform.runs) > 1 for platform in platforms)
    return Table(
        title,
        [Column("platform"), *_target_columns(config)],
        _mark_best(rows, [[times(p, *target) for target in config.targets] for p in platforms]),
        note=f"Minutes from the creation of the model until the median of the last {config.epochs} "
        f"epochs reached the accuracy; percentages are relative to {platforms[0].name}; NA: never "
        "reached." + (" Medians over the runs of a platform." if several else ""),
    )


def rules_table(platforms: Sequence[Platform], config: TtaConfig) -> Table:
    """Return a table of the same logs' times by three rules (A26, A40)."""
    rules: list[tuple[str, Times]] = [
        (f"median of {config.epochs} epochs", lambda p, m, a: p.tta(m, a, config.epochs)),
        ("DAWNBench", Platform.dawnbench),
        ("MLPerf", Platform.mlperf),
    ]
    rows = [
        TableRow(
            [
                Cell("" if number else platform.name),
                Cell(rule),
                *(Cell(minutes(times(platform, *target))) for target in config.targets),
            ],
            None if number else colour,
        )
        for colour, platform in enumerate(platforms)
        for number, (rule, times) in enumerate(rules)
    ]
    return Table(
        "The same logs by three rules, in minutes",
        [Column("platform"), Column("rule", text=True), *_target_columns(config)],
        rows,
        note="DAWNBench: the time of the first epoch that reaches the accuracy, in the fastest "
        "run. MLPerf: the mean time of this epoch over the runs, without the best and the worst "
        "run; at least three runs are needed.",
    )


def _row_of_times(
    platform: Platform, base: Platform, config: TtaConfig, times: Times
) -> list[Cell]:
    """Return the cells of a platform: its minutes, also in percent of the base platform's."""
    cells = [Cell(platform.name)]
    for target in config.targets:
        tta, base_tta = times(platform, *target), times(base, *target)
        share = "" if tta is None or not base_tta else f"{100 * tta / base_tta:.0f} %"
        cells.append(Cell(minutes(tta), share))
    return cells


def _target_columns(config: TtaConfig) -> list[Column]:
    """Return a column for each target accuracy."""
    return [Column(f"{a:g} %", f"{NAMES[metric]} at most") for metric, a in config.targets]


def _mark_best(
    rows: Sequence[TableRow], values: Sequence[Sequence[float | None]]
) -> list[TableRow]:
    """Mark the smallest value of each column after the first, if there are several rows."""
    if len(rows) < 2:
        return list(rows)
    best = []
    for column in zip(*values, strict=True):
        known_values = [value for value in column if value is not None]
        best.append(min(known_values, default=math.nan))
    return [
        TableRow(
            [
                row.cells[0],
                *(
                    Cell(cell.text, cell.detail, value == top)
                    for cell, value, top in zip(row.cells[1:], row_values, best, strict=True)
                ),
            ],
            row.colour,
        )
        for row, row_values in zip(rows, values, strict=True)
    ]


def cost_table(platforms: Sequence[Platform]) -> Table | None:
    """Return a table of the platforms' prices (A29); None if no platform has a price.

    Prices in different currencies are not compared.
    """
    priced = [(n, p, p.price) for n, p in enumerate(platforms) if p.price and p.price.total]
    if not priced:
        return None
    base = priced[0][2]
    currencies = sorted({price.currency for _, _, price in priced})
    rows = [
        TableRow(
            [
                Cell(platform.name),
                Cell(_money(price.total) + (f" {price.currency}" if len(currencies) > 1 else "")),
                Cell(f"{price.total / base.total:.2f}" if price.currency == base.currency else NA),
                Cell(_money(price.devices)),
                Cell(_money(price.processors)),
                Cell(price.as_of or NA),
            ],
            colour,
        )
        for colour, platform, price in priced
    ]
    names = ("platform", "total", "relative", "devices", "processors")
    return Table(
        f"Prices in {', '.join(currencies)}",
        [*map(Column, names), Column("as of")],
        rows,
        note="As entered by the user; as in the paper, storage is not included.",
    )


def _money(value: float | None) -> str:
    """Format an amount of money."""
    if value is None:
        return NA
    return f"{value:.2g}" if 0 < value < 0.1 else f"{value:,.2f}"


def price_table(platforms: Sequence[Platform], config: TtaConfig) -> Table | None:
    """Return a table of TTA times price (A38); None if no platform has a price.

    Platforms whose prices are not in the currency of the first price have no value.
    """
    base = next((p for p in platforms if p.price and p.price.total), None)
    if base is None:
        return None

    def relative(platform: Platform, metric: str, target: float) -> float | None:
        # (TTA price) / (TTA price of the base platform).
        tta, base_tta = (p.tta(metric, target, config.epochs) for p in (platform, base))
        price = platform.price
        if tta is None or not base_tta or not price or not price.total:
            return None
        if price.currency != base.price.currency:
            return None
        return tta * price.total / (base_tta * base.price.total)

    values = [[relative(p, *target) for target in config.targets] for p in platforms]
    rows = [
        TableRow(
            [Cell(p.name), *(Cell(NA if v is None else f"{v:.2f}") for v in row_values)], colour
        )
        for colour, (p, row_values) in enumerate(zip(platforms, values, strict=True))
    ]
    return Table(
        f"TTA times price, {base.name} being 1",
        [Column("platform"), *_target_columns(config)],
        _mark_best(rows, values),
        note="Lower is better: 2 means twice the money for the same accuracy in the same time.",
    )


def rent_table(platforms: Sequence[Platform], config: TtaConfig) -> Table | None:
    """Return a table of the rent until each accuracy; None if no platform has a rent."""
    rented = [(n, p, p.price) for n, p in enumerate(platforms) if p.price and p.price.per_hour]
    rows, values = [], []
    for colour, platform, price in rented:
        times = [platform.tta(*target, config.epochs) for target in config.targets]
        values.append([None if t is None else t / 60 * price.per_hour for t in times])
        per_hour = Cell(f"{price.per_hour:,.2f} {price.currency}")
        rows.append(
            TableRow([Cell(platform.name), per_hour, *map(Cell, map(_money, values[-1]))], colour)
        )
    values = [[None, *row_values] for row_values in values]
    columns = [Column("platform"), Column("an hour"), *_target_columns(config)]
    title = "Rent until the accuracy is reached"
    note = "The cost of training by DAWNBench's rule: hours of training times the price per hour."
    return Table(title, columns, _mark_best(rows, values), note) if rows else None


def published_price_table() -> Table:
    """Return TTA times price of the paper's platforms, from its tables 1 and 4 (A29, A32)."""
    costs, times = published("A29"), published("A32")
    base_times = times.rows[0]
    rows = []
    for row in times.rows:
        # TTA and price are both relative to the first platform's, as in `price_table`.
        relative = costs.row(row[0])["total"] / costs.rows[0][1]
        cells = [
            Cell(NA if value is None else f"{relative * value / start:.2f}")
            for value, start in zip(row[1:], base_times[1:], strict=True)
        ]
        total = f"{costs.row(row[0])['total']:,.2f} USD"
        rows.append(TableRow([Cell(str(row[0])), Cell(total, f"x {relative:.2f}"), *cells]))
    columns = [Column("platform"), Column("price"), *(Column(n) for n in times.columns[1:])]
    note = f"Computed here from the published prices and times: {times.source}, tables 1 and 4."
    return Table("TTA times price, Sys1$ being 1", columns, rows, note, published=True)


def efficiency_table(platforms: Sequence[Platform], config: TtaConfig) -> Table:
    """Return a table of throughput and of the utterances that training needs (A27, A38)."""
    targets = [t for t in config.targets if any(p.tta(*t, config.epochs) for p in platforms)]
    target = targets[-1] if targets else None  # the hardest target that any platform reaches
    reached = f"{NAMES[target[0]]} {target[1]:g} %" if target else "an accuracy"
    rows = []
    for colour, platform in enumerate(platforms):
        run = platform.first
        cpu, devices = mean_utilisation(run.utilisation)
        tta = run.tta(*target, config.epochs) if target else None
        # Training efficiency (A38): utterances until the target, whatever the time they took.
        needed = None if tta is None else run.examples_until(tta)
        sampled = bool(run.utilisation)
        rows.append(
            TableRow(
                [
                    Cell(platform.name),
                    Cell(str(run.log.created.batch or "varies")),
                    Cell(f"{run.log.examples_per_second:.3g}"),
                    Cell(f"{run.log.examples / max(run.log.seconds, 1e-9):.3g}"),
                    Cell(f"{100 * cpu:.0f} %" if sampled else NA),
                    Cell(f"{100 * sum(devices) / len(devices):.0f} %" if devices else "none"),
                    Cell(NA if needed is None else f"{needed:,}"),
                ],
                colour,
            )
        )
    return Table(
        "Hardware efficiency and training efficiency",
        [
            Column("platform"),
            Column("batch"),
            Column("in training", "utterances per second"),
            Column("overall", "utterances per second"),
            Column("processors", "mean utilisation"),
            Column("devices", "mean utilisation"),
            Column(f"utterances until {reached}"),
        ],
        rows,
        note="A platform is fast for two reasons: it trains on more utterances per second "
        "(hardware efficiency), or needs fewer of them (training efficiency, which large batches "
        "reduce). Figures are of each platform's first run.",
    )


_ROW = {"width": NATURAL, "seconds": float, "wer": float, "cer": float}


def published_table(item: str) -> Table:
    """Return a paper's table as printed, marked as published, with its known errors as remarks."""
    table = published(item)
    columns, digits = [], []
    for name, values in zip(table.columns, zip(*table.rows, strict=True), strict=True):
        columns.append(Column(name, text=any(isinstance(value, str) for value in values)))
        digits.append(max(map(_decimal_places, values)))
    shares = table.percent or [[None] * (len(columns) - 1)] * len(table.rows)
    rows = [
        TableRow(
            [
                Cell(_format_value(value, places), "" if share is None else f"{share:g} %")
                for value, places, share in zip(row, digits, [None, *percent], strict=True)
            ]
        )
        for row, percent in zip(table.rows, shares, strict=True)
    ]
    note = f"{table.source}, {table.place}."
    return Table(table.title, columns, rows, note, published=True, remarks=table.errata)


def _decimal_places(value: Value) -> int:
    """Return the number of digits after the decimal point."""
    return len(f"{value:g}".partition(".")[2]) if isinstance(value, int | float) else 0


def _format_value(value: Value, digits: int) -> str:
    """Format a value of a published table."""
    if value is None:
        return NA
    return value if isinstance(value, str) else f"{value:,.{digits}f}"


def final_table(platforms: Sequence[Platform], first: Sequence[Result] = ()) -> Table | None:
    """Return a table of final WERs of the recipes' runs (A33); None if there are none.

    Args:
      platforms: the platforms and their runs.
      first: results of the first platform, if its run has not yet written results.json.
    """
    # Rows of (colour, platform, result). If a recipe calls this before its results.json is written,
    # the first platform's results are `first`.
    results = [(0, platforms[0].name, row) for row in first]
    for colour, platform in list(enumerate(platforms))[bool(first) :]:
        folder = recipe_folder(platform.first.folder) or platform.first.folder
        results += [(colour, platform.name, row) for row in read_results(folder / "results.json")]
    splits = list(dict.fromkeys(row.split for _, _, row in results))
    cells: dict[tuple[int, str, str, str], dict[str, float]] = {}
    for colour, name, row in results:
        cells.setdefault((colour, name, row.system, row.lm), {})[row.split] = row.wer
    rows, named_platforms = [], set()
    for (colour, name, system, lm), wer_by_split in cells.items():
        rates = [
            Cell(f"{wer_by_split[split]:.2f}" if split in wer_by_split else NA) for split in splits
        ]
        # Only the first row of a platform has its name and its swatch.
        is_named = colour in named_platforms
        named_platforms.add(colour)
        heading = Cell("" if is_named else name)
        rows.append(
            TableRow([heading, Cell(system), Cell(lm), *rates], None if is_named else colour)
        )
    columns = [Column("platform"), Column("system", text=True), Column("LM", text=True)]
    columns += [Column(split, "WER in percent") for split in splits]
    return Table("Final word error rates", columns, rows) if rows else None


def sweep_table(path: Path) -> Table:
    """Read the beam sweep that `toolkit tta sweep` wrote (A31); the title names its split.

    Raises:
      BenchRunError: the file is not a sweep.
    """
    with reading(path, BenchRunError, "write one with `toolkit tta sweep`", "is not a sweep"):
        report = read_json(path)
        plain_rows = validated(report["rows"] if isinstance(report, dict) else report, [_ROW])
        rows = [(int(row["width"]), row["seconds"], row["wer"], row["cer"]) for row in plain_rows]
        split = report.get("split") if isinstance(report, dict) else None
    return Table(
        "Beam width against time and accuracy" + (f" on {split}" if split else ""),
        [Column("width"), Column("seconds"), Column("WER"), Column("CER")],
        [
            TableRow([Cell(f"{w:,}"), Cell(f"{s:.3g}"), Cell(f"{wer:.2f}"), Cell(f"{cer:.3f}")])
            for w, s, wer, cer in rows
        ],
    )


def stage_table(platforms: Sequence[Platform]) -> Table | None:
    """Return a table of the wall time of every stage (A39); None if none has finished."""
    times = [stage_times(platform.first.folder) for platform in platforms]
    titles = {number: title for stages in times for number, title, _ in stages}
    if not titles:
        return None
    by_stage = [{number: seconds for number, _, seconds in stages} for stages in times]
    rows = []
    for number in sorted(titles):
        row_seconds = [stages.get(number) for stages in by_stage]
        cells = [Cell(NA if s is None else duration(s)) for s in row_seconds]
        rows.append(TableRow([Cell(f"{number}"), Cell(titles[number]), *cells]))
    total = [Cell(duration(sum(stages.values()))) for stages in by_stage]
    rows.append(TableRow([Cell(""), Cell("all"), *total]))
    columns = [Column("stage"), Column("", text=True), *(Column(p.name) for p in platforms)]
    return Table("Wall time of the recipe's stages", columns, rows)
