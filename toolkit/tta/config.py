"""Targets and rules of time to accuracy, TTA (A26, A40), and the difficulty of data sets (A4)."""

import difflib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from toolkit.config.fields import Positive, Range, Settings
from toolkit.config.settings import read_yaml
from toolkit.errors import ToolkitError
from toolkit.storage.reading import reading, validated

EQUAL_BATCH_WER = (22.0, 20.0, 19.0)
"""Target word error rates of the equal-batch study in percent (A34)."""
FEWEST_RUNS = 3
"""Runs that MLPerf's rule needs, since it leaves out the best and the worst."""


ErrorRate = Annotated[float, Range(0, 1000)]
"""Percent; insertions make it higher than 100."""


@dataclass(frozen=True)
class TtaConfig(Settings):
    """The target accuracies: the time until they are reached is measured."""

    cer: tuple[ErrorRate, ...] = (10.0, 8.0, 7.0)
    """Character error rates in percent (A26)."""
    wer: tuple[ErrorRate, ...] = (22.0, 20.2, 19.2)
    """Word error rates in percent (A26); those of the equal-batch study are `EQUAL_BATCH_WER`."""
    epochs: Annotated[int, Range(1, 1_000_000)] = 3
    """e: number of epochs whose median must reach the accuracy, so that it is stable; 3 in the
    paper (A26)."""

    @property
    def targets(self) -> list[tuple[str, float]]:
        """All (metric, target) in the order of the tables: CER, then WER, the easiest first."""
        return [
            (metric, a)
            for metric in ("cer", "wer")
            for a in sorted(getattr(self, metric), reverse=True)
        ]


def time_to_accuracy(
    seconds: Sequence[float], rates: Sequence[float], target: float, epochs: int = 3
) -> float | None:
    """Return TTA(a, e): when the median error rate of the last e epochs first is <= a (A26).

    No accuracy is reached before e epochs have been evaluated.

    Args:
      seconds: time of each epoch's evaluation, since the model's creation.
      rates: error rate of each epoch.
      target: a.
      epochs: e.

    Returns:
      Seconds; None if the target was never reached (NA in the paper).
    """
    for end in range(epochs, len(rates) + 1):
        # The median of e epochs: one lucky epoch does not count as reached.
        if statistics.median(rates[end - epochs : end]) <= target:
            return seconds[end - 1]
    return None


def first_epoch(seconds: Sequence[float], rates: Sequence[float], target: float) -> float | None:
    """Return when an epoch's error rate is first <= `target`; None if never (DAWNBench's rule)."""
    return time_to_accuracy(seconds, rates, target, epochs=1)


def mlperf(times: Sequence[float | None]) -> float | None:
    """Return the mean time over runs without the best and the worst (MLPerf's rule).

    Args:
      times: times by `first_epoch` of runs that differ only in their seeds; None for a run that did
        not reach the target. One such run is allowed and counts as the worst.

    Returns:
      The mean; None with fewer than three runs, or if more than one did not reach the target.
    """
    if len(times) < FEWEST_RUNS:
        return None
    # A run that did not reach the target is the worst, which the rule leaves out.
    middle_times = sorted(math.inf if time is None else time for time in times)[1:-1]
    mean = statistics.fmean(middle_times)
    return mean if math.isfinite(mean) else None


def typical(times: Sequence[float | None]) -> float | None:
    """Return the median time over runs; None if the median run did not reach the target.

    With an even number of runs, it is the later of the two times in the middle.
    """
    if not times:
        return None
    middle = statistics.median_high(math.inf if time is None else time for time in times)
    return middle if math.isfinite(middle) else None


Utterances = Literal["isolated", "connected", "continuous", "spontaneous"]
Speakers = Literal["dependent", "adaptive", "independent"]
Vocabulary = Literal["single word", "small", "medium", "large", "very large", "out of vocabulary"]
Noise = Literal["none", "low", "moderate", "high"]
AXES = {
    "utterances": ("Utterances", get_args(Utterances)),
    "speakers": ("Speaker model", get_args(Speakers)),
    "vocabulary": ("Vocabulary", get_args(Vocabulary)),
    "noise": ("Noise", get_args(Noise)),
}
"""Axes: field -> title, and values from the easiest to the hardest."""


class DatasetError(ToolkitError):
    """A dataset file cannot be read."""


@dataclass(frozen=True)
class Dataset(Settings):
    """A data set on the axes. LibriSpeech: continuous, independent, very large, low."""

    name: str
    """Name of the corpus."""
    utterances: Utterances
    """Pauses between words, and how planned the speech is."""
    speakers: Speakers
    """Whether the training data has the test data's speakers and environments."""
    vocabulary: Vocabulary
    """Number of words; "out of vocabulary": words that the training data does not have."""
    noise: Noise = "none"
    """Sounds that are not the speaker's voice."""
    hours: Positive | None = None
    """Hours of training speech; 960 in the paper (A5)."""
    kept: str = ""
    """Share of the utterances that are short enough, such as `99 % of training` (A6)."""


def read_dataset(path: Path) -> Dataset:
    """Read a data set's file: YAML or JSON with the fields of `Dataset`.

    Raises:
      DatasetError: the file is not valid; the message names the file and the key.
    """
    with reading(path, DatasetError, "expected `key: value` lines"):
        values = validated(read_yaml(path), {str: Any})
    field_names = [field.name for field in fields(Dataset)]
    for key in values:
        if key not in field_names:
            near = difflib.get_close_matches(str(key), field_names, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"valid keys: {', '.join(field_names)}"
            raise DatasetError(f"{path}: unknown key `{key}`; {hint}")
    try:
        return Dataset(**values)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{path}: {error}") from error
