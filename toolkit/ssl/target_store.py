"""Random and sequential access to stored targets by utterance."""

import io
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from toolkit.features.shards import SHARDS, index_features
from toolkit.ssl.targets import KBest, TargetError

MANIFEST = "targets.json"


class TargetStore:
    """The targets of a set of shards: `targets.json`, and `shards/targets.NNNNNN.tar`.

    Tars are scanned when they are first needed. Files are opened for each read, so that a store
    may be used from many processes and pickled.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            self.manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
            self.num_senones: int = self.manifest["senones"]
            """C."""
            self.offset: int = self.manifest["offset"]
            """Raw frame that the first low-rate frame begins with."""
        except (OSError, ValueError, KeyError) as error:
            raise TargetError(f"{path}: not a folder of targets ({error!r})") from error
        self._files = sorted((self.path / SHARDS).glob("targets.*.tar"))

    @cached_property
    def _places(self) -> dict[str, tuple[Path, int, int]]:
        return {
            name: (path, offset, size)
            for path in self._files
            for name, offset, size in index_features(path)
        }

    @cached_property
    def ids(self) -> list[str]:
        """All utterance ids, in shard order."""
        return list(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def load(self, name: str) -> KBest:
        """Read the targets of an utterance, at the low frame rate."""
        if name not in self._places:
            raise TargetError(f"{name}: no targets in {self.path}")
        path, offset, size = self._places[name]
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                return KBest.unpack(np.load(io.BytesIO(file.read(size)), allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise TargetError(f"{name}: cannot be read from {path} ({error})") from error

    def iter(self) -> Iterator[tuple[str, KBest]]:
        """Yield (id, targets) of every utterance in shard order."""
        for name in self.ids:
            yield name, self.load(name)
