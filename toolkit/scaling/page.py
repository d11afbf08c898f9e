"""Tables, inputs and figures of the studies, as a page and CSV files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from markupsafe import Markup

from toolkit.processes.devices import one_thread
from toolkit.report.charts import Chart, Series
from toolkit.report.pages import Cell, Column, Page, Section, Table, TableRow, csv_text, figure
from toolkit.scaling.real_processes import HEADING, METHODS, Load, note, table_rows, validate
from toolkit.scaling.simulator.run import Outcome, Scenario
from toolkit.scaling.simulator.tasks import FrameTask
from toolkit.scaling.studies import (
    ALONE_HOURS,
    FRONTIER_LEARNERS,
    IBM_HOST_RATE,
    IBM_PER_HOST,
    LEARNERS,
    NAMES,
    PAPERS_MINIBATCHES,
    STRAGGLER,
    TABLE1,
    TOLERANCES,
    Frontier,
    Later,
    Retrained,
    Trained,
    TunedBatches,
    Variation,
    accuracy_variations,
    ibm,
    make_sequence_task,
    make_task,
    measured_shares,
    outcome_values,
    speedup_variations,
    stragglers,
    table1,
    table1_scenario,
)
from toolkit.storage.files import write_atomically
from toolkit.tta.tables import published

FRAMES = 64 * 32
"""Low-rate frames of a real minibatch: 64 chunks of 32 frames (C7); the 64 are assumed."""
FRAME_SECONDS = 0.03
SHAPING_MINIBATCHES = 360_000
"""Length of training, for which losses of accuracy are about as large as those published."""


Kind = Literal["paper", "measured", "assumed", "fitted"]


@dataclass(frozen=True)
class Input:
    """An input of a simulation."""

    name: str
    value: str
    kind: Kind
    """`paper`: published for these training runs; `measured`: on this machine; `assumed`: without a
    source for these machines; `fitted`: chosen to match published results, which the simulation
    then does not predict."""
    why: str
    """Source or reason of the value."""


def audio_hours(scenario: Scenario) -> float:
    """Return the hours of audio that a simulated training stands for, all epochs included."""
    return scenario.minibatches * scenario.stands_for * FRAMES * FRAME_SECONDS / 3600


def table1_inputs(scenario: Scenario, task: FrameTask, synthetic: bool) -> list[Input]:
    """List the inputs of Table I: first for the accuracies, then for the times.

    Args:
      scenario: the table's scenario.
      task: the task to train on.
      synthetic: whether its frames are drawn from Gaussians, not taken from a run directory.
    """
    bmuf, times, network = scenario.bmuf, scenario.times, scenario.network
    momentum = "1 - 1/N" if bmuf.momentum is None else f"{bmuf.momentum:g}"
    core = f"{network.core:g} Gbit/s" if network.core else "no limit"
    frames = "synthetic frames" if synthetic else "frames of the run directory"
    return [
        Input(
            "task",
            f"{task.frames:,} frames, {task.size:,} weights",
            "assumed",
            f"a small network in place of the real one, on {frames}",
        ),
        Input(
            "length of training",
            f"{scenario.minibatches:,} minibatches",
            _chosen(scenario.minibatches == SHAPING_MINIBATCHES),
            f"of {scenario.frames} frames. Each minibatch stands for {scenario.stands_for:g} real "
            f"ones, and all of them for {audio_hours(scenario):,.0f} h of audio. The paper's "
            "length, 10 epochs of 1,000 h, has separate columns. "
            f"{SHAPING_MINIBATCHES:,} minibatches were chosen for losses about as large as the "
            "published ones",
        ),
        Input(
            "learning rate",
            f"{scenario.rate:g} to {scenario.final_rate:g}",
            "assumed",
            "for the small task; the exponential decay is the paper's",
        ),
        Input(
            "highest learning rate",
            f"{scenario.max_rate:g}",
            "assumed",
            "limit of GTC's rate, which grows with N; accuracy depends on it, see below",
        ),
        Input("warm-up", f"{100 * scenario.warmup:g} % of the data", "assumed", "for all methods"),
        Input(
            "block of BMUF",
            f"{bmuf.block} minibatches",
            "assumed",
            "in place of the paper's 100; accuracy depends on it, see below",
        ),
        Input(
            "block momentum",
            momentum,
            "assumed",
            f"with C = {bmuf.rate:g} in the block learning rate; the paper's C is at least 1",
        ),
        Input(
            "tau of GTC",
            f"{scenario.gtc.threshold:g}",
            "paper" if scenario.gtc.threshold == 8 else "assumed",
            "the paper uses 8 for the real model. Here, tau is for sums over "
            f"{scenario.frames} frames of the small model. It determines how much is sent, and so "
            "speed-up and accuracy, see below",
        ),
        Input(
            "model", f"{scenario.model_bytes / 1e6:.0f} MB", "paper", "24.27 M weights in float32"
        ),
        Input(
            "seconds of a minibatch",
            f"{times.seconds:g}",
            "assumed",
            f"{FRAMES:,} frames take 0.3 TFLOP, and a GPU computes about 1 TFLOP/s",
        ),
        Input(
            "step times / mean step time",
            f"{min(times.shares):.2f} to {max(times.shares):.2f}",
            "measured",
            "processor time of a small LSTM's steps on this machine, not on a GPU",
        ),
        Input(
            "spread of the workers' speeds",
            f"{100 * times.spread:g} %",
            "fitted",
            "to the published speed-ups of BMUF, whose workers hardly communicate",
        ),
        Input(
            "workers per host", f"{network.per_host}", "paper", "GPUs of the paper's p2.16xlarge"
        ),
        Input(
            "network card of a host",
            f"{network.between:g} Gbit/s",
            "assumed",
            "the paper gives it only for p3.16xlarge",
        ),
        Input(
            "links inside a host",
            f"{network.inside:g} Gbit/s",
            "assumed",
            "the paper gives it only for p3.16xlarge",
        ),
        Input(
            "all hosts together",
            core,
            _chosen(network.core > 0, "paper"),
            "the paper's 25 Gbit/s are per host. GTC is slower with 64 workers than with 32 only "
            "if all hosts share them, see below",
        ),
        Input(
            "latency",
            f"{1e6 * network.latency:g} and {1e6 * network.latency_inside:g} us",
            "assumed",
            "between hosts, and inside one",
        ),
        Input(
            "coding of GTC",
            f"{scenario.codec / 1e9:g} GB/s",
            "assumed",
            "of a worker's gradient and of the other workers' messages",
        ),
    ]


def _chosen(fitted: bool, otherwise: Kind = "assumed") -> Kind:
    """Return the kind of a value: "fitted" if it was chosen to match published results."""
    return "fitted" if fitted else otherwise


SOURCE = "source"
"""Heading of a column that only the page shows, as it is too wide for a terminal."""
Values = Mapping[str, object]


TUNED_HEADING = "Held-out loss with the best of four rates for every method and batch"
LATER_HEADING = "Methods with momentum that came after the papers"


@dataclass(frozen=True)
class Table1:
    """Settings of the study `table1`."""

    minibatches: int = 360_000
    """Minibatches of all workers."""
    block: int = 2
    """Minibatches per block of BMUF."""
    threshold: float = 8.0
    """Tau, the threshold of GTC."""


@dataclass(frozen=True)
class Validation:
    """Settings of the study `validate`."""

    load: Load
    """Work of each process."""
    processes: tuple[int, ...] = (2, 4)
    """Numbers of processes."""
    methods: tuple[str, ...] = tuple(METHODS)
    """Some of `METHODS`."""


def write_studies(
    studies: Sequence[str],
    out: Path,
    run: Path | None,
    table1_settings: Table1,
    frontier: Frontier,
    validation: Validation,
    report: Callable[[str], None],
) -> None:
    """Run studies, print their tables, and write the page and its CSVs.

    Args:
      studies: names, as `toolkit scaling` takes them.
      out: the folder to write to.
      run: a finished run directory whose frames are used; None: synthetic frames.
      table1_settings: settings of the study `table1`.
      frontier: the study `frontier`.
      validation: settings of the study `validate`.
      report: called with a line of progress.
    """
    results = Results()
    with one_thread():
        shares = measured_shares()
        # Only these three studies train the small network on frames.
        task = make_task(run) if {"table1", "frontier", "later"} & {*studies} else None
        if task and "table1" in studies:
            results.table1(*_table1_results(table1_settings, task, run is None, shares, report))
        if "ibm" in studies:
            results.ibm(ibm(shares))
        if "stragglers" in studies:
            results.stragglers(stragglers(shares))
        if task and "frontier" in studies:
            results.frontier(frontier, list(frontier.trained(task, report)))
        if "batches" in studies:
            tuned = TunedBatches(shares=shares)
            rows = tuned.rows(list(tuned.trials(make_sequence_task(run), report)))
            title = "Large batches with tuned rates"
            results.add_table("batches", title, TUNED_HEADING, rows, tuned.note)
        if task and "later" in studies:
            later = Later()
            rows = later.rows(list(later.outcomes(task, report)))
            results.add_table("later", "Later methods", LATER_HEADING, rows, later.note)
        if "validate" in studies:
            load = validation.load
            compared = validate(validation.processes, load, report, validation.methods)
            title, rows = "Predicted and measured", table_rows(compared)
            results.add_table("validate", title, HEADING, rows, note(load))
    results.write(out)


def _table1_results(
    settings: Table1,
    task: FrameTask,
    synthetic: bool,
    shares: Sequence[float],
    report: Callable[[str], None],
) -> tuple[list[Outcome], list[Outcome], list[Input], list[Variation], list[Retrained]]:
    """Simulate Table I: the long training, one of the paper's length, and variations of both."""
    scenario = table1_scenario(settings.minibatches, settings.block, settings.threshold, shares)
    short_scenario = table1_scenario(
        PAPERS_MINIBATCHES * settings.block // 2, settings.block, settings.threshold, shares
    )
    outcomes = table1(scenario, task, report)
    densities = [outcome.density for outcome in outcomes if outcome.method == "gtc"]
    return (
        outcomes,
        table1(short_scenario, task, report),
        table1_inputs(scenario, task, synthetic),
        speedup_variations(scenario, densities),
        accuracy_variations(scenario, task, outcomes, report),
    )


