"""Shows the entries of a Kaldi table in readable form."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.kaldi.tables import (
    Entry,
    KaldiIoError,
    entries,
    read_header,
    read_matrix,
    read_vector,
)


def describe_entries(table: Path, key: str | None = None, count: int = 10) -> Iterator[str]:
    """Yield a line for each of the first entries of a table, or the values of one.

    Args:
      table: an scp file or archive of matrices or integer vectors.
      key: key of the entry whose values to show; None lists entries.
      count: how many to list.

    Raises:
      KaldiIoError: the table cannot be read, or has no such key.
    """
    found = _entries(table, key)
    if key is not None:
        values = _values(found[key])
        yield np.array2string(values, precision=4, suppress_small=True, threshold=200)
        return
    for entry in islice(found.values(), count):
        header = read_header(entry)
        shape = " x ".join(map(str, header.shape))
        yield f"{entry.key}  {header.kind} {shape}  {entry.path}:{entry.offset}{entry.range}"
    if len(found) > count:
        yield f"... {len(found)} entries"


def plain_entries(table: Path, key: str | None = None, count: int = 10) -> dict[str, Any]:
    """Return what `describe_entries` shows as plain data; of one entry all values.

    Args:
      table, key, count: as for `describe_entries`.

    Raises:
      KaldiIoError: the table cannot be read, or has no such key.
    """
    found = _entries(table, key)
    listed = []
    for entry in islice(found.values(), count) if key is None else (found[key],):
        header = read_header(entry)
        place = {"file": str(entry.path), "offset": entry.offset, "range": entry.range}
        plain: dict[str, Any] = {"key": entry.key, "kind": header.kind, "shape": header.shape}
        if key is not None:
            values = _values(entry)
            plain |= {"shape": values.shape, "values": values.tolist()}
        listed.append(plain | place)
    return {"number": len(found), "entries": listed}


def _entries(table: Path, key: str | None) -> dict[str, Entry]:
    found = entries(table, allow_pipes=False)
    if key is not None and key not in found:
        raise KaldiIoError(f"{table} has no {key!r}; its first key is {next(iter(found))!r}")
    return found


def _values(entry: Entry) -> np.ndarray:
    return read_vector(entry) if read_header(entry).is_vector else read_matrix(entry)
