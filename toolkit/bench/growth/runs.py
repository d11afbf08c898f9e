"""How cost has grown in finished runs of a recipe, from the markers of their stages."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.bench.growth.measure import FACTORS, Growth
from toolkit.bench.instruments.harness import BenchmarkError
from toolkit.stages.marker import Marker, UnreadableMarkerError

WAY_OUT = "run the recipe there, on each of the amounts of data"


def growth_of_runs(runs: Sequence[Path]) -> list[Growth]:
    """Return what each stage took, by the wall, and the peak of its processes.

    Args:
      runs: directories of runs on `FACTORS` times the data, in this order.

    Raises:
      BenchmarkError: there are more or fewer runs, or one of them lacks a stage that the first has.
    """
    if len(runs) != len(FACTORS):
        sizes = ", ".join(map(str, FACTORS))
        raise BenchmarkError(f"{len(runs)} runs: there must be one for each of {sizes} times data")
    stages = sorted(int(path.stem) for path in (runs[0] / "stages").glob("[0-9][0-9].json"))
    if not stages:
        raise BenchmarkError(f"{runs[0]}: no stage is finished; {WAY_OUT}")
    return [_growth([_marker(run, stage) for run in runs]) for stage in stages]


def _marker(run: Path, stage: int) -> Marker:
    path = run / "stages" / f"{stage:02d}.json"
    try:
        marker = Marker.read(path)
    except UnreadableMarkerError as error:
        raise BenchmarkError(f"{path}: {error}") from error
    if marker is None or marker.peak_bytes is None:
        raise BenchmarkError(f"{path}: stage {stage} is not finished; {WAY_OUT}")
    return marker


def _growth(markers: Sequence[Marker]) -> Growth:
    first = markers[0]
    seconds = tuple(max(marker.seconds, 0.001) for marker in markers)  # they are rounded to that
    peaks = tuple(marker.peak_bytes or 0 for marker in markers)
    return Growth(f"{first.stage} {first.title}", 1, seconds, peaks)