class Results:
    """Collects the studies: prints their tables, and keeps CSVs and sections of the page."""

    def __init__(self) -> None:
        self._page = Page("Scaling", "Simulated data-parallel training.")
        self._files: dict[str, str] = {}

    def table1(
        self,
        outcomes: Sequence[Outcome],
        short: Sequence[Outcome],
        inputs: Sequence[Input],
        speedups: Sequence[Variation],
        accuracies: Sequence[Retrained],
    ) -> None:
        """Add Table I (C31), its inputs, and its dependence on them.

        Args:
          outcomes: outcomes of the long training runs.
          short: outcomes of the training runs as long as the paper's.
          inputs: inputs of the long training runs.
          speedups: speed-ups with other inputs.
          accuracies: accuracies with other inputs.
        """
        single, *parallel_outcomes = outcomes
        reported = {(row[0], row[1]): row[2:] for row in published("C31").rows}
        values = []
        for outcome, brief in zip(parallel_outcomes, short[1:], strict=True):
            accuracy, speedup = reported[NAMES[outcome.method], outcome.workers]
            relative = _relative(outcome, single)
            values.append(
                {
                    **outcome_values(outcome),
                    "megabytes": round(outcome.bytes_per_step / 1e6, 2),
                    "relative_accuracy": round(relative, 2),
                    "relative_accuracy_10000h": round(_relative(brief, short[0]), 2),
                    "speedup_10000h": round(brief.speedup, 3),
                    "published_speedup": speedup,
                    "published_relative_accuracy": accuracy,
                }
            )
        single_values = {"megabytes": 0.0, "relative_accuracy": 0.0}
        single_values |= {"relative_accuracy_10000h": 0.0, "speedup_10000h": 1.0}
        nothing = {"published_speedup": None, "published_relative_accuracy": None}
        single_row = {**outcome_values(single), **single_values, **nothing}
        self._files["table1.csv"] = csv_text([single_row, *values])
        table = _table(
            "Frame accuracy relative to one worker, and speed-up (million-hours paper, Table I)",
            {
                "method": "method",
                "workers": "workers",
                "relative_accuracy": "accuracy, %",
                "relative_accuracy_10000h": "in 10,000 h",
                "published_relative_accuracy": "published",
                "speedup": "speed-up",
                "speedup_10000h": "in 10,000 h",
                "published_speedup": "published",
                "density": "density",
                "megabytes": "MB per step",
            },
            values,
            f"The accuracy of one worker is {100 * single.accuracy:.2f} %, or "
            f"{100 * short[0].accuracy:.2f} % in 10,000 h, the paper's length. BMUF's speed-ups "
            "are not a result, since the spread of the workers' speeds is fitted to the published "
            "speed-ups. The rough size of the losses is not a result either, since the default "
            "length of training is fitted to it.",
        )
        parts = [table, self._inputs(inputs), self._speedups(speedups)]
        parts.append(self._accuracies(accuracies))
        lines = []
        for colour, (method, workers) in enumerate(TABLE1.items()):
            name = NAMES[method]
            simulated = [o.speedup for o in parallel_outcomes if o.method == method]
            lines.append(Series(name, workers, simulated, colour, markers=True))
            paper = [reported[name, n][1] for n in workers]
            lines.append(Series(f"{name}, published", workers, paper, colour, dashed=True))
        chart = Chart("Speed-up by number of workers", "workers", "speed-up", lines)
        self._add("table1", "Table I", parts, [figure(chart, "Speed-up against one worker")])

    def _inputs(self, inputs: Sequence[Input]) -> Table:
        """Return the table of a simulation's inputs, and keep it as CSV."""
        rows = [asdict(entry) for entry in inputs]
        self._files["table1_inputs.csv"] = csv_text(rows)
        columns = {"name": "input", "value": "value", "kind": "kind", "why": SOURCE}
        note = (
            "paper: published for these training runs. measured: on this machine. assumed: without "
            "a source for these machines. fitted: chosen to match published results."
        )
        return _table(
            "Inputs of the simulated Table I", columns, rows, note, texts=("value", "kind", "why")
        )

    def _speedups(self, variations: Sequence[Variation]) -> Table:
        """Return the table of speed-ups with one input changed, and keep it as CSV."""
        rows = [_variation_values(variation) for variation in variations]
        self._files["table1_speedups.csv"] = csv_text(rows)
        return _table(
            "Speed-up with one input changed",
            {key: key for key in rows[0]},
            rows,
            "Only times are simulated, with one input changed in each row; peak: number of workers "
            f"with which GTC is fastest. {_peak_note(variations)}",
        )

    def _accuracies(self, variations: Sequence[Retrained]) -> Table:
        """Return the table of accuracies with one input changed, and keep it as CSV."""
        rows = []
        for variation in variations:
            row: dict[str, object] = {"input": variation.name}
            row["hours"] = round(audio_hours(variation.scenario))
            row["one worker"] = round(100 * variation.alone, 2)
            for outcome in variation.outcomes:
                relative = 100 * (outcome.accuracy / variation.alone - 1)
                row[f"{NAMES[outcome.method]} {outcome.workers}"] = round(relative, 2)
            for outcome in variation.outcomes:
                if outcome.method == "gtc":
                    row[f"GTC {outcome.workers} x"] = round(outcome.speedup, 1)
            rows.append(row)
        self._files["table1_accuracies.csv"] = csv_text(rows)
        return _table(
            "Accuracy with one input changed",
            {key: key for key in rows[0]},
            rows,
            "One worker: its accuracy in percent. Methods: accuracy in percent relative to one "
            "worker trained on the same number of hours of audio; x: speed-up. One input is "
            "changed in each row: blocks only for BMUF, rates and tau only for GTC.",
        )

    def ibm(self, outcomes: Sequence[tuple[Outcome, bool]]) -> None:
        """Add training times (B5) and the ratio of computation to communication (B6)."""
        reported = {(row[0], row[1]): row[2] for row in published("B5").rows}
        rows = []
        for outcome, charged in outcomes:
            name = NAMES[outcome.method] if outcome.workers > 1 else "one GPU"
            averagings = outcome.averagings * IBM_PER_HOST / outcome.minibatches
            rows.append(
                {
                    **outcome_values(outcome),
                    "method": name,
                    "host_work": "charged" if charged else "free",
                    "hours": round(ALONE_HOURS / outcome.speedup, 2),
                    "published_hours": reported.get((name, outcome.workers)),
                    "megabytes_between_hosts": round(
                        outcome.between / outcome.minibatches / 1e6, 1
                    ),
                    "models_averaged_per_host_and_step": round(averagings, 2),
                }
            )
        self._files["ibm.csv"] = csv_text(rows)
        table = _table(
            f"2,000 h, 16 epochs, batch 128 per GPU, {IBM_PER_HOST} GPUs per host, 100 Gbit/s "
            "(H-ADPSGD paper)",
            {
                "method": "method",
                "workers": "workers",
                "host_work": "host's work",
                "hours": "hours",
                "published_hours": "published",
                "efficiency": "efficiency",
                "megabytes_between_hosts": "MB between hosts",
                "computation_by_communication": "comp./comm.",
                "models_averaged_per_host_and_step": "models averaged",
            },
            rows,
            f"One GPU's {ALONE_HOURS:g} h are assumed: 40 times the published 5.2 h, as the paper "
            "states that H-ADPSGD is 40 times as fast. The paper also states a week, 168 h; "
            f"all hours would then be about {1 - 168 / ALONE_HOURS:.0%} lower. 300 Gbit/s inside a "
            "host are assumed, since the million-hours paper has this value for another host with "
            "8 V100. MB: per worker and step. comp./comm.: seconds of computation divided by "
            "seconds of communication, which overlap. Models averaged: per host, in one step of "
            "all its workers. In rows with the host's work charged, a host copies and averages "
            f"{IBM_HOST_RATE / 1e9:.1f} GB of models per second, one model after the other. This "
            "rate is fitted to the published hours of ADPSGD.",
            texts=("host_work",),
        )
        self._add("ibm", "H-ADPSGD's cluster", [table], [])

    def stragglers(self, pairs: Sequence[tuple[Outcome, Outcome]]) -> None:
        """Add the effect of one slow worker on each method."""
        rows = [
            {
                "method": NAMES[even.method],
                "speedup": round(even.speedup, 2),
                "speedup_with_straggler": round(slow.speedup, 2),
                "kept": round(slow.speedup / even.speedup, 3),
            }
            for even, slow in pairs
        ]
        self._files["stragglers.csv"] = csv_text(rows)
        table = _table(
            f"{LEARNERS} workers, one of them {STRAGGLER:g} times as slow",
            {
                "method": "method",
                "speedup": "speed-up, equal workers",
                "speedup_with_straggler": "speed-up, one slow worker",
                "kept": "speed kept",
            },
            rows,
            "Workers of the asynchronous methods take the next minibatch when they are free; "
            "a node of H-ADPSGD is as slow as its slowest worker.",
        )
        self._add("stragglers", "A slow worker", [table], [])

    def frontier(self, study: Frontier, trained: Sequence[Trained]) -> None:
        """Add held-out loss by epoch and batch, and the largest batches that converge (B2)."""
        excess, reached = study.excess(trained), study.reached(trained)
        rows = [
            {
                "method": NAMES[t.method],
                "batch": t.batch,
                "seed": t.seed,
                "loss": round(t.outcome.loss, 4),
                "accuracy": round(t.outcome.accuracy, 4),
                "consensus_distance": t.outcome.spread,
                "median_by_baseline": round(excess[t.method, t.batch], 4),
            }
            for t in trained
        ]
        self._files["frontier.csv"] = csv_text(rows)
        self._files["frontier_curves.csv"] = csv_text(
            {
                "method": NAMES[t.method],
                "batch": t.batch,
                "seed": t.seed,
                "epoch": round(e, 3),
                "loss": loss,
            }
            for t in trained
            for e, loss, _ in t.outcome.curve
        )
        reported = {row[0]: row[1] for row in published("B2").rows}
        reach_rows = []
        for method, reach in reached.items():
            batch = reported.get(NAMES[method])
            reach_rows.append(
                {
                    "method": NAMES[method],
                    "batch": str(reach),
                    "ratio": reach.ratio(reached["ssgd"]),
                    "published": batch,
                    "published_ratio": batch and round(batch / reported["SCPSGD"], 2),
                }
            )
        self._files["frontier_reached.csv"] = csv_text(reach_rows)
        table = _table(
            f"Largest batch whose loss is within {100 * study.tolerance:g} % of batch "
            f"{study.smallest}'s on one worker",
            {
                "method": "method",
                "batch": "batch",
                "ratio": "by S-SGD's",
                "published": "published",
                "published_ratio": "by SCPSGD's",
            },
            reach_rows,
            f"Median of {study.seeds} seeds. >=: the loss is in this range for all batches tried; "
            "<: for none. Each batch is 1.5 or 1.33 times the one before. "
            f"{FRONTIER_LEARNERS} learners, {study.epochs} epochs, {study.optimizer}. The learning "
            f"rate is {study.rate:g} at batch {study.smallest} and proportional to the batch.",
        )
        parts = []
        for method in study.methods:
            curves = [
                trained[0],
                *(t for t in trained[1:] if t.method == method and t.seed == 0),
            ]
            lines = [
                Series(
                    "one worker" if t is trained[0] else f"batch {t.batch}",
                    [point[0] for point in t.outcome.curve],
                    [point[1] for point in t.outcome.curve],
                    colour,
                    dashed=t is trained[0],
                )
                for colour, t in enumerate(curves)
            ]
            chart = Chart(f"Held-out loss, {NAMES[method]}", "epoch", "held-out loss", lines)
            parts.append(figure(chart, NAMES[method]))
        self._add("frontier", "Large batches", [table, self._tolerances(study, trained)], parts)

    def _tolerances(self, study: Frontier, trained: Sequence[Trained]) -> Table:
        """Return the table of the largest batches by tolerance, and keep it as CSV."""
        rows: list[dict[str, object]] = [{"method": NAMES[method]} for method in study.methods]
        for tolerance in TOLERANCES:
            reached = study.reached(trained, tolerance)
            for row, reach in zip(rows, reached.values(), strict=True):
                row[f"{tolerance:.0%}"] = f"{reach} ({reach.ratio(reached['ssgd'])})"
        self._files["frontier_tolerances.csv"] = csv_text(rows)
        return _table(
            "Largest batch, and its ratio to S-SGD's, by tolerance of the loss",
            {key: key for key in rows[0]},
            rows,
        )

    def add_table(
        self, name: str, title: str, heading: str, rows: Sequence[Values], note: str
    ) -> None:
        """Add a section that is one table, with the rows' keys as headings."""
        self._files[f"{name}.csv"] = csv_text(rows)
        columns = {key: key for key in rows[0]}
        self._add(name, title, [_table(heading, columns, rows, note)], [])

    def write(self, out: Path) -> None:
        """Write the page and the CSVs into a folder."""
        for name, text in self._files.items():
            write_atomically(out / name, text)
        write_atomically(out / "scaling.html", self._page.html())

    def _add(self, name: str, title: str, tables: Sequence[Table], parts: Sequence[Markup]) -> None:
        """Print the tables of a study, and add its section to the page."""
        for table in tables:
            printed = [n for n, column in enumerate(table.columns) if column.title != SOURCE]
            columns = [table.columns[n] for n in printed]
            rows = [TableRow([row.cells[n] for n in printed]) for row in table.rows]
            replace(table, columns=columns, rows=rows).print()
        self._page.add(Section(name, title, parts=[*(t.html() for t in tables), *parts]))


