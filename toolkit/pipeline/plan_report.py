"""Plans of pipeline runs as printed tables and as JSON."""

import json
from dataclasses import asdict
from pathlib import Path

from toolkit.pipeline.plan import PAPER, PAPER_PIPELINE_DAYS, Plan, nodes_for, planned_figures
from toolkit.pipeline.rates import Rates
from toolkit.stages.stage_log import duration
from toolkit.storage.files import write_atomically


def print_plan(plan: Plan, other: Plan, rates: Rates) -> None:
    """Print a plan beside the paper's figures.

    Args:
      plan: the plan to print.
      other: the plan of the same run without fusion if `plan` has it, and with it otherwise.
      rates: the rates that both plans use.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = 120
    cluster = plan.cluster
    table = Table(
        title=f"{plan.hours:,.0f} hours on {cluster.nodes} nodes of {cluster.cores} cores"
        + (f" and {cluster.devices} GPUs" if cluster.devices else "")
    )
    for name in ("step", "partitions", "objects", "calls", "TB in", "TB out", "time", "bound by"):
        table.add_column(name, justify="left" if name in ("step", "bound by") else "right")
    if cluster.price:
        table.add_column("cost", justify="right")
    for step in plan.steps:
        cells = [
            step.name,
            f"{step.partitions:,}",
            f"{step.objects:,}",
            f"{step.calls:,.0f}",
            f"{step.read / 1e12:,.2f}",
            f"{step.written / 1e12:,.2f}",
            duration(step.seconds),
            step.bound,
        ]
        table.add_row(*cells, *([f"{step.cost:,.2f}"] if cluster.price else []))
    console.print(table)
    console.print(_fusion(plan, other))
    if cluster.price:
        console.print(f"Cost of all steps: {plan.cost:,.2f}")
    comparison = Table(title="Comparison with the paper's run on a million hours")
    for name in ("", "planned", "paper"):
        comparison.add_column(name)
    figures = planned_figures(plan, rates)
    for name, value in PAPER:
        comparison.add_row(name, figures[name], value)
    console.print(comparison)
    options = {"fuse": bool(plan.fused)}
    nodes = nodes_for(PAPER_PIPELINE_DAYS, plan.hours, cluster, rates, **options)
    console.print(f"{nodes:,} such nodes would take at most {PAPER_PIPELINE_DAYS} days.")
    if rates.measured:
        console.print("Rates: " + ", ".join(f"{k} {v}" for k, v in rates.measured.items()))


def write_plan(plan: Plan, rates: Rates, path: Path) -> None:
    """Write a plan as JSON."""
    plain = {
        **asdict(plan),
        "seconds": plan.seconds,
        "cost": plan.cost,
        "rates": asdict(rates),
        "figures": planned_figures(plan, rates),
        "paper": dict(PAPER),
    }
    write_atomically(path, json.dumps(plain, indent=1) + "\n")


def _fusion(plan: Plan, other: Plan) -> str:
    fused, apart = (plan, other) if plan.fused else (other, plan)
    names = ", ".join(fused.fused)
    saved = f"{fused.saved / 1e12:,.2f} TB and {duration(max(0, apart.seconds - fused.seconds))}"
    if plan.fused:
        return f"Fused into one step: {names}; that saves {saved}."
    return f"Not fused: {names}; fusing them would save {saved}."
