"""Random and sequential access to stored targets by utterance."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from toolkit.features.shards import SHARDS, index_features
from toolkit.ssl.targets import KBest, TargetError
from toolkit.storage.reading import NATURAL, parse_array, read_json, reading

MANIFEST = "targets.json"
ADVICE = "make the targets again"
FIELDS = {"senones": NATURAL, "offset": NATURAL}
"""Of the manifest; it may have others."""


class TargetStore:
    """The targets of a set of shards: `targets.json`, and `shards/targets.NNNNNN.tar`.

    Tar files are indexed at first use. Files are opened for each read, so that a store may be used
    from many processes and pickled.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        with reading(path, TargetError, ADVICE, "not a folder of targets"):
            self.manifest = read_json(self.path / MANIFEST, FIELDS)
        self.num_senones: int = self.manifest["senones"]
        """C, number of senones."""
        self.offset: int = self.manifest["offset"]
        """Raw frame at which the first low-rate frame begins."""
        self._files = sorted((self.path / SHARDS).glob("targets.*.tar"))

    @cached_property
    def _index(self) -> dict[str, tuple[Path, int, int]]:
        index = {}
        for path in self._files:
            with reading(path, TargetError, ADVICE):
                index |= {name: (path, start, size) for name, start, size in index_features(path)}
        return index

    @cached_property
    def ids(self) -> list[str]:
        """All utterance ids, in shard order."""
        return list(self._index)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def load(self, name: str) -> KBest:
        """Read the targets of an utterance, at the low frame rate."""
        if name not in self._index:
            raise TargetError(f"{name}: no targets in {self.path}")
        path, offset, size = self._index[name]
        with (
            reading(path, TargetError, ADVICE, f"{name} cannot be read"),
            open(path, "rb") as file,
        ):
            file.seek(offset)
            try:
                return KBest.unpack(parse_array(file.read(size)))
            except TargetError as error:
                raise TargetError(f"{name}: {error} in {path}; {ADVICE}") from error

    def iter(self) -> Iterator[tuple[str, KBest]]:
        """Yield (id, targets) of every utterance in shard order."""
        for name in self.ids:
            yield name, self.load(name)
