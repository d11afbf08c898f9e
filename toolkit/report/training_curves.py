"""Learning curves: likelihoods of GMMs, losses, error rates, speed, and tuning of beams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from toolkit.report.charts import Chart, Series
from toolkit.report.pages import (
    Cell,
    Column,
    Table,
    TableRow,
    figure,
    folded,
    joined,
    macros,
    side_by_side,
)
from toolkit.report.run_folder import RunFolder
from toolkit.stages.log import duration
from toolkit.train.errors import TrainingError
from toolkit.train.runlog import RUN_LOG, Evaluated, RunLog, Sentences, Step, read_run_log

HISTORIES = ("*/history.json", "*/*/history.json", "*/*/*/history.json")
METRICS = {
    "loss": "loss",
    "accuracy": "frame accuracy in %",
    "cross_entropy": "cross entropy",
    "wer": "WER in %",
    "cer": "CER in %",
}
"""Labels of the fields of a network's history that are drawn, each together with `valid_FIELD`."""
FRACTION_METRICS = ("accuracy",)
"""Fields with values between 0 and 1 that are drawn in percent."""
MAX_SENTENCES = 6

HistoryRows = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class History:
    """The metrics of a training run by iteration or epoch, from its `history.json`."""

    name: str
    rows: HistoryRows
    unfinished: bool = False
    logged: bool = False
    """Whether there is a more detailed run log beside it."""

    @property
    def gaussians(self) -> bool:
        """Whether it is the history of a GMM training."""
        return "log_likelihood_per_frame" in self.rows[0]

    @property
    def title(self) -> str:
        """Title of its figures."""
        return f"{self.name} (unfinished)" if self.unfinished else self.name


def read_histories(run: RunFolder) -> list[History]:
    """Return the histories in the order of training, with those of a system together."""
    histories_by_name: dict[str, tuple[float, History]] = {}
    for path in (path for pattern in HISTORIES for path in run.find(pattern)):
        rows = run.json(path)
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        name = run.name(path.parent)
        # A finished history comes before one of the same name in `.partial`, see `RunFolder.find`.
        if rows and name not in histories_by_name:
            unfinished = path.relative_to(run.root).parts[0] == ".partial"
            logged = path.with_name(RUN_LOG).exists()
            histories_by_name[name] = path.stat().st_mtime, History(name, rows, unfinished, logged)
    written: dict[str, float] = {}  # last write of each system, nested histories included
    for time, history in histories_by_name.values():
        system = history.name.partition("/")[0]
        written[system] = max(time, written.get(system, 0.0))
    histories = [history for _, history in histories_by_name.values()]
    return sorted(histories, key=lambda h: (written[h.name.partition("/")[0]], h.name))


def gmm_figures(histories: Sequence[History]) -> Markup:
    """Return figures of log-likelihoods by iteration, one for each system."""
    charts = []
    for history in (h for h in histories if h.gaussians):
        values = [row["log_likelihood_per_frame"] for row in history.rows]
        series = history_series(history.rows, "log_likelihood_per_frame", "iteration", "")
        last = history.rows[-1]
        charts.append(
            figure(
                Chart(
                    f"Log-likelihood of {history.name}",
                    "iteration",
                    "log-likelihood per frame",
                    [series],
                    x_range=(0.0, float(last["iteration"])),
                    y_range=axis_range(values),
                    whole_x=True,
                ),
                history.title,
                f"Final value {values[-1]:.2f}, {last.get('gaussians', 0):,} Gaussians.",
            )
        )
    return side_by_side(charts) if charts else Markup("")


def network_figures(histories: Sequence[History]) -> Markup:
    """Return figures of losses and accuracies by epoch."""
    charts = [
        chart
        for history in histories
        if not history.gaussians and not history.logged
        for chart in (_metric_figure(history, metric) for metric in METRICS)
        if chart
    ]
    return side_by_side(charts) if charts else Markup("")


def _metric_figure(history: History, metric: str) -> Markup:
    """Return a figure of a metric by epoch, in training and in validation."""
    scale = 100.0 if metric in FRACTION_METRICS else 1.0
    series = [
        history_series(history.rows, key, "epoch", name, scale, colour, dashed)
        for key, name, colour, dashed in (
            (metric, "training", 1, True),
            (f"valid_{metric}", "validation", 0, False),
        )
        if any(key in row for row in history.rows)
    ]
    if not series or max(len(s.x) for s in series) < 2:
        return Markup("")
    values = [value for line in series for value in line.y]
    last_epoch = float(history.rows[-1]["epoch"])
    chart = Chart(
        f"{METRICS[metric]} of {history.name}",
        "epoch",
        METRICS[metric],
        series,
        x_range=(0.0, last_epoch),
        y_range=axis_range(values),
        whole_x=True,
    )
    return figure(chart, f"{history.title}: {METRICS[metric].removesuffix(' in %')}")


