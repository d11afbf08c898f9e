"""How cost has grown in finished runs of a recipe, from the markers of their stages."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.bench.growth.measure import FACTORS, Growth
from toolkit.bench.instruments.harness import BenchmarkError
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import Marker, UnreadableMarkerError

WAY_OUT = "run the recipe there, on each of the amounts of data"


def growth_of_runs(runs: Sequence[Path]) -> list[Growth]:
    """Return what each stage took, by the wall, and the peak of its processes.

    Args:
      runs: directories of runs on `FACTORS` times the data, in this order.

    Raises:
      BenchmarkError: there are more or fewer runs, or their stages differ.
    """
    if len(runs) != len(FACTORS):
        sizes = ", ".join(map(str, FACTORS))
        raise BenchmarkError(f"{len(runs)} runs: there must be one for each of {sizes} times data")
    stages: set[int] = set()
    for run in runs:
        if not (finished := list(RunDirectory(run).stages.glob("[0-9][0-9].json"))):
            raise BenchmarkError(f"{run}: no stage is finished; {WAY_OUT}")
        stages |= {int(path.stem) for path in finished}
    return [_growth([_marker(run, stage) for run in runs]) for stage in sorted(stages)]


def _marker(run: Path, stage: int) -> Marker:
    path = RunDirectory(run).marker(stage)
    try:
        marker = Marker.read(path)
    except UnreadableMarkerError as error:
        raise BenchmarkError(f"{path}: {error}") from error
    if marker is None:
        raise BenchmarkError(f"{path}: stage {stage} is not finished; {WAY_OUT}")
    return marker


def _growth(markers: Sequence[Marker]) -> Growth:
    first = markers[0]
    if len(titles := {marker.title for marker in markers}) > 1:
        raise BenchmarkError(f"stage {first.stage} is {' and '.join(sorted(titles))} in these runs")
    seconds = tuple(max(marker.seconds, 0.001) for marker in markers)  # they are rounded to that
    peaks = tuple(marker.peak_bytes for marker in markers)
    return Growth(f"{first.stage} {first.title}", 1, seconds, peaks)
