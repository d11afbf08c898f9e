"""Combination of the recipe's systems."""

from collections.abc import Sequence
from pathlib import Path

from recipes.steps.data import cuts, splits
from toolkit.decode.combine import LATTICES, NAME, TEXT, DecodedSplit, combine_decodes
from toolkit.processes.workers import shared_workers
from toolkit.stages.run import Run


@shared_workers()
def combine_systems(run: Run, systems: Sequence[str]) -> dict[str, float]:
    """Combine decoded systems, which have word lattices; weights are tuned and all is scored."""
    found = splits(run)
    combined = {
        split: DecodedSplit(
            cuts(run, split), {s: _decode(run, s, split) for s in systems}, split in found.tune
        )
        for split in found.decoded
    }
    rows = [run.need(f"decode/{system}/rows.json") for system in systems]
    out = run.make(f"decode/{NAME}")
    return combine_decodes(combined, rows, out, run.jobs, run.command, run.progress)


def _decode(run: Run, system: str, split: str) -> Path:
    """Return the folder of a decoded split."""
    run.need(f"decode/{system}/{split}/{TEXT}")
    return run.need(f"decode/{system}/{split}/{LATTICES}").parent
