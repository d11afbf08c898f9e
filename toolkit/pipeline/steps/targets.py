"""The step `targets`: a teacher's k best logits, in batches on the worker's device (C11, C20)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from lhotse.array import Array
from torch import Tensor, nn

from toolkit.config.fields import BatchFrames, ListLength, Settings
from toolkit.features.low_frame_rate import stack
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import SHARDS, field_file, shard_writer
from toolkit.models.scorer import batch_logits
from toolkit.models.store import CONFIG, WEIGHTS, load_model
from toolkit.pipeline.config import LowRateOffset
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.shards import put_shard, single_shard
from toolkit.pipeline.step import Partition, Resources, StepError, StepResult
from toolkit.pipeline.steps.stats import read_utterances
from toolkit.processes.devices import torch_threads
from toolkit.ssl.targets import KBest, k_best
from toolkit.storage.digests import file_digest
from toolkit.train.batches import prefetched

WINDOW = 256
"""Number of utterances that are sorted by length together, so that batches have little padding."""
FIELD = "targets"


@dataclass(frozen=True)
class Teacher:
    """The objects of a trained model; their digests are part of the name of its targets."""

    config: ObjectRef
    """`config.json` of the model."""
    weights: ObjectRef
    """`model.safetensors` of the model."""
    normaliser: ObjectRef
    """Normaliser of the features that the model was trained on."""

    @classmethod
    def at(
        cls, store: ObjectStore, model: Path, normaliser: Path, url: str | None = None
    ) -> "Teacher":
        """Upload a local model, so that all workers can read it.

        Args:
          store: writes the objects.
          model: folder of the model.
          normaliser: its features' normaliser.
          url: prefix to write the model to, in folders named by content, so that other runs may use
            the prefix too; None: workers on this machine read the model in place.

        Raises:
          StepError: a file is missing.
        """
        files = {"config": model / CONFIG, "weights": model / WEIGHTS, "normaliser": normaliser}
        for path in files.values():
            if not path.is_file():
                raise StepError(
                    f"{path}: no such file. Set `teacher` to the folder of a trained model, and "
                    "`normaliser` to the normaliser.json of the model's features"
                )

        def place(path: Path) -> str:
            """Return the path or URL at which a file of the model is stored."""
            return str(path) if url is None else f"{url}/{file_digest(path).digest}/{path.name}"

        paths = {name: path.absolute() for name, path in files.items()}
        return cls(**{name: store.put_file(path, place(path)) for name, path in paths.items()})


@dataclass(frozen=True)
class TargetsConfig(Settings):
    """Settings of `Targets`."""

    teacher: Teacher
    """The trained teacher."""
    k: ListLength = 20
    """Logits kept per frame; 20 (C11)."""
    offset: LowRateOffset = 0
    """Raw frame at which the first low-rate frame begins: 0, 1 or 2. One pass over the data
    (C12) needs only one."""
    batch_frames: BatchFrames = 4096
    """Low-rate frames per batch, padding included; affects memory, and the last bits of results."""


@dataclass(frozen=True)
class Targets:
    """Write the k best logits of every low-rate frame of a shard: `shards/targets.NNNNNN.tar`.

    The tar has the shard's utterances in their order, as lhotse's Shar field `targets`. `about` has
    `targets` (number of low-rate frames), `tail` (sum of the probabilities that are not stored) and
    `senones`.
    """

    config: TargetsConfig
    name = "targets"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Compute the targets of one shard; see `Step.run`."""
        shard = single_shard(partition.inputs)
        frames, tail = 0, 0.0
        path = resources.scratch / SHARDS / field_file(FIELD, shard.index)
        with torch_threads(resources.threads):
            model, normaliser = _load_teacher(self.config.teacher, store, resources)
            inputs = (
                (name, stack(normaliser.apply(x, state), self.config.offset))
                for name, x, state in read_utterances(shard, store, resources.scratch)
            )
            # Keep a GPU busy: a thread reads and stacks the next utterances.
            if resources.device != "cpu":
                inputs = prefetched(inputs, WINDOW)
            with shard_writer(path) as writer:
                for name, best in compute_targets(model, inputs, self.config):
                    packed = best.pack()
                    manifest = Array("shar", "", "", list(packed.shape)).to_dict()
                    writer.add_array(name, packed, manifest)
                    frames += len(best)
                    tail += float(best.tail.sum(dtype=np.float64))
        about = {
            "hours": shard.hours,
            "targets": frames,
            "tail": tail,
            "senones": model.config.output_dim,
        }
        return StepResult(put_shard({FIELD: path}, shard.index, {}, store, out), (), about)


def compute_targets(
    model: nn.Module, utterances: Iterable[tuple[str, Tensor]], config: TargetsConfig
) -> Iterator[tuple[str, KBest]]:
    """Compute targets in batches of similar lengths, and yield them in the order of the input.

    Args:
      model: the teacher.
      utterances: id and low-rate features [T, D] of each.
      config: k and the size of batches.
    """
    # Batches have similar lengths within a window; the output keeps the order of the input.
    stream = iter(utterances)
    while window := list(islice(stream, WINDOW)):
        targets_by_row: dict[int, KBest] = {}
        for batch in batches([len(x) for _, x in window], config.batch_frames):
            logits = batch_logits(model, [window[row][1] for row in batch])
            batch_targets = k_best(torch.cat(logits), config.k)  # one copy from a GPU
            targets_by_row |= zip(
                batch, batch_targets.split([len(rows) for rows in logits]), strict=True
            )
        for row, (name, _) in enumerate(window):
            yield (
                name,
                targets_by_row[row] if row in targets_by_row else _no_targets(model, config.k),
            )


def batches(lengths: Sequence[int], frames: int) -> list[list[int]]:
    """Batch utterances, longest first, so that each batch has at most `frames` frames.

    Padding counts as frames. An utterance that is longer is a batch of its own; an empty one is in
    no batch.

    Args:
      lengths: number of frames of each utterance.
      frames: largest number of frames per batch.

    Returns:
      Each batch, as indices into `lengths`.
    """
    # Longest first: the first row of a batch gives its padded length.
    rows = sorted((r for r in range(len(lengths)) if lengths[r]), key=lambda r: (-lengths[r], r))
    row_batches: list[list[int]] = []
    while rows:
        count = max(1, frames // lengths[rows[0]])
        row_batches.append(rows[:count])
        rows = rows[count:]
    return row_batches


def _no_targets(model: nn.Module, k: int) -> KBest:
    """Return the targets of an utterance without frames."""
    return k_best(torch.zeros(0, model.config.output_dim), k)


_cache: dict[tuple[str, ...], tuple[nn.Module, Cmvn]] = {}


def _load_teacher(
    teacher: Teacher, store: ObjectStore, resources: Resources
) -> tuple[nn.Module, Cmvn]:
    """Load the teacher, once per process and device."""
    key = (
        resources.device,
        *(str(getattr(teacher, field.name).digest) for field in fields(teacher)),
    )
    if key not in _cache:
        folder = resources.scratch / "teacher"
        folder.mkdir(parents=True)
        for ref, name in ((teacher.config, CONFIG), (teacher.weights, WEIGHTS)):
            (folder / name).write_bytes(store.get(ref))
        (folder / "normaliser.json").write_bytes(store.get(teacher.normaliser))
        _cache.clear()  # one teacher at a time: it may fill most of a GPU's memory
        _cache[key] = (
            load_model(folder).to(resources.device),
            Cmvn.load(folder / "normaliser.json"),
        )
    return _cache[key]
