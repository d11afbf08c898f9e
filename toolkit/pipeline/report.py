"""Format the summaries and plans of pipeline runs as text, JSON and HTML pages."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from toolkit.pipeline.plan import (
    PAPER,
    PAPER_PIPELINE_DAYS,
    Cluster,
    Plan,
    PlanError,
    nodes_for,
    planned_figures,
)
from toolkit.pipeline.rates import Rates
from toolkit.report.pages import Cell, Column, Page, Section, Table, TableRow, macros
from toolkit.stages.log import duration
from toolkit.storage.files import write_atomically


def run_totals(summaries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Add up the summaries of a run's steps.

    Returns:
      Totals under `steps`, `retries`, `seconds`, `partitions`, `done`, `kept` and `bytes`.
    """
    names = {"retries": "attempts_failed", "seconds": "wall_seconds"}
    names |= {name: name for name in ("partitions", "done", "kept", "bytes")}
    totals = {total: sum(s[name] for s in summaries) for total, name in names.items()}
    return {"steps": len(summaries), **totals}


def totals_text(totals: Mapping[str, float]) -> str:
    """Format `run_totals` as a line of plain text."""
    return (
        f"{totals['steps']:,} steps, {totals['done']:,} of {totals['partitions']:,} partitions "
        f"({totals['kept']:,} of them from earlier runs), {totals['retries']:,} retries, "
        f"{totals['bytes'] / 1e9:,.3f} GB in {duration(totals['seconds'])}"
    )


