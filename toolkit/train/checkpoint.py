"""Checkpoints: nested dicts and lists of tensors and plain values in one safetensors file."""

import json
import re
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from toolkit.models.store import storable
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading, validated
from toolkit.train.errors import TrainingError

KEPT = 2  # checkpoints of a training
_NAME = re.compile(r"epoch-(\d+)-step-(\d+)\.safetensors")
_OWN = re.compile(r"epoch-(\d+)-step-(\d+)\.rank-\d+\.safetensors")


def write_state(path: Path, state: dict[str, Any], own: bool = False) -> None:
    """Write nested dicts (with str or int keys) and lists atomically, bit for bit.

    Tensors are moved to the CPU; everything else goes to the file's header as JSON. Keys keep
    their types, so that an optimizer's state is restored unchanged. With `own` ranks other than 0
    write too.
    """
    tensors: dict[str, Tensor] = {}
    plain = _split(state, "", tensors)
    write_atomically(path, save(storable(tensors), metadata={"plain": json.dumps(plain)}), own)


def read_state(path: Path) -> dict[str, Any]:
    """Read what `write_state` wrote; tensors are on the CPU.

    Raises:
      TrainingError: the file is damaged.
    """
    with reading(path, TrainingError, "remove it to go on", "no checkpoint"):
        tensors, about = read_tensors(path, {})
        return validated(_join(json.loads(about["plain"]), tensors), dict)


class Checkpoints:
    """The checkpoints of one training in a folder; the newest two are kept.

    A checkpoint is a file of the common state. Where ranks differ, each of them has a file of its
    own beside it; the common one is written last.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)

    def save(self, epoch: int, step: int, state: dict[str, Any]) -> None:
        """Write the state after `step` steps of `epoch`, then remove old checkpoints.

        Those of later steps are old, too: with more workers a training goes on from a lower step.
        """
        write_state(self._folder / f"{_stem(epoch, step)}.safetensors", state)
        found = self._found(_NAME)
        reached = [position for position, _ in found if position <= (epoch, step)]
        kept = set(reached[-KEPT:])
        for position, path in found + self._found(_OWN):
            if position not in kept:
                path.unlink(missing_ok=True)

    def save_rank_state(self, epoch: int, step: int, rank: int, state: dict[str, Any]) -> None:
        """Write the state of one rank; all ranks must have done so before `save`."""
        write_state(self._own_path(epoch, step, rank), state, own=True)

    def load_rank_state(self, epoch: int, step: int, rank: int) -> dict[str, Any]:
        """Read what `save_rank_state` wrote.

        Raises:
          TrainingError: the file is damaged or missing.
        """
        path = self._own_path(epoch, step, rank)
        if not path.exists():
            raise TrainingError(
                f"{path} is missing, the state of worker {rank} in the checkpoint: restore it, or "
                f"remove {_stem(epoch, step)}.safetensors to resume from the one before"
            )
        return read_state(path)

    def latest(self) -> dict[str, Any] | None:
        """Read the newest checkpoint; None when there is none."""
        found = self._found(_NAME)
        return read_state(found[-1][1]) if found else None

    def remove(self) -> None:
        """Remove all checkpoints."""
        for _, path in self._found(_NAME) + self._found(_OWN):
            path.unlink(missing_ok=True)

    def _own_path(self, epoch: int, step: int, rank: int) -> Path:
        return self._folder / f"{_stem(epoch, step)}.rank-{rank:04d}.safetensors"

    def _found(self, pattern: re.Pattern) -> list[tuple[tuple[int, int], Path]]:
        """List the files of a kind, oldest first."""
        matches = [(pattern.fullmatch(path.name), path) for path in self._folder.glob("*")]
        return sorted((tuple(map(int, m.groups())), path) for m, path in matches if m)


def _stem(epoch: int, step: int) -> str:
    return f"epoch-{epoch:04d}-step-{step:08d}"


def _split(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Collect the tensors of nested containers; these become JSON lists tagged by kind."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return ["tensor", name]
    if isinstance(value, dict):
        items = [[key, _split(item, f"{name}/{key}", tensors)] for key, item in value.items()]
        return ["dict", items]
    if isinstance(value, (list, tuple)):
        items = [_split(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
        return ["list", items]
    return ["value", value]


def _join(plain: Any, tensors: dict[str, Tensor]) -> Any:
    kind, value = plain
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: _join(item, tensors) for key, item in value}
    if kind == "list":
        return [_join(item, tensors) for item in value]
    return value