def _relative(outcome: Outcome, single: Outcome) -> float:
    """Return the accuracy relative to one worker's, in percent."""
    return 100 * (outcome.accuracy / single.accuracy - 1)


def _peak_note(variations: Sequence[Variation]) -> str:
    """Say with how many workers GTC is fastest, and which inputs change that."""
    table, *other_variations = variations
    moving = ", ".join(f"{v.name} ({v.peak})" for v in other_variations if v.peak != table.peak)
    changing = moving or "none of these"
    return f"The peak is {table.peak} in the simulated Table I; inputs that change it: {changing}."


def _variation_values(variation: Variation) -> dict[str, object]:
    """Return the row of speed-ups of a variation."""
    values: dict[str, object] = {"input": variation.name}
    for method, speedups in (("gtc", variation.gtc), ("bmuf", variation.bmuf)):
        for workers, speedup in zip(TABLE1[method], speedups, strict=True):
            values[f"{NAMES[method]} {workers}"] = round(speedup, 1)
    return {**values, "peak": variation.peak}


def _table(
    title: str,
    columns: Mapping[str, str],
    rows: Sequence[Values],
    note: str = "",
    texts: Sequence[str] = (),
) -> Table:
    """Make a table of rows with columns (key: heading); `texts` are the left-aligned keys."""
    return Table(
        title,
        [Column(heading, text=key in texts) for key, heading in columns.items()],
        [TableRow([Cell(text) for text in _texts(columns, row)]) for row in rows],
        note,
    )


def _texts(columns: Mapping[str, str], row: Values) -> Iterator[str]:
    """Yield the text of each cell of a row."""
    for key in columns:
        value = row[key]
        yield "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
