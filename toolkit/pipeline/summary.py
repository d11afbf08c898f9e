"""The summary of a step's run: totals, calls and failures, as JSON, text and HTML."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.pipeline.attempt_store import plain_name
from toolkit.pipeline.objects import Counts, MissingObjectError, ObjectStore, StoreConfig
from toolkit.pipeline.page import html_page, html_table
from toolkit.pipeline.progress import Progress
from toolkit.pipeline.step import Partition, Step, StepResult, config_plain, step_digest
from toolkit.pipeline.worker_process import Attempt
from toolkit.stages.log import duration
from toolkit.storage.digests import digest_bytes
from toolkit.storage.reading import NATURAL, reading, validated

SUMMARY = "_summary.json"
FAILURES = "_failures.tsv"
_FORM = {
    **dict.fromkeys(("partitions", "done", "kept", "attempts_failed", "peak_bytes"), NATURAL),
    **dict.fromkeys(("elements_failed", "objects", "bytes"), NATURAL),
    **{"step": str, "hours": float, "wall_seconds": float, "output_digest": str},
    "calls": dict.fromkeys(("get", "put", "head", "list", "repeated"), NATURAL),
    "poisoned": [{"partition": str, "reason": str, "trace": str}],
}


class SummaryError(ToolkitError):
    """A summary cannot be read."""


def write_summary(
    config: StoreConfig,
    step: Step,
    partitions: Sequence[Partition],
    out: str,
    results: Mapping[str, StepResult],
    runs: Mapping[str, Mapping[str, Any]],
    poisoned: Mapping[str, Attempt],
    tracker: Progress,
    planning: Counts,
) -> None:
    """Write `_failures.tsv` and `_summary.json` below `out`."""
    store = ObjectStore(config)
    done = [results[p.id] for p in partitions if p.id in results]
    counts = sum((_counts(runs[p.id]) for p in partitions if p.id in runs), planning)
    summary = {
        **config_plain(step),
        "digest": step_digest(step),
        "partitions": len(partitions),
        "done": len(done),
        "kept": tracker.kept,
        "hours": tracker.hours,
        "wall_seconds": round(tracker.seconds, 3),
        "worker_seconds": sum(run.get("seconds", 0.0) for run in runs.values()),
        "peak_bytes": max((run.get("peak_bytes", 0) for run in runs.values()), default=0),
        "attempts_failed": tracker.failed,
        "elements_failed": sum(len(result.failures) for result in done),
        "objects": sum(len(result.outputs) for result in done),
        "bytes": sum(ref.size for result in done for ref in result.outputs),
        "output_digest": outputs_digest(out, done),
        "about": _totals(done),
        "calls": counts.to_dict(),
        "poisoned": [
            {"partition": name, "reason": attempt.reason, "trace": attempt.trace}
            for name, attempt in sorted(poisoned.items())
        ],
    }
    lines = [
        f"{p.id}\t{element}\t{' '.join(reason.split())}\n"
        for p in partitions
        if p.id in results
        for element, reason in results[p.id].failures
    ]
    store.put(f"{out}/{FAILURES}", "".join(lines).encode())
    store.put(f"{out}/{SUMMARY}", (json.dumps(summary, indent=1) + "\n").encode())


def read_summary(store: ObjectStore, out: str) -> dict[str, Any] | None:
    """Read the summary that `write_summary` wrote; None when the step has not run.

    Raises:
      SummaryError: the summary is damaged.
    """
    path = f"{out.rstrip('/')}/{SUMMARY}"
    try:
        content = store.get(path)
    except MissingObjectError:
        return None
    with reading(path, SummaryError, "run the step again", "damaged"):
        return validated(json.loads(content), _FORM)


def outputs_digest(out: str, results: Sequence[StepResult]) -> str:
    """Return one digest of the names that a step gave below `out` and the contents of all outputs.

    It does not depend on `out` itself, nor on the order of the results.
    """
    lines = sorted(
        f"{plain_name(ref.path, out)}\0{ref.size}\0{ref.digest}\n"
        for result in results
        for ref in result.outputs
    )
    return digest_bytes("".join(lines).encode())


def run_totals(summaries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Add up the steps of a run: steps, partitions, done, kept, retries, bytes and seconds."""
    names = {"retries": "attempts_failed", "seconds": "wall_seconds"}
    names |= {name: name for name in ("partitions", "done", "kept", "bytes")}
    totals = {total: sum(s[name] for s in summaries) for total, name in names.items()}
    return {"steps": len(summaries), **totals}


def totals_text(totals: Mapping[str, float]) -> str:
    """Format `run_totals` as a line of plain text."""
    return (
        f"{totals['steps']:,} steps, {totals['done']:,} of {totals['partitions']:,} partitions "
        f"({totals['kept']:,} of them kept), {totals['retries']:,} retries, "
        f"{totals['bytes'] / 1e9:,.3f} GB in {duration(totals['seconds'])}"
    )


def summary_page(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Render summaries of steps, in the order of the pipeline, as an HTML page."""
    columns = (
        "step", "partitions", "hours", "wall", "hours/hour", "objects", "GB", "GET", "PUT", "HEAD",
        "LIST", "repeated", "failed elements", "set aside", "peak memory",
    )  # fmt: skip
    table = html_table(columns, map(_row, summaries))
    lists = "".join(map(_poisoned, summaries))
    return html_page("Data pipeline", f"<h1>Data pipeline</h1>\n{table}{lists}")


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
    wall = max(summary["wall_seconds"], 1e-9)
    calls = summary["calls"]
    kept = f" ({summary['kept']} kept)" if summary["kept"] else ""
    rate = f"{3600 * summary['hours'] / wall:,.0f}" if not summary["kept"] else ""
    return (
        summary["step"],
        f"{summary['done']:,} of {summary['partitions']:,}{kept}",
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


def _poisoned(summary: Mapping[str, Any]) -> str:
    if not summary["poisoned"]:
        return ""
    items = "".join(
        f"<h3>{html.escape(p['partition'])}</h3><p>{html.escape(p['reason'])}</p>"
        + (f"<pre>{html.escape(p['trace'])}</pre>" if p["trace"] else "")
        for p in summary["poisoned"]
    )
    return f"<h2>{html.escape(summary['step'])}: partitions set aside</h2>{items}\n"


def _counts(run: Mapping[str, Any]) -> Counts:
    calls = {**run, "seconds": run.get("store_seconds", 0.0)}
    return Counts(**{name: calls[name] for name in Counts().to_dict() if name in calls})


def _totals(results: Sequence[StepResult]) -> dict[str, float]:
    """Add up the numbers that the results have in `about`."""
    totals: dict[str, float] = {}
    for result in results:
        for name, value in result.about.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                totals[name] = totals.get(name, 0) + value
    return totals
