"""The data of the page's tables and figures as CSV files in long form."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolkit.report.page import csv_text
from toolkit.tta.rules import TtaConfig
from toolkit.tta.runs import Platform, TrainingRun

Studies = Mapping[str, tuple[Sequence[Platform], TtaConfig]]
"""`default` and `equal batch`, each with its platforms and target accuracies."""
Rows = Iterator[dict[str, Any]]


def files(studies: Studies) -> dict[str, str]:
    """Return the text of each file by name; it is empty where there is no data."""
    of_runs = {
        "runs": _run,
        "evaluations": _evaluations,
        "steps": _steps,
        "utilisation": _utilisation,
    }
    texts = {"tta.csv": csv_text(_times(studies))}
    for name, rows_of in of_runs.items():
        texts[f"{name}.csv"] = csv_text(
            {"study": study, "platform": platform.name, "run": number} | row
            for study, (platforms, _) in studies.items()
            for platform in platforms
            for number, run in enumerate(platform.runs, 1)
            for row in rows_of(run)
        )
    return texts


def _times(studies: Studies) -> Rows:
    for study, (platforms, config) in studies.items():
        for platform in platforms:
            price = platform.price.total if platform.price else None
            for metric, target in config.targets:
                own = platform.tta(metric, target, config.epochs)
                first = platforms[0].tta(metric, target, config.epochs)
                yield {
                    "study": study,
                    "platform": platform.name,
                    "metric": metric,
                    "target": target,
                    "tta_minutes": _number(own),
                    "percent_of_first": _number(100 * own / first if own and first else None),
                    "times_price": _number(own * price if own and price else None),
                    "dawnbench_minutes": _number(platform.dawnbench(metric, target)),
                    "mlperf_minutes": _number(platform.mlperf(metric, target)),
                }


def _run(run: TrainingRun) -> Rows:
    yield {
        "seconds": run.log.seconds,
        "starts": run.log.starts,
        "lost": run.lost,
        "batch": run.log.created.batch,
        "parameters": run.log.created.parameters,
        "epochs": len(run.evaluations),
        "examples": run.log.examples,
        "examples_per_second": _number(run.log.examples_per_second),
        "lost_at_swaps": _number(run.dip),
        **{f"seconds_{state.replace(' ', '_')}": _number(s) for state, s in run.states.items()},
    }


def _evaluations(run: TrainingRun) -> Rows:
    for event in run.evaluations:
        names = ("seconds", "epoch", "step", "cer", "cer_usual", "wer", "ser", "loss")
        found = {name: getattr(event, name) for name in (*names, "duration", "waited")}
        yield found | {"search": run.search}


def _steps(run: TrainingRun) -> Rows:
    smooth, rates = run.losses()[1].tolist(), run.throughput[1].tolist()
    for event, smoothed, rate in zip(run.steps, smooth, rates, strict=True):
        yield {
            "seconds": event.seconds,
            "step": event.step,
            "epoch": event.epoch,
            "loss": event.loss,
            "smoothed_loss": _number(smoothed),
            "examples": event.examples,
            "seconds_in_step": event.seconds_in_step,
            "examples_per_second": _number(rate),
        }


def _utilisation(run: TrainingRun) -> Rows:
    for event in run.utilisation:
        yield {
            "seconds": event.seconds,
            "process": event.process,
            "cpu": " ".join(map(str, event.cpu)),
            "gpus": " ".join(map(str, event.gpus)),
        }


def _number(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
