"""The report's learning curves: likelihoods of GMMs, losses and error rates of networks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from toolkit.report.chart import Chart, Series
from toolkit.report.folder import RunFolder
from toolkit.report.page import figure, side_by_side
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
"""Fields of a network's history that are drawn, together with `valid_` and the same name."""
SHARES = ("accuracy",)
"""Fields between 0 and 1 that are drawn in percent."""
SHOWN_SENTENCES = 6

Rows = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class History:
    """The metrics of a training by iteration or epoch, from its `history.json`."""

    name: str
    rows: Rows
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
    """Return the histories, those of a system together, in the order of the trainings."""
    found: dict[str, tuple[float, History]] = {}
    for path in (path for pattern in HISTORIES for path in run.find(pattern)):
        rows = run.json(path)
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        name = run.name(path.parent)
        if rows and name not in found:
            unfinished = path.relative_to(run.root).parts[0] == ".partial"
            logged = path.with_name(RUN_LOG).exists()
            found[name] = path.stat().st_mtime, History(name, rows, unfinished, logged)
    written: dict[str, float] = {}  # last write of each system, nested histories included
    for time, history in found.values():
        system = history.name.partition("/")[0]
        written[system] = max(time, written.get(system, 0.0))
    histories = [history for _, history in found.values()]
    return sorted(histories, key=lambda h: (written[h.name.partition("/")[0]], h.name))


def gmm_figures(histories: Sequence[History]) -> str:
    """Return figures of log-likelihoods by iteration, one for each system."""
    charts = []
    for history in (h for h in histories if h.gaussians):
        values = [row["log_likelihood_per_frame"] for row in history.rows]
        series = series_of(history.rows, "log_likelihood_per_frame", "iteration", "")
        last = history.rows[-1]
        charts.append(
            figure(
                Chart(
                    f"Log-likelihood of {history.name}",
                    "iteration",
                    "log-likelihood per frame",
                    [series],
                    x_range=(0.0, float(last["iteration"])),
                    y_range=margins(values),
                    whole_x=True,
                ),
                history.title,
                f"Final value {values[-1]:.2f}, {last.get('gaussians', 0):,} Gaussians.",
            )
        )
    return side_by_side(charts) if charts else ""


def network_figures(histories: Sequence[History]) -> str:
    """Return figures of losses and accuracies by epoch."""
    charts = [
        chart
        for history in histories
        if not history.gaussians and not history.logged
        for chart in (_metric(history, metric) for metric in METRICS)
        if chart
    ]
    return side_by_side(charts) if charts else ""


def _metric(history: History, metric: str) -> str:
    scale = 100.0 if metric in SHARES else 1.0
    series = [
        series_of(history.rows, key, "epoch", name, scale, colour, dashed)
        for key, name, colour, dashed in (
            (metric, "training", 1, True),
            (f"valid_{metric}", "validation", 0, False),
        )
        if any(key in row for row in history.rows)
    ]
    if not series or max(len(s.x) for s in series) < 2:
        return ""
    values = [value for one in series for value in one.y]
    last = float(history.rows[-1]["epoch"])
    chart = Chart(
        f"{METRICS[metric]} of {history.name}",
        "epoch",
        METRICS[metric],
        series,
        x_range=(0.0, last),
        y_range=margins(values),
        whole_x=True,
    )
    return figure(chart, f"{history.title}: {METRICS[metric].removesuffix(' in %')}")


def series_of(
    rows: Rows,
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
      name: of the line.
      scale: factor on the values.
      colour: index into the page's palette.
      dashed: whether the line is dashed.
    """
    points = [(float(row[count]), scale * float(row[key])) for row in rows if key in row]
    points = [(x, y) for x, y in points if np.isfinite(y)]
    titles = [f"{count} {x:g}: {y:.4g}" for x, y in points]
    x, y = zip(*points, strict=True) if points else ((), ())
    return Series(name, x, y, colour, dashed=dashed, markers=True, titles=titles)


def margins(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of an axis that need not begin at 0."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def ctc_parts(run: RunFolder) -> str:
    """Return loss, error rates and sample sentences over time of trainings with a run log."""
    parts = []
    for path in run.find(f"*/{RUN_LOG}"):
        try:
            log = read_run_log(path)
        except TrainingError as error:
            run.note(path, str(error))
            continue
        parts += [_losses(run, log), _rates(run, log), _sentences(run, log)]
    return side_by_side(parts[:2]) + "".join(parts[2:]) if any(parts) else ""


def _losses(run: RunFolder, log: RunLog) -> str:
    steps = log.of(Step)
    if len(steps) < 2:
        return ""
    evaluated = log.of(Evaluated)
    width = max(1, len(steps) // 20)
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


def _rates(run: RunFolder, log: RunLog) -> str:
    evaluated = log.of(Evaluated)
    if not evaluated:
        return ""
    minutes = [event.seconds / 60 for event in evaluated]
    series = [
        Series(name.upper(), minutes, [getattr(e, name) for e in evaluated], n, markers=True)
        for n, name in enumerate(("wer", "cer"))
    ]
    chart = Chart("Error rates over time", "minutes", "% of the validation data", series)
    caption = (
        "Without dictionary and language model. The CER is relative to the longer of reference "
        "and hypothesis, as in the co-processor paper."
    )
    return figure(chart, f"{run.name(log.path.parent)}: error rates over time", caption)


def _sentences(run: RunFolder, log: RunLog) -> str:
    events = [event for event in log.of(Sentences) if event.references]
    if not events:
        return ""
    chosen = {round(n * (len(events) - 1) / (SHOWN_SENTENCES - 1)) for n in range(SHOWN_SENTENCES)}
    rows = "".join(
        f"<dt>{escape(duration(events[n].seconds))}</dt><dd>{escape(str(events[n].references[0]))}"
        f"<br><b>{escape(str(events[n].hypotheses[0]))}</b></dd>"
        for n in sorted(chosen)
        if events[n].hypotheses
    )
    title = f"{run.name(Path(log.path).parent)}: training sentences, reference and recognised"
    return f'<div class="box"><h3>{escape(title)}</h3><dl class="words">{rows}</dl></div>'
