"""Run a reader on damaged files: it must read them or raise an error that names the file."""

import contextlib
import os
import pickle
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from hypothesis import HealthCheck, settings

from tests.fuzz.canary import no_side_effects
from tests.fuzz.choices import Choices
from tests.fuzz.mutations import damage
from toolkit.errors import ToolkitError

_settings = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("fuzz", derandomize=True, max_examples=40, **_settings)
_more = int(os.environ.get("FUZZ_EXAMPLES", "2000"))
settings.register_profile("fuzz-long", derandomize=False, max_examples=_more, **_settings)
FUZZ = settings.get_profile(os.environ.get("FUZZ_PROFILE", "fuzz"))
"""`FUZZ_PROFILE=fuzz-long FUZZ_EXAMPLES=10000` looks longer, and elsewhere every time."""

SECONDS, BYTES = 10.0, 1 << 30
LONGEST_MESSAGE = 3000  # characters
_bounded = False


@dataclass(frozen=True)
class Reader:
    """A reader under test: `write` makes valid files in a folder, `read` reads them."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]
    """Reads, and makes use of, whatever is in the folder."""
    files: str = "**/*"
    """Those to be damaged."""
    names: tuple[str, ...] = ()
    """Utterances: an error may name one of these rather than the file."""


class Executed:
    """An object whose unpickling makes the folder `trace`."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


class Trial:
    """A reader with valid files, one of which is damaged at a time."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self._reader, self._folder = reader, folder / "files"
        self._trace = folder / "executed"
        self._folder.mkdir()
        reader.write(self._folder)
        paths = sorted(path for path in self._folder.glob(reader.files) if path.is_file())
        self._number = 0
        self.last = ("", b"")
        """The file that was damaged last, and what it held then."""
        self.content = {str(path.relative_to(self._folder)): path.read_bytes() for path in paths}
        assert self.content
        self._names = sorted(self.content)

    @property
    def pickled(self) -> bytes:
        """A pickle that makes a folder when it is unpickled."""
        return pickle.dumps(Executed(self._trace))

    def read_valid(self) -> None:
        """Read the valid files."""
        self._reader.read(self._folder)

    def try_one(self, pick: Choices) -> bool:
        """Damage one of the files, and read; see `read_replaced`."""
        name = pick.among(self._names)
        self.last = (name, damage(pick, self.content[name]))
        path = self._folder / name
        path.write_bytes(self.last[1])
        self._number += 1  # readers remember what they know of a version of a file, by its time
        os.utime(path, ns=(self._number, self._number))
        return self.read_replaced(name)

    def read_replaced(self, name: str) -> bool:
        """Read with a replaced file, then restore the file.

        Returns:
          Whether the reader refused the replacement.
        """
        path = self._folder / name
        try:
            refused = reads_or_explains(
                lambda: self._reader.read(self._folder),
                (path.name, str(self._folder), *self._reader.names),
            )
            assert not self._trace.exists(), "a file's content was executed"
            return refused
        finally:
            remove(path)
            path.write_bytes(self.content[name])

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self._folder / name


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Limit this process to `BYTES` more memory; a nested call does nothing."""
    global _bounded
    if _bounded:
        yield
        return
    used = psutil.Process().memory_info().vms
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, limits[1]))
    _bounded = True
    try:
        yield
    finally:
        _bounded = False
        resource.setrlimit(resource.RLIMIT_AS, limits)


def reads_or_explains(read: Callable[[], object], names: tuple[str, ...]) -> bool:
    """Check that a reader reads or names the wrong file, soon and without much memory.

    Returns:
      Whether the reader refused the file.
    """
    began, refused = time.process_time(), False
    with limited_memory():
        try:
            with no_side_effects():
                read()
        except ToolkitError as error:
            refused, message = True, str(error)
            assert any(name in message for name in names), f"names no file: {message}"
            assert len(message) < LONGEST_MESSAGE, f"{len(message)} characters: {message[:200]}"
    assert time.process_time() - began < SECONDS
    return refused
