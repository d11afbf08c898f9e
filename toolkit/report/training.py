"""The report's course of trainings: learning rate, gradient norm and throughput by epoch."""

from collections.abc import Sequence

from toolkit.report.chart import Chart, Series
from toolkit.report.curves import History, margins, series_of
from toolkit.report.folder import RunFolder
from toolkit.report.page import Cell, Column, Row, Table, figure, side_by_side
from toolkit.stages.log import duration
from toolkit.train.errors import TrainingError
from toolkit.train.runlog import RUN_LOG, RunLog, Step, read_run_log

COURSE = {
    "rate": ("learning rate", True),
    "gradient_norm": ("gradient norm", True),
    "frames_per_second": ("frames per second", False),
}
"""Fields of a history that are drawn, with labels, and whether on a logarithmic axis."""
SMOOTHED = 40
"""Points of the throughput of a run log."""


def course(run: RunFolder, histories: Sequence[History]) -> str:
    """Return the table of all trainings of networks and, collapsed, figures of their course."""
    networks = [history for history in histories if not history.gaussians]
    charts = [chart for history in networks for key in COURSE if (chart := _figure(history, key))]
    for path in run.find(f"*/{RUN_LOG}"):
        try:
            charts.append(_throughput(run.name(path.parent), read_run_log(path)))
        except TrainingError as error:
            run.note(path, str(error))
    drawn = side_by_side(charts) if any(charts) else ""
    if drawn:
        title = "Learning rate, gradient norm, throughput"
        drawn = f"<details><summary>{title}</summary>{drawn}</details>"
    return _table(networks) + drawn


def _figure(history: History, key: str) -> str:
    label, log = COURSE[key]
    series = series_of(history.rows, key, "epoch", "")
    if len(series.x) < 2 or (log and min(series.y) <= 0):
        return ""
    chart = Chart(
        f"{label} of {history.name}",
        "epoch",
        label,
        [series],
        log_y=log,
        x_range=(0.0, max(series.x)),
        y_range=None if log else margins([0.0, *series.y]),
        whole_x=True,
    )
    return figure(chart, f"{history.title}: {label}")


def _throughput(name: str, log: RunLog) -> str:
    """Return utterances per second of training, over stretches of steps."""
    steps = [step for step in log.of(Step) if step.seconds_in_step > 0]
    size = max(1, len(steps) // SMOOTHED)
    groups = [steps[n : n + size] for n in range(0, len(steps) - size + 1, size)]
    if len(groups) < 2:
        return ""
    minutes = [group[-1].seconds / 60 for group in groups]
    speeds = [sum(s.examples for s in g) / sum(s.seconds_in_step for s in g) for g in groups]
    series = [Series("", minutes, speeds)]
    chart = Chart(f"Throughput of {name}", "minutes", "utterances per second", series)
    return figure(chart, f"{name}: throughput", "In the steps, with the waiting for data.")


def _table(networks: Sequence[History]) -> str:
    """Return a table of training time, speed and time spent waiting for data."""
    rows = []
    for history in networks:
        epochs = [row for row in history.rows if "seconds" in row]
        if not epochs:
            continue
        seconds = sum(row["seconds"] for row in epochs)
        frames = sum(row["seconds"] * row.get("frames_per_second", 0.0) for row in epochs)
        waited = sum(row["seconds"] * row.get("data_wait", 0.0) for row in epochs)
        rows.append(
            Row(
                [
                    Cell(history.title),
                    Cell(f"{len(epochs)}"),
                    Cell(duration(seconds)),
                    Cell(f"{frames / max(seconds, 1e-9):,.0f}"),
                    Cell(f"{100 * waited / max(seconds, 1e-9):.1f} %"),
                    Cell(f"{epochs[0].get('rate', 0):.2g} to {epochs[-1].get('rate', 0):.2g}"),
                ]
            )
        )
    heads = ("epochs", "training time", "frames per second", "waiting for data", "learning rate")
    columns = [Column("network"), *map(Column, heads)]
    return Table("Trainings", columns, rows).html() if rows else ""
