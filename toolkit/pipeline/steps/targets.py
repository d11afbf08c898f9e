"""Targets of a teacher, in batches on whatever device the worker has (C11, C20)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from lhotse.array import Array
from torch import Tensor, nn

from toolkit.features.lfr import LOW_RATE_FACTOR, stack
from toolkit.features.normalise import Normaliser
from toolkit.features.tars import TarWriter
from toolkit.models.lstm import batch_logits
from toolkit.models.store import CONFIG, WEIGHTS, load_model
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.rows import field_file
from toolkit.pipeline.shards import only_shard, put_shard, workplace
from toolkit.pipeline.step import Partition, Resources, StepResult
from toolkit.pipeline.steps.stats import read_utterances
from toolkit.processes.threads import torch_threads
from toolkit.ssl.targets import KBest, k_best
from toolkit.storage.files import open_atomically

WINDOW = 256
"""Utterances sorted by length together, so that batches have little padding."""
FIELD = "targets"


@dataclass(frozen=True)
class Teacher:
    """The objects of a trained model; their digests are part of what names its targets."""

    config: ObjectRef
    """`config.json` of the model."""
    weights: ObjectRef
    """`model.safetensors`."""
    normaliser: ObjectRef
    """Of the features that it was trained on."""

    @classmethod
    def at(
        cls, store: ObjectStore, model: Path, normaliser: Path, url: str | None = None
    ) -> "Teacher":
        """Name a local model, and put it where all workers find it.

        Args:
          store: writes the objects.
          model: folder of the model.
          normaliser: its features' normaliser.
          url: prefix to put it at; None: it stays in place, for workers on this machine.
        """
        files = {"config": model / CONFIG, "weights": model / WEIGHTS, "normaliser": normaliser}
        return cls(
            **{
                name: store.put_file(
                    path.absolute(), str(path.absolute()) if url is None else f"{url}/{path.name}"
                )
                for name, path in files.items()
            }
        )


@dataclass(frozen=True)
class TargetsConfig:
    """Of `Targets`."""

    teacher: Teacher
    """The trained teacher."""
    k: int = 20
    """Logits kept per frame; 20 (C11)."""
    offset: int = 0
    """Raw frame that the first low-rate frame begins with: 0, 1 or 2. One pass over the data
    (C12) needs one."""
    batch_frames: int = 4096
    """Low-rate frames per batch, padding included; decides memory, and the last bits."""

    def __post_init__(self) -> None:
        if self.k < 1 or self.batch_frames < 1:
            raise ValueError("k and batch_frames must be at least 1")
        if not 0 <= self.offset < LOW_RATE_FACTOR:
            raise ValueError(f"offset must be 0 to {LOW_RATE_FACTOR - 1}")


@dataclass(frozen=True)
class Targets:
    """Write the k best logits of every low-rate frame of a shard: `shards/targets.NNNNNN.tar`.

    The tar has the shard's utterances in its order, as lhotse's Shar field `targets`.
    `about`: `targets` (low-rate frames), `tail` (sum of the probability that is not stored),
    `senones`.
    """

    config: TargetsConfig
    name = "targets"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """See `Step`."""
        shard = only_shard(partition.inputs)
        frames, tail = 0, 0.0
        path = workplace(out, resources.scratch) / field_file(FIELD, shard.index)
        with torch_threads(resources.threads):
            model, normaliser = _loaded(self.config.teacher, store, resources)
            inputs = (
                (name, stack(normaliser.apply(x, state), self.config.offset))
                for name, x, state in read_utterances(shard, store, resources.scratch)
            )
            with open_atomically(path, "wb") as file:
                tar = TarWriter(file)
                for name, best in compute_targets(model, inputs, self.config):
                    packed = best.pack()
                    manifest = Array("shar", "", "", list(packed.shape)).to_dict()
                    tar.add_array(name, packed, manifest)
                    frames += len(best)
                    tail += float(best.tail.sum(dtype=np.float64))
                tar.close()
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
    """Compute targets in batches of similar lengths, and yield them in the order given.

    Args:
      model: the teacher.
      utterances: id and low-rate features [T, D] of each.
      config: k and the size of batches.
    """
    stream = iter(utterances)
    while window := list(islice(stream, WINDOW)):
        found: dict[int, KBest] = {}
        for batch in batches([len(x) for _, x in window], config.batch_frames):
            logits = batch_logits(model, [window[row][1] for row in batch])
            for row, utterance in zip(batch, logits, strict=True):
                found[row] = k_best(utterance, config.k)
        for row, (name, _) in enumerate(window):
            yield name, found[row] if row in found else _nothing(model, config.k)


def batches(lengths: Sequence[int], frames: int) -> list[list[int]]:
    """Put utterances together, longest first, so that each batch has at most `frames` frames.

    Padding counts; an utterance that is longer has a batch of its own; one of none has none.
    """
    rows = sorted((r for r in range(len(lengths)) if lengths[r]), key=lambda r: (-lengths[r], r))
    made: list[list[int]] = []
    while rows:
        count = max(1, frames // lengths[rows[0]])
        made.append(rows[:count])
        rows = rows[count:]
    return made


def _nothing(model: nn.Module, k: int) -> KBest:
    return k_best(torch.zeros(0, model.config.output_dim), k)


_cache: dict[tuple[str, ...], tuple[nn.Module, Normaliser]] = {}


def _loaded(
    teacher: Teacher, store: ObjectStore, resources: Resources
) -> tuple[nn.Module, Normaliser]:
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
        _cache.clear()
        _cache[key] = (
            load_model(folder).to(resources.device),
            Normaliser.load(folder / "normaliser.json"),
        )
    return _cache[key]
