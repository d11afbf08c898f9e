"""Feed hostile files to all readers in turns of equal processor time, and count them.

    make torture EXAMPLES=2000
    .venv/bin/python -m tests.fuzz --minutes 60 --seed 1 --folder /tmp/torture
    .venv/bin/python -m tests.fuzz --reader text/arpa --seed 1 --input 4711      # that one again

The faults are those of the tests in this folder, chosen by a plain generator instead of hypothesis.
Counts go on from call to call in the same folder, and no input comes twice for the same seed.
"""

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import test_cuts
from tests.fuzz.choices import Choices
from tests.fuzz.tally import Tally
from tests.fuzz.trial import Trial
from tests.fuzz.turn import Source, choices, take_turn

MODULES = (
    *(
        "archives",
        "audio",
        "bundles",
        "graphs",
        "media",
        "models",
        "pipeline",
        "reports",
        "stages",
        "stores",
    ),
    "text",
)
TURN = 2.0
"""Seconds of processor time, after which it is another reader's turn."""


class HostileCuts:
    """Feeds cuts with commands to a reader in the current folder."""

    def __init__(self, read: Callable) -> None:
        self._read = read
        self.last = ("cuts.jsonl", b"")
        test_cuts.write_clean()

    def try_one(self, pick: Choices) -> bool:
        """See `Source`."""
        return test_cuts.try_one(self._read, pick)


def sources() -> dict[str, Callable[[Path], Source]]:
    """Return functions from a folder to a `Source`, by name of the reader."""
    makers: dict[str, Callable[[Path], Source]] = {}
    for module in MODULES:
        readers = importlib.import_module(f"tests.fuzz.test_{module}").READERS
        for name, reader in readers.items():
            makers[f"{module}/{name}"] = lambda folder, reader=reader: Trial(reader, folder)
    for name, read in test_cuts.CUT_READERS.items():
        makers[name.replace("-", "/", 1)] = lambda folder, read=read: HostileCuts(read)
    return makers


class Readers:
    """Readers and their valid files in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = sources(), {}
        self.names = sorted(self._folder)
        self._place = folder

    def get(self, name: str) -> Source:
        """Return a reader and change to its folder."""
        place = self._place / name.replace("/", "-")
        place.mkdir(exist_ok=True)
        os.chdir(place)
        if name not in self._known:
            self._known[name] = self._folder[name](place)
            if isinstance(self._known[name], Trial):
                self._known[name].read_valid()  # whatever is compiled or imported, once
        return self._known[name]

    def forget(self, name: str) -> None:
        """Rewrite the valid files of a reader next time: a killed process may have changed them."""
        os.chdir(self._place)
        shutil.rmtree(self._place / name.replace("/", "-"))
        self._known.pop(name)


def main() -> None:
    """Feed the readers, list failures, and exit with status 1 after any."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--number", type=int, default=2000, help="of a reader; default: 2000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", help="default: all")
    parser.add_argument("--input", type=int, help="this one alone, with its traceback")
    parser.add_argument("--folder", type=Path, default=Path("torture"), help="of the counts")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    folder = options.folder.absolute()
    with tempfile.TemporaryDirectory() as place:
        readers = Readers(Path(place))
        names = options.reader or readers.names
        if options.input is not None:
            readers.get(names[0]).try_one(choices(names[0], options.seed, options.input))
            return
        failures = feed(readers, names, options.seed, options.number, end, folder)
        os.chdir(folder)
    print(Tally.read(folder / "inputs.json").table())
    sys.exit("\n".join(failures) or None)


def feed(
    readers: Readers, names: list[str], seed: int, number: int, end: float, folder: Path
) -> list[str]:
    """Give each reader `number` inputs, or as many as fit in time; return the failures."""
    path, failures = folder / "inputs.json", []
    tally = Tally.read(path)
    left = dict.fromkeys(names, number)
    while left and time.monotonic() < end:
        name = min(left, key=lambda n: tally.row(n).seconds)
        row = tally.row(name)
        source = readers.get(name)
        turn = take_turn(name, source, seed, row.inputs, left[name], TURN, folder / "failed")
        row.inputs += turn.inputs
        row.refused += turn.refused
        row.seconds += turn.seconds or TURN
        row.seeds = sorted({*row.seeds, seed})
        row.failures += turn.failures
        failures += turn.failures
        left[name] -= turn.inputs
        if left[name] <= 0 or turn.failures:
            left.pop(name)
        if turn.failures:  # one fault of a reader comes again and again
            print(*turn.failures, sep="\n", flush=True)
            readers.forget(name)
        tally.write(path)
    return failures


if __name__ == "__main__":
    main()
