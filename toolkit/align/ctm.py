"""CTM files (NIST): times of words or phones, as Kaldi and sclite read them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.storage.files import open_atomically
from toolkit.storage.reading import quoted, regular


class CtmError(ToolkitError):
    """A CTM file that cannot be read, or an entry that cannot be written."""


@dataclass(frozen=True)
class CtmEntry:
    """One line: a word or phone and its time."""

    utterance: str
    """Utterance id, or a recording's."""
    channel: str
    """Channel of the recording, counted from 1, or A, B, ..."""
    start: float
    """Seconds from the beginning of the utterance."""
    duration: float
    """Seconds."""
    token: str
    """The word or phone."""
    confidence: float | None = None
    """Probability that the token is right; None leaves the field out."""

    @property
    def end(self) -> float:
        """Seconds from the beginning of the utterance."""
        return self.start + self.duration


def write_ctm(entries: Iterable[CtmEntry], path: Path) -> None:
    """Write entries in their order, atomically: `utterance channel start duration token [conf]`.

    Start and end are rounded to 1 ms each, so that what touches still touches, and what overlaps
    in the file overlaps in the entries.

    Raises:
      CtmError: a time that is negative or not finite, a field that is empty or has white space.
    """
    with open_atomically(Path(path)) as file:
        file.writelines(map(_line, entries))


def _line(entry: CtmEntry) -> str:
    fields = (entry.utterance, entry.channel, entry.token)
    if any(not field or len(field.split()) != 1 or field != field.strip() for field in fields):
        raise CtmError(f"{entry}: empty or with white space, which a CTM line cannot hold")
    if fields[0].startswith(";;"):
        raise CtmError(f"{entry}: the line would be a comment: rename the utterance")
    if not (0 <= entry.start < math.inf and 0 <= entry.duration < math.inf):
        raise CtmError(f"{entry}: times must be finite and not negative")
    start, end = round(1000 * entry.start), round(1000 * entry.end)
    line = f"{entry.utterance} {entry.channel} {_seconds(start)} {_seconds(end - start)} "
    confidence = "" if entry.confidence is None else f" {entry.confidence:.4f}"
    return f"{line}{entry.token}{confidence}\n"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"


def read_ctm(path: Path) -> list[CtmEntry]:
    """Read a CTM file in UTF-8, in its order; blank lines and `;;` comments are skipped.

    Raises:
      CtmError: names the file and line.
    """
    try:
        content = regular(path).read_bytes()
    except OSError as error:
        raise CtmError(f"{path}: cannot read it: {error.strerror}") from error
    entries = []
    for number, raw in enumerate(content.split(b"\n"), start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            if line.strip() and not line.startswith(";;"):
                entries.append(_entry(line.split()))
        except UnicodeDecodeError as error:
            raise CtmError(f"{path}:{number}: byte {error.start + 1} is not UTF-8") from error
        except ValueError as error:
            raise CtmError(f"{path}:{number}: {error}") from error
    return entries


def _entry(fields: list[str]) -> CtmEntry:
    if len(fields) not in (5, 6):
        raise ValueError(
            f"{len(fields)} fields; a CTM line is: utterance channel start duration token "
            "[confidence]"
        )
    start, duration = _number("start", fields[2]), _number("duration", fields[3])
    if start < 0 or duration < 0:
        raise ValueError(f"start {start} and duration {duration} must not be negative")
    confidence = _number("confidence", fields[5]) if len(fields) == 6 else None
    return CtmEntry(fields[0], fields[1], start, duration, fields[4], confidence)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} {quoted(text)} is not a number of seconds or a probability")
    return value
