"""Rows of a shard: each is an utterance's cut and its bytes in the tar of every field.

Shuffling and repartitioning move whole rows. The two tar members of an utterance (array and
manifest) do not depend on their neighbours, so a row is copied as one range of bytes, undecoded.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from toolkit.features.shards import BLOCK, CUTS, TarWriter, field_file, read_members
from toolkit.pipeline.step import StepError
from toolkit.storage.files import open_atomically
from toolkit.storage.reading import reading

MEMBERS_PER_ROW = 2


def tar_rows(path: Path) -> list[tuple[int, int]]:
    """Find the byte range [start, end) of every row in a shard's tar."""
    with reading(path, StepError, "write the shard again", "damaged"), open(path, "rb") as file:
        members = list(read_members(file))
    if len(members) % MEMBERS_PER_ROW:
        raise StepError(f"{path.name}: an array has no manifest")
    starts = [start for _, start, _, _ in members[::MEMBERS_PER_ROW]]
    ends = [content + size + -size % BLOCK for _, _, content, size in members[1::MEMBERS_PER_ROW]]
    return list(zip(starts, ends, strict=True))


class ShardRows:
    """The rows of a local shard, in any order.

    Args:
      files: files by field, with the same utterances in the same order.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.lines = files[CUTS].read_bytes().splitlines(keepends=True)
        """The cuts as stored, one line of JSON each."""
        self.fields = tuple(sorted(field for field in files if field != CUTS))
        self._ranges = {field: tar_rows(files[field]) for field in self.fields}
        self._files = {field: files[field] for field in self.fields}
        for field, ranges in self._ranges.items():
            if len(ranges) != len(self.lines):
                raise StepError(
                    f"{files[field].name}: {len(ranges)} utterances, but "
                    f"{files[CUTS].name} has {len(self.lines)}"
                )

    def __len__(self) -> int:
        return len(self.lines)

    def read(self, order: Iterable[int]) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """Yield the rows in `order`: the cut and each field's bytes."""
        with ExitStack() as stack:
            files = {f: stack.enter_context(open(p, "rb")) for f, p in self._files.items()}
            for row in order:
                content = {}
                for field, file in files.items():
                    start, end = self._ranges[field][row]
                    file.seek(start)
                    content[field] = file.read(end - start)
                yield self.lines[row], content


def write_rows(
    folder: Path,
    index: int,
    fields: Iterable[str],
    rows: Iterable[tuple[bytes, Mapping[str, bytes]]],
) -> dict[str, Path]:
    """Write a shard of the given rows, byte for byte as if it had been extracted like this.

    Returns:
      The files by field, cuts first.
    """
    paths = {field: folder / field_file(field, index) for field in (CUTS, *fields)}
    with ExitStack() as stack:
        files = {f: stack.enter_context(open_atomically(p, "wb")) for f, p in paths.items()}
        tars = {field: TarWriter(file) for field, file in files.items() if field != CUTS}
        for line, content in rows:
            files[CUTS].write(line)
            for field, members in content.items():
                tars[field].write(members)
        for tar in tars.values():
            tar.close()
    return paths
