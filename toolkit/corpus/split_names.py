"""The names of a corpus's splits by purpose: training, tuning and test."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.split import matches
from toolkit.errors import ToolkitError
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading


class SplitsError(ToolkitError):
    """A file of split names that cannot be read."""


@dataclass(frozen=True)
class Splits:
    """The names of a corpus's splits by purpose."""

    train: str
    """The split to train on."""
    tune: tuple[str, ...]
    """The splits on which scales and penalties are chosen."""
    test: tuple[str, ...]
    """The splits that are only reported on."""

    @classmethod
    def of(cls, names: Iterable[str], corpus: CorpusConfig) -> "Splits":
        """Sort split names by purpose: `train`, those that match `corpus.dev`, all others."""
        others = [name for name in names if name != "train"]
        tune = tuple(name for name in others if name == "dev" or matches(name, corpus.dev))
        return cls("train", tune, tuple(name for name in others if name not in tune))

    @property
    def all(self) -> tuple[str, ...]:
        """All splits, training first."""
        return (self.train, *self.tune, *self.test)

    @property
    def decoded(self) -> tuple[str, ...]:
        """The splits to decode, tuning first."""
        return (*self.tune, *self.test)

    def save(self, path: Path) -> None:
        """Write the names as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Splits":
        """Read what `save` wrote.

        Raises:
          SplitsError: naming the file.
        """
        with reading(path, SplitsError, "prepare the data again"):
            plain = read_json(path, {"train": str, "tune": [str], "test": [str]})
        return cls(plain["train"], tuple(plain["tune"]), tuple(plain["test"]))
