"""Shows the entries of a Kaldi table in readable form."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from toolkit.features.kaldi.tables import (
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
    found = entries(table, allow_pipes=False)
    if key is not None:
        if key not in found:
            raise KaldiIoError(f"{table} has no {key!r}; its first key is {next(iter(found))!r}")
        integers = read_header(found[key]).is_vector
        values = read_vector(found[key]) if integers else read_matrix(found[key])
        yield np.array2string(values, precision=4, suppress_small=True, threshold=200)
        return
    for entry in islice(found.values(), count):
        header = read_header(entry)
        shape = " x ".join(map(str, header.shape))
        yield f"{entry.key}  {header.kind} {shape}  {entry.path}:{entry.offset}{entry.range}"
    if len(found) > count:
        yield f"... {len(found)} entries"