def history_series(
    rows: HistoryRows,
    key: str,
    count: str,
    name: str,
    scale: float = 1.0,
    colour: int = 0,
    dashed: bool = False,
) -> Series:
    """Return a field of a history as a line of a chart.

    Args:
      rows: the history.
      key: the field; rows without it, or where it is not finite, are left out.
      count: the field on the x axis, such as epoch.
      name: name of the line.
      scale: factor on the values.
      colour: index into the page's palette.
      dashed: whether the line is dashed.
    """
    points = [(float(row[count]), scale * float(row[key])) for row in rows if key in row]
    points = [(x, y) for x, y in points if np.isfinite(y)]
    titles = [f"{count} {x:g}: {y:.4g}" for x, y in points]
    x, y = zip(*points, strict=True) if points else ((), ())
    return Series(name, x, y, colour, dashed=dashed, markers=True, titles=titles)


def axis_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of an axis that need not begin at 0."""
    low, high = min(values), max(values)
    # A constant curve lies in the middle of its axis.
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def run_log_figures(run: RunFolder) -> Markup:
    """Return loss, error rates and sample sentences over time, for training with a run log."""
    parts = []
    for path in run.find(f"*/{RUN_LOG}"):
        try:
            log = read_run_log(path)
        except TrainingError as error:
            run.note(path, str(error))
            continue
        parts += [_loss_figure(run, log), _error_rate_figure(run, log), _sample_sentences(run, log)]
    return joined([side_by_side(parts[:2]), *parts[2:]]) if any(parts) else Markup("")


def _loss_figure(run: RunFolder, log: RunLog) -> Markup:
    """Return a figure of the training loss over time, smoothed, and the validation loss."""
    steps = log.of(Step)
    if len(steps) < 2:
        return Markup("")
    evaluated = log.of(Evaluated)
    width = max(1, len(steps) // 20)
    # Moving average over a twentieth of the steps.
    smooth = np.convolve([step.loss for step in steps], np.full(width, 1 / width), mode="valid")
    minutes = [step.seconds / 60 for step in steps][width - 1 :]
    series = [
        Series("training, smoothed", minutes, smooth.tolist(), 1, dashed=True),
        Series(
            "validation",
            [event.seconds / 60 for event in evaluated],
            [event.loss for event in evaluated],
            0,
            markers=True,
        ),
    ]
    chart = Chart("CTC loss over time", "minutes", "loss per utterance", series)
    return figure(chart, f"{run.name(log.path.parent)}: loss over time")


def _error_rate_figure(run: RunFolder, log: RunLog) -> Markup:
    """Return a figure of WER and CER on the validation data over time."""
    evaluated = log.of(Evaluated)
    if not evaluated:
        return Markup("")
    minutes = [event.seconds / 60 for event in evaluated]
    series = [
        Series(name.upper(), minutes, [getattr(e, name) for e in evaluated], n, markers=True)
        for n, name in enumerate(("wer", "cer"))
    ]
    chart = Chart("Error rates over time", "minutes", "% of the validation data", series)
    caption = (
        "Recognised without dictionary and language model. The CER is relative to the length of "
        "the reference or the hypothesis, whichever is longer, as in the co-processor paper."
    )
    return figure(chart, f"{run.name(log.path.parent)}: error rates over time", caption)


def _sample_sentences(run: RunFolder, log: RunLog) -> Markup:
    """Return sentences that were recognised during training, with their references."""
    events = [event for event in log.of(Sentences) if event.references]
    if not events:
        return Markup("")
    # Evenly spread over the training, the first and the last included.
    chosen = {round(n * (len(events) - 1) / (MAX_SENTENCES - 1)) for n in range(MAX_SENTENCES)}
    sentences = [
        (duration(events[n].seconds), events[n].references[0], events[n].hypotheses[0])
        for n in sorted(chosen)
        if events[n].hypotheses
    ]
    title = f"{run.name(Path(log.path).parent)}: training sentences, reference and recognised"
    return macros("run.html").sample_sentences(title, sentences)


PROGRESS_METRICS = {
    "rate": ("learning rate", True),
    "gradient_norm": ("gradient norm", True),
    "frames_per_second": ("frames per second", False),
}
"""Fields of a history that are drawn; for each its label and whether its axis is logarithmic."""
MAX_THROUGHPUT_POINTS = 40
"""Approximate number of points in the throughput figure of a run log."""


def training_progress(run: RunFolder, histories: Sequence[History]) -> Markup:
    """Return the table of all networks' training and, collapsed, figures of its course."""
    networks = [history for history in histories if not history.gaussians]
    charts = [
        chart
        for history in networks
        for key in PROGRESS_METRICS
        if (chart := _progress_figure(history, key))
    ]
    for path in run.find(f"*/{RUN_LOG}"):
        try:
            charts.append(_throughput_figure(run.name(path.parent), read_run_log(path)))
        except TrainingError as error:
            run.note(path, str(error))
    drawn = side_by_side(charts) if any(charts) else Markup("")
    if drawn:
        drawn = folded("Learning rate, gradient norm, throughput", drawn)
    return _training_table(networks) + drawn


