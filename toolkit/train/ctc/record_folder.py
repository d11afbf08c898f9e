"""A folder of record files, with random access by utterance."""

from pathlib import Path
from typing import Any

import numpy as np

from toolkit.config.fields import from_plain
from toolkit.features.frontend import FrontendConfig
from toolkit.storage.reading import NATURAL, read_json, reading, validated
from toolkit.train.ctc.record_file import (
    ADVICE,
    Column,
    FileIndex,
    Record,
    RecordError,
    read_index,
    read_record,
)

RECORDS = "records.json"
FILES = "files"
_MANIFEST = dict.fromkeys(("dimension", "files", "utterances"), NATURAL) | {"symbols": [str]}


def record_path(folder: Path, number: int) -> Path:
    """Return the path of a record file."""
    return folder / FILES / f"records.{number:06d}.safetensors"


class Records:
    """The record files of a split, with an index of their utterances.

    Many processes may use it at once; files are opened for each read.

    Raises:
      RecordError: the folder is incomplete or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        with reading(self.path, RecordError, ADVICE, "not a folder of finished records"):
            manifest = read_json(self.path / RECORDS, _MANIFEST)
            if not manifest["files"]:
                raise ValueError("no files")
        self.symbols: list[str] = manifest["symbols"]
        """Symbols of the output units of the labels."""
        self.dimension: int = manifest["dimension"]
        """F, values per frame."""
        with reading(self.path / RECORDS, RecordError, ADVICE, "has no settings of a front end"):
            plain = validated(manifest.get("frontend", {}), {str: Any})
            self.frontend = from_plain(FrontendConfig, plain)
            """Settings of the features; the defaults where records do not tell."""
        numbers, utterances = range(manifest["files"]), manifest["utterances"]
        self._files: list[FileIndex] = [read_index(record_path(self.path, i)) for i in numbers]
        for file in self._files:
            if file.dimension != self.dimension and file.names:
                raise RecordError(
                    f"{file.path}: {file.dimension} values per frame where {RECORDS} has "
                    f"{self.dimension}; {ADVICE}"
                )
        self.names = [name for file in self._files for name in file.names]
        """[U] utterance ids."""
        table = np.concatenate([file.table for file in self._files])
        self.frames = table[:, Column.FRAMES]
        """[U] number of raw frames of each utterance."""
        self.label_lengths = table[:, Column.LABELS]
        """[U] number of labels of each utterance."""
        self._first = np.cumsum([0, *(len(file.names) for file in self._files)])
        if len(self) != utterances:
            raise RecordError(
                f"{self.path}: holds {len(self)} utterances where {RECORDS} has {utterances}; "
                f"{ADVICE}"
            )

    def __len__(self) -> int:
        return len(self.names)

    def read(self, number: int) -> Record:
        """Read an utterance by its index, 0 to U - 1."""
        file = int(np.searchsorted(self._first, number, side="right")) - 1
        return read_record(self._files[file], number - int(self._first[file]))
