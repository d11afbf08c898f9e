"""The page of a run of all benchmarks: targets, regressions, tables and the history of ratios."""

from collections.abc import Sequence

from toolkit.bench.instruments.harness import Table as Measurements
from toolkit.bench.suite.history import Quantity, SuiteRun, quantities
from toolkit.bench.suite.targets import TARGETS, Target
from toolkit.report.chart import Chart, Series
from toolkit.report.page import Cell, Column, Page, Row, Section, Table, figure

CURVES = 8
"""Most cases of a benchmark whose history is drawn."""


def targets_table(run: SuiteRun) -> Table:
    """Return the targets with what the run has reached."""
    columns = ["what", "benchmark", "measured", "target", "outcome"]
    return Table(
        "Targets",
        [Column(name, text=name in ("benchmark", "outcome")) for name in columns],
        [_target(run, target) for target in TARGETS],
        "A run with --quick is too small to be judged." if run.quick else "",
    )


def _target(run: SuiteRun, target: Target) -> Row:
    sign = "at most" if target.at_most else "at least"
    bound = Cell(f"{sign} {target.bound:g}")
    try:
        value = target.value(run.measured[target.benchmark].table)
    except KeyError:
        return Row([Cell(target.what), Cell(target.benchmark), Cell(""), bound, Cell("not here")])
    met = target.met(value)
    outcome = Cell("" if run.quick else "met" if met else "missed", best=met)
    return Row([Cell(target.what), Cell(target.benchmark), Cell(f"{value:.3g}"), bound, outcome])


def regressions_table(found: Sequence[Quantity]) -> Table:
    """Return what is worse than in the runs before."""
    return Table(
        "Worse than before",
        [Column("what"), Column("benchmark", text=True), Column("before"), Column("now")],
        [
            Row([Cell(q.name), Cell(q.benchmark), Cell(f"{q.before:.3f}"), Cell(f"{q.value:.3f}")])
            for q in found
            if q.worse
        ],
        "Before: the median of the last runs of the same size on such a machine. A ratio counts as "
        "worse below nine tenths of it less its spread, a figure above eleven tenths.",
    )


def build_page(runs: Sequence[SuiteRun]) -> Page:
    """Return the page of the last of some runs.

    Args:
      runs: the history, at least one.
    """
    last, found = runs[-1], quantities(runs)
    page = Page(
        "Benchmarks",
        f"{len(last.measured)} benchmarks{', quick' * last.quick}, {last.time}. Programs that are "
        "compared run in turns, so that load from other processes slows all of them alike.",
    )
    page.add(Section("targets", "Targets", parts=[targets_table(last).html()]))
    if any(q.worse for q in found):
        parts = [regressions_table(found).html()]
        page.add(Section("worse", "Worse than before", parts=parts))
    if last.failed:
        rows = [Row([Cell(name), Cell(reason)]) for name, reason in last.failed.items()]
        table = Table("Failed", [Column("benchmark"), Column("reason", text=True)], rows)
        page.add(Section("failed", "Failed", parts=[table.html()]))
    for name, measured in last.measured.items():
        own = [q for q in found if q.benchmark == name]
        about = f"{measured.seconds:.0f} s, at most {measured.peak_bytes / 2**20:,.0f} MiB."
        parts = [_rows(measured.table, own), _figures(own), _history(name, runs)]
        page.add(Section(name, f"toolkit bench {name}", about, [p for p in parts if p]))
    table = next((measured.table for measured in last.measured.values()), None)
    if table:
        machine = table.machine
        page.footer = (
            f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['memory_gib']} GiB"
            f"{', ' + machine['gpu'] if machine.get('gpu') else ''}; commit "
            f"{table.commit or 'not known'}; "
            + ", ".join(f"{name} {version}" for name, version in table.versions.items())
        )
    return page


def _rows(table: Measurements, found: Sequence[Quantity]) -> str:
    if not table.rows:
        return ""
    known = {q.name: q for q in found if q.spread is not None}
    columns = ["case", f"{table.unit} / s", f"ratio to {table.baseline}", "before", "spread"]
    rows = []
    for row in table.rows:
        quantity = known.get(row.name)
        rows.append(
            Row(
                [
                    Cell(row.name),
                    Cell(f"{row.rate:,.4g}"),
                    Cell(f"{row.ratio:.3f}", "worse" if quantity and quantity.worse else ""),
                    _before(quantity),
                    Cell(f"{100 * row.spread:.0f} %"),
                ]
            )
        )
    title = table.title or "Rates"
    return Table(title, [Column(name) for name in columns], rows, remarks=table.notes).html()


def _figures(found: Sequence[Quantity]) -> str:
    rows = [
        Row([Cell(q.name), Cell(f"{q.value:.3f}", "worse" if q.worse else ""), _before(q)])
        for q in found
        if q.spread is None
    ]
    columns = [Column("figure"), Column("value"), Column("before")]
    return Table("Figures", columns, rows).html() if rows else ""


def _before(quantity: Quantity | None) -> Cell:
    before = quantity.before if quantity else None
    return Cell("" if before is None else f"{before:.3f}")


def _history(name: str, runs: Sequence[SuiteRun]) -> str:
    """Return a chart of the ratios over the runs that can be compared, empty for a single one."""
    last = runs[-1]
    table = last.measured[name].table
    alike = [run for run in runs if run.like(last, name)]
    series = []
    for row in [row for row in table.rows if row.name != table.baseline][:CURVES]:
        points = [
            (number, other.ratio)
            for number, run in enumerate(alike, 1)
            for other in run.measured[name].table.rows
            if other.name == row.name
        ]
        x, y = zip(*points, strict=True)
        series.append(Series(row.name, x, y, len(series), markers=True))
    if len(alike) < 2 or not series:
        return ""
    label = f"Ratios of {name} over the runs"
    return figure(Chart(label, "run", "ratio", series, whole_x=True), "History", wide=True)