def _progress_figure(history: History, key: str) -> Markup:
    """Return a figure of one of `PROGRESS_METRICS` by epoch; empty for a single epoch."""
    label, log = PROGRESS_METRICS[key]
    series = history_series(history.rows, key, "epoch", "")
    if len(series.x) < 2 or (log and min(series.y) <= 0):
        return Markup("")
    chart = Chart(
        f"{label} of {history.name}",
        "epoch",
        label,
        [series],
        log_y=log,
        x_range=(0.0, max(series.x)),
        y_range=None if log else axis_range([0.0, *series.y]),
        whole_x=True,
    )
    return figure(chart, f"{history.title}: {label}")


def _throughput_figure(name: str, log: RunLog) -> Markup:
    """Return a figure of utterances per second of training, each point over several steps."""
    steps = [step for step in log.of(Step) if step.seconds_in_step > 0]
    # Number of steps per point
    size = max(1, len(steps) // MAX_THROUGHPUT_POINTS)
    groups = [steps[n : n + size] for n in range(0, len(steps) - size + 1, size)]
    if len(groups) < 2:
        return Markup("")
    minutes = [group[-1].seconds / 60 for group in groups]
    speeds = [sum(s.examples for s in g) / sum(s.seconds_in_step for s in g) for g in groups]
    series = [Series("", minutes, speeds)]
    chart = Chart(f"Throughput of {name}", "minutes", "utterances per second", series)
    caption = "Only training steps are timed, including waits for data."
    return figure(chart, f"{name}: throughput", caption)


def _training_table(networks: Sequence[History]) -> Markup:
    """Return a table of training time, speed and time spent waiting for data."""
    rows = []
    for history in networks:
        epochs = [row for row in history.rows if "seconds" in row]
        if not epochs:
            continue
        seconds = sum(row["seconds"] for row in epochs)
        # Totals, since a mean of the epochs' rates would ignore their different lengths.
        frames = sum(row["seconds"] * row.get("frames_per_second", 0.0) for row in epochs)
        waited = sum(row["seconds"] * row.get("data_wait", 0.0) for row in epochs)
        rows.append(
            TableRow(
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
    return Table("Training of networks", columns, rows).html() if rows else Markup("")


BEAMS_FILE, SWEEP_FILE = "beams.json", "sweep.json"
"""Files written by `python -m benchmarks beams --json` and by the CTC recipe, in this order."""


def beam_figures(run: RunFolder) -> Markup:
    """Return a figure for each of `BEAMS_FILE` and `SWEEP_FILE` that the run has."""
    charts = [_beam_figure(run.json(BEAMS_FILE)), _sweep_figure(run.json(SWEEP_FILE))]
    return side_by_side(filter(None, charts)) if any(charts) else Markup("")


def _beam_figure(report: Any) -> Markup:
    """Return a figure of WER against real-time factor, a point for each beam."""
    rows = _measured_rows(report, "widths")
    points = [
        (row["real_time_factor"], row["wer"], f"beam {row['beam']:g}, {row['active']:,} states")
        for row in rows
    ]
    caption = (
        "Each point is a beam width; the time covers search and rescoring on one core. "
        f"System {report['system']}, measured by python -m benchmarks beams."
        if rows
        else ""
    )
    return _wer_time_figure(points, "real-time factor", caption)


def _sweep_figure(report: Any) -> Markup:
    """Return a figure of WER against decoding time, a point for each width of the CTC search."""
    rows = _measured_rows(report, "rows")
    points = [(row["seconds"], row["wer"], f"width {row['width']:,}") for row in rows]
    caption = (
        f"Each point is a beam width of the CTC search, timed on the whole of {report['split']}."
        if rows
        else ""
    )
    return _wer_time_figure(points, "seconds", caption)


def _measured_rows(report: Any, key: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a report; none if the file does not have them."""
    return report.get(key, []) if isinstance(report, dict) else []


def _wer_time_figure(
    points: Sequence[tuple[float, float, str]], x_label: str, caption: str
) -> Markup:
    """Return a figure of WER against the time of the search; empty for fewer than two points."""
    if len(points) < 2:
        return Markup("")
    x, y, names = zip(*sorted(points), strict=True)
    titles = [f"{name}: {rate:.2f} %" for name, rate in zip(names, y, strict=True)]
    series = Series("", x, y, 0, markers=True, titles=titles)
    label = "WER in % against the time of the search"
    chart = Chart(label, x_label, "WER in %", [series], y_range=axis_range(y))
    return figure(chart, "Beam: WER against time", caption)
