"""Features of many cuts on a device, in batches, while threads read the audio of later ones."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from torch import Tensor

from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.frontend import Frontend
from toolkit.processes.workers import map_in_threads

if TYPE_CHECKING:
    from lhotse.cut import MonoCut

BATCH = 32
"""Most utterances per batch."""
BATCH_SECONDS = 320.0
"""Audio per batch, after which it is closed: some 200 MB of the device's memory."""
BATCHES_AHEAD = 2


def features_on_device(
    cuts: "Iterable[MonoCut]", frontend: Frontend, jobs: int
) -> Iterator[Tensor | Exception]:
    """Compute the features of cuts, in their order.

    Args:
      cuts: any number; they are taken as needed.
      frontend: for the device to compute on.
      jobs: threads that read audio.

    Yields:
      For each cut [T, F] float32 on the CPU, or the exception that its audio or features raised.
    """
    rate = frontend.config.sampling_rate

    def load(cut: "MonoCut") -> Tensor | Exception:
        try:
            return load_cut_audio(cut, rate)
        except Exception as error:
            return error

    def compute(batch: list[Tensor | Exception]) -> list[Tensor | Exception]:
        found = iter(frontend.batch([x for x in batch if isinstance(x, Tensor)]))
        return [next(found) if isinstance(x, Tensor) else x for x in batch]

    loaded = map_in_threads(load, cuts, jobs, jobs + 2 * BATCH)
    batches = _batches(loaded, BATCH_SECONDS * rate)
    return chain.from_iterable(map_in_threads(compute, batches, 1, BATCHES_AHEAD))


def _batches(
    loaded: Iterator[Tensor | Exception], most: float
) -> Iterator[list[Tensor | Exception]]:
    """Group what was loaded; a batch is closed at `BATCH` or `most` samples."""
    batch: list[Tensor | Exception] = []
    samples = 0
    for one in loaded:
        batch.append(one)
        samples += len(one) if isinstance(one, Tensor) else 0
        if len(batch) == BATCH or samples >= most:
            yield batch
            batch, samples = [], 0
    if batch:
        yield batch