def summary_page(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Render the summaries of steps, given in pipeline order, as an HTML page."""
    columns = (
        "step", "partitions", "hours", "wall", "hours/hour", "objects", "GB", "GET", "PUT", "HEAD",
        "LIST", "repeated", "failed elements", "set aside", "peak memory",
    )  # fmt: skip
    page = Page("Data pipeline", "Steps of the pipeline in order, with their calls to the store.")
    page.add(Section("steps", "Steps", parts=[_text_table("Steps", columns, map(_row, summaries))]))
    for number, summary in enumerate(summaries, 1):
        title = f"{summary['step']}: partitions set aside"
        page.add(Section(f"set-aside-{number}", title, parts=_set_aside(summary)))
    return page.html()


def _text_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table of text cells as HTML."""
    return Table(
        title,
        [Column(name, text=name in LEFT) for name in columns],
        [TableRow([Cell(text) for text in row]) for row in rows],
    ).html()


def summary_text(summary: Mapping[str, Any]) -> str:
    """Format a summary as a few lines of plain text."""
    calls = summary["calls"]
    lines = [
        f"{summary['step']}: {summary['done']:,} of {summary['partitions']:,} partitions, "
        f"{summary['hours']:,.2f} h of audio in {duration(summary['wall_seconds'])}",
        f"  {summary['objects']:,} objects of {summary['bytes'] / 1e9:,.3f} GB; "
        f"{calls['get']:,} GET, {calls['put']:,} PUT, {calls['head']:,} HEAD, "
        f"{calls['list']:,} LIST, {calls['repeated']:,} of them repeated",
        f"  {summary['elements_failed']:,} elements left out, {summary['attempts_failed']:,} "
        f"attempts failed; digest {summary['output_digest']}",
    ]
    lines += [f"  set aside: {p['partition']}: {p['reason']}" for p in summary["poisoned"]]
    return "\n".join(lines)


def _row(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a step in the table of summaries."""
    wall = max(summary["wall_seconds"], 1e-9)
    calls = summary["calls"]
    kept_note = f" ({summary['kept']} from earlier runs)" if summary["kept"] else ""
    # No speed if partitions were kept: the hours include those of earlier runs, the time does not.
    rate = f"{3600 * summary['hours'] / wall:,.0f}" if not summary["kept"] else ""
    return (
        summary["step"],
        f"{summary['done']:,} of {summary['partitions']:,}{kept_note}",
        f"{summary['hours']:,.2f}",
        duration(wall),
        rate,
        f"{summary['objects']:,}",
        f"{summary['bytes'] / 1e9:,.3f}",
        *(f"{calls[name]:,}" for name in ("get", "put", "head", "list", "repeated")),
        f"{summary['elements_failed']:,}",
        f"{len(summary['poisoned']):,}",
        f"{summary['peak_bytes'] / 1e6:,.0f} MB",
    )


def _set_aside(summary: Mapping[str, Any]) -> list[Markup]:
    """Return HTML that lists the partitions a step gave up on, with reasons and tracebacks."""
    parts = []
    for partition in summary["poisoned"]:
        parts.append(macros("parts.html").subtitle(partition["partition"]))
        parts.append(macros("parts.html").box(partition["reason"]))
        if partition["trace"]:
            parts.append(macros("parts.html").folded_text("traceback", partition["trace"]))
    return parts


DAYS = (PAPER_PIPELINE_DAYS, 1.0)
"""Time limits in days, the paper's and 1, for which the report gives the number of nodes."""
COLUMNS = (
    "step", "partitions", "objects", "calls", "TB in", "TB out", "time", "95 %", "bound by",
    "measured on",
)  # fmt: skip
LEFT = ("step", "bound by", "measured on")


@dataclass(frozen=True)
class PlanReport:
    """The plan of a run, formatted as text, JSON or HTML."""

    plan: Plan
    alternative: Plan | None
    """The same run with separate steps if `plan` fuses them, else with fused steps; None if the
    rates do not allow both."""
    rates: Rates
    """The rates that both plans use."""

    @property
    def title(self) -> str:
        """One line: the hours of audio and the cluster."""
        cluster = self.plan.cluster
        node = f"{cluster.cores} cores" + (f" and {cluster.devices} GPUs" * bool(cluster.devices))
        return f"{self.plan.hours:,.0f} hours on {cluster.nodes} nodes of {node}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of `rows`."""
        return (*COLUMNS, *(("cost",) if self.plan.cluster.price else ()))

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row of cells per step."""
        rows = []
        for step in self.plan.steps:
            cells = (
                step.name,
                f"{step.partitions:,}",
                f"{step.objects:,}",
                f"{step.calls:,.0f}",
                f"{step.read / 1e12:,.2f}",
                f"{step.written / 1e12:,.2f}",
                duration(step.seconds),
                _interval(step.least, step.most),
                step.bound,
                step.measured_on,
            )
            rows.append((*cells, *((f"{step.cost:,.2f}",) if self.plan.cluster.price else ())))
        return rows

    def sentences(self) -> list[str]:
        """Return what the table lacks: totals, the nodes needed for `DAYS`, and assumptions."""
        plan = self.plan
        lines = [f"All steps, one after the other: {duration(plan.seconds)}"]
        interval = _interval(*plan.interval)
        lines[0] += f" ({interval} at the ends of the speeds' intervals)." if interval else "."
        if self.alternative is not None:
            lines.append(_fusion(plan, self.alternative))
        if plan.cluster.price:
            lines.append(f"Cost of all steps: {plan.cost:,.2f}.")
        lines += [self._nodes_within(days) for days in DAYS]
        lines.append(_assumptions(plan.cluster, self.rates))
        return lines

    def _nodes_within(self, days: float) -> str:
        """Say how many nodes finish the run in `days`, and at what cost."""
        plan = self.plan
        try:
            nodes = nodes_for(days, plan, self.rates)
        except PlanError as error:
            return f"{error}."
        cluster_nodes = "1 such node" if nodes == 1 else f"{nodes:,} such nodes"
        when = "a day" if days == 1 else f"{days:g} days"
        cost = nodes * plan.cluster.price * 24 * days
        price = f", for up to {cost:,.0f}" if plan.cluster.price else ""
        return f"{cluster_nodes} would take at most {when}{price}."

    def comparison(self) -> list[tuple[str, str, str]]:
        """Return rows of (name, planned figure, paper's figure)."""
        figures = planned_figures(self.plan, self.rates)
        return [(name, figures[name], value) for name, value in PAPER]


def print_plan(report: PlanReport) -> None:
    """Print a plan beside the figures of the paper on the data pipeline (C15 to C26).

    A narrow terminal wraps the lines.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = 150
    table = Table(title=report.title)
    for name in report.columns:
        table.add_column(name, justify="left" if name in LEFT else "right")
    for cells in report.rows():
        table.add_row(*cells)
    # The table decides the width: rich would break cells that do not fit.
    room = console.options.update(width=10_000)  # more than any table needs
    console.width = max(console.width, console.measure(table, options=room).maximum)
    console.print(table)
    for sentence in report.sentences():
        console.print(sentence)
    comparison = Table(title="Comparison with the paper's run on a million hours")
    for name in ("", "planned", "paper"):
        comparison.add_column(name)
    for row in report.comparison():
        comparison.add_row(*row)
    console.print(comparison)


def write_plan(plan: Plan, rates: Rates, path: Path) -> None:
    """Write a plan as JSON."""
    record = {
        **asdict(plan),
        "seconds": plan.seconds,
        "interval": plan.interval,
        "cost": plan.cost,
        "rates": asdict(rates),
        "figures": planned_figures(plan, rates),
        "paper": dict(PAPER),
    }
    write_atomically(path, json.dumps(record, indent=1) + "\n")


def plan_page(report: PlanReport) -> str:
    """Render a plan as an HTML page."""
    page = Page("Plan of a data pipeline", report.title)
    table = _text_table(report.title, report.columns, report.rows())
    notes = [macros("parts.html").note(sentence) for sentence in report.sentences()]
    page.add(Section("plan", "Steps", parts=[table, *notes]))
    title = "The paper's run on a million hours"
    compared = _text_table(title, ("", "planned", "paper"), report.comparison())
    page.add(Section("paper", title, parts=[compared]))
    return page.html()


def _interval(least: float, most: float) -> str:
    """Format an interval of wall times; empty if both ends are equal."""
    return "" if least == most else f"{duration(least)} to {duration(most)}"


def _fusion(plan: Plan, alternative: Plan) -> str:
    """Say what fusing the steps saves, or would save."""
    fused, apart = (plan, alternative) if plan.fused else (alternative, plan)
    names = ", ".join(fused.fused)
    saved = f"{(fused.saved or 0) / 1e12:,.2f} TB and"
    saved += f" {duration(max(0, apart.seconds - fused.seconds))}"
    if plan.fused:
        return f"Fused into one step: {names}; that saves {saved}."
    return f"Not fused: {names}; fusing them would save {saved}."


def _assumptions(cluster: Cluster, rates: Rates) -> str:
    """Describe the assumed cluster, since the paper names instances, not speeds."""
    where = rates.measured.get("cpu", "the machine where the rates were measured")
    when = f" ({rates.measured['date']})" if "date" in rates.measured else ""
    return (
        f"Assumed: a core as fast as one of {where}{when}, {cluster.latency:g} s per call to the"
        f" store, {cluster.bandwidth / 1e6:g} MB/s per connection,"
        f" {8 * cluster.network / 1e9:g} Gbit/s per node, files of equal length, and no other load."
    )
