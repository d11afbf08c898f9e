"""Shards as rows: an utterance's cut line and its bytes in each field's tar.

Shuffling and repartitioning move whole rows. The two tar members of an utterance (array and
manifest) depend on nothing around them, so a row is copied as one stretch of bytes, unread.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from toolkit.features.tars import BLOCK, TarWriter, read_members
from toolkit.pipeline.step import StepError
from toolkit.storage.files import open_atomically
from toolkit.storage.reading import reading

MEMBERS_PER_ROW = 2
CUTS = "cuts"


def field_file(field: str, index: int) -> str:
    """Name the file of a shard's field: `cuts`, `features`, `targets`."""
    return f"{field}.{index:06d}.{'jsonl' if field == CUTS else 'tar'}"


def tar_rows(path: Path) -> list[tuple[int, int]]:
    """Find the rows of a shard's tar: first byte and the one after the last of each."""
    with reading(path, StepError, "write the shard again", "damaged"), open(path, "rb") as file:
        members = list(read_members(file))
    if len(members) % MEMBERS_PER_ROW:
        raise StepError(f"{path.name}: an array without its manifest")
    starts = [start for _, start, _, _ in members[::MEMBERS_PER_ROW]]
    ends = [content + size + -size % BLOCK for _, _, content, size in members[1::MEMBERS_PER_ROW]]
    return list(zip(starts, ends, strict=True))


class ShardRows:
    """The rows of a local shard, in any order.

    Args:
      files: by field; all have the same utterances in the same order.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.lines = files[CUTS].read_bytes().splitlines(keepends=True)
        """The cuts, as stored."""
        self.fields = tuple(sorted(field for field in files if field != CUTS))
        self._stretches = {field: tar_rows(files[field]) for field in self.fields}
        self._files = {field: files[field] for field in self.fields}
        for field, stretches in self._stretches.items():
            if len(stretches) != len(self.lines):
                raise StepError(
                    f"{files[field].name}: {len(stretches)} utterances, but "
                    f"{files[CUTS].name} has {len(self.lines)}"
                )

    def __len__(self) -> int:
        return len(self.lines)

    def read(self, order: Iterable[int]) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """Yield the cut and each field's bytes of the rows in `order`."""
        with ExitStack() as stack:
            files = {f: stack.enter_context(open(p, "rb")) for f, p in self._files.items()}
            for row in order:
                content = {}
                for field, file in files.items():
                    start, end = self._stretches[field][row]
                    file.seek(start)
                    content[field] = file.read(end - start)
                yield self.lines[row], content


def write_rows(
    folder: Path,
    index: int,
    fields: Iterable[str],
    rows: Iterable[tuple[bytes, Mapping[str, bytes]]],
) -> dict[str, Path]:
    """Write a shard of the rows given, the same bytes as if it had been written at first.

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
