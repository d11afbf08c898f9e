"""Reads a teacher's targets by utterance."""

from pathlib import Path

from toolkit.features.shards import SHARDS, ShardStore
from toolkit.ssl.targets import ADVICE, FIELDS, MANIFEST, KBest, TargetError
from toolkit.storage.reading import read_json, reading


class TargetStore(ShardStore[KBest]):
    """The targets of a set of shards: `targets.json`, and `shards/targets.NNNNNN.tar`."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        super().__init__(self.path / SHARDS, "targets", KBest.unpack, TargetError, ADVICE)
        with reading(path, TargetError, ADVICE, "not a folder of targets"):
            self.manifest = read_json(self.path / MANIFEST, FIELDS)
        self.num_senones: int = self.manifest["senones"]
        """C, number of senones."""
        self.offset: int = self.manifest["offset"]
        """Raw frame at which the first low-rate frame begins."""
