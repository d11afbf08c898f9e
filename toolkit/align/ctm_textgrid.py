"""Reads and writes word and phone times: CTM, as Kaldi and sclite use it, and Praat's TextGrid."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.lines import read_lines, split_words
from toolkit.storage.reading import quoted


class CtmError(ToolkitError):
    """Raised for a CTM file that cannot be read, or a token that cannot be written to one."""


class TimedToken(NamedTuple):
    """A word, phone or output unit with its start and end time."""

    token: str
    """The word, phone or unit."""
    start_s: float
    """Seconds from the beginning of the utterance or recording."""
    end_s: float
    """End, in seconds from the same beginning."""
    confidence: float | None = None
    """Probability that the token is correct; None if unknown."""


@dataclass(frozen=True)
class CtmEntry:
    """A line of a CTM file: a word or phone with its time."""

    utterance: str
    """Id of the utterance or recording."""
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
        """End time in seconds from the beginning of the utterance."""
        return self.start + self.duration


def write_ctm(rows: Iterable[tuple[str, str, Iterable[TimedToken]]], path: Path) -> None:
    """Write tokens, given as (utterance or recording, channel, tokens), to a CTM file atomically.

    Raises:
      CtmError: see `ctm_lines`.
    """
    with open_atomically(Path(path)) as file:
        for utterance, channel, tokens in rows:
            file.writelines(ctm_lines(utterance, channel, tokens))


def ctm_lines(utterance: str, channel: str, tokens: Iterable[TimedToken]) -> Iterator[str]:
    """Yield lines of a CTM file: `utterance channel start duration token [confidence]`.

    Start and end are rounded to 1 ms each, not the duration. So adjacent tokens stay adjacent, and
    rounding makes no overlaps.

    Raises:
      CtmError: a time is negative or not finite, or a field is empty or contains white space.
    """
    for token in tokens:
        fields = (utterance, channel, token.token)
        # A field of a CTM line ends at white space.
        if any(not field or len(field.split()) != 1 or field != field.strip() for field in fields):
            raise CtmError(
                f"{fields}: a field of a CTM line must not be empty or contain white space"
            )
        if utterance.startswith(";;"):
            raise CtmError(
                f"{utterance}: CTM lines that begin with `;;` are comments: rename the utterance"
            )
        if not 0 <= token.start_s <= token.end_s < math.inf:
            raise CtmError(
                f"{utterance}: the times of {token} must be finite, in order and not negative"
            )
        # Round both ends, not the duration: neighbours that touch keep touching.
        start, end = round(1000 * token.start_s), round(1000 * token.end_s)
        confidence = "" if token.confidence is None else f" {token.confidence:.4f}"
        line = f"{utterance} {channel} {_format_ms(start)} {_format_ms(end - start)} "
        yield f"{line}{token.token}{confidence}\n"


def _format_ms(milliseconds: int) -> str:
    """Format milliseconds as seconds with three decimals."""
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"


def read_ctm(path: Path) -> list[CtmEntry]:
    """Read the entries of a UTF-8 CTM file in order; skip blank lines and `;;` comments.

    Raises:
      CtmError: a line is malformed; the message names the file and the line.
    """
    entries = []
    for place, fields in read_ctm_fields(path):
        try:
            entries.append(_parse_ctm_line(fields))
        except ValueError as error:
            raise CtmError(f"{place}: {error}") from error
    return entries


def read_ctm_fields(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (file and line number, fields) of a CTM file; skip blank lines and `;;` comments."""
    for number, line in read_lines(path, CtmError):
        fields = split_words(line)
        if fields and not line.startswith(";;"):
            yield f"{path}:{number}", fields


def _parse_ctm_line(fields: list[str]) -> CtmEntry:
    """Make an entry from the fields of a CTM line."""
    if len(fields) not in (5, 6):
        raise ValueError(
            f"{len(fields)} fields, but a CTM line has these: utterance channel start duration "
            "token [confidence]"
        )
    start, duration = _parse_number("start", fields[2]), _parse_number("duration", fields[3])
    if start < 0 or duration < 0:
        raise ValueError(f"start {start} and duration {duration} must not be negative")
    confidence = _parse_number("confidence", fields[5]) if len(fields) == 6 else None
    return CtmEntry(fields[0], fields[1], start, duration, fields[4], confidence)


def _parse_number(name: str, text: str) -> float:
    """Parse a time or confidence, and name the field in the error if it is invalid."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} {quoted(text)} is not a finite number")
    return value


TOLERANCE = 0.05
"""Seconds by which an alignment may reach beyond the end of the audio."""
SLIVER = 0.0001
"""Largest gap or overlap, in seconds, that counts as a rounding error."""

Interval = tuple[float, float, str]


class TextGridError(ToolkitError):
    """Raised for tokens that cannot be the intervals of a TextGrid tier."""


def write_textgrid(
    tiers: Mapping[str, Iterable[TimedToken]], duration_s: float, path: Path
) -> None:
    """Write a TextGrid in Praat's long text format, UTF-8, atomically.

    Args:
      tiers: tokens of one recording in order of time, by the name of the tier ("words",
        "phones"). Time between tokens becomes intervals without text; a token that ends at most
        `TOLERANCE` after the audio is cut off at its end.
      duration_s: length of the audio in seconds, where every tier ends.

    Raises:
      TextGridError: tokens overlap, have no duration or lie outside the audio.
    """
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        "xmin = 0",
        f"xmax = {_format_seconds(duration_s)}",
        "tiers? <exists>",
        f"size = {len(tiers)}",
        "item []:",
    ]
    for number, (name, tokens) in enumerate(tiers.items(), start=1):
        # Praat numbers tiers and intervals from 1.
        filled = _fill_gaps(name, tokens, duration_s)
        lines += [
            f"    item [{number}]:",
            '        class = "IntervalTier"',
            f"        name = {_praat_string(name)}",
            "        xmin = 0",
            f"        xmax = {_format_seconds(duration_s)}",
            f"        intervals: size = {len(filled)}",
        ]
        for index, (start, end, text) in enumerate(filled, start=1):
            lines += [
                f"        intervals [{index}]:",
                f"            xmin = {_format_seconds(start)}",
                f"            xmax = {_format_seconds(end)}",
                f"            text = {_praat_string(text)}",
            ]
    write_atomically(Path(path), "\n".join(lines) + "\n")


def _fill_gaps(tier: str, tokens: Iterable[TimedToken], duration: float) -> list[Interval]:
    """Return intervals without gaps from 0 to `duration`; the gaps become empty intervals."""
    if not duration > 0:
        raise TextGridError(f"tier {tier}: a TextGrid cannot have a duration of {duration} s")
    filled: list[Interval] = []
    now = 0.0
    for token, begin, until, _ in tokens:
        place = f"tier {tier}: {token!r} at {begin:.3f} s"
        # Snap to the previous interval, as gaps from rounding errors would become intervals.
        start = now if abs(begin - now) < SLIVER else begin
        # The last frame's window may reach beyond the audio; such a token ends with it.
        end = duration if -SLIVER < until - duration <= TOLERANCE else until
        if start < now:
            raise TextGridError(f"{place} begins before the previous interval ends")
        if end > duration:
            raise TextGridError(f"{place} ends after the audio, which lasts {duration:.3f} s")
        if end - start < SLIVER:
            raise TextGridError(f"{place} has the duration 0, or begins where the audio ends")
        # A pause becomes an interval without text.
        if start > now:
            filled.append((now, start, ""))
        filled.append((start, end, token))
        now = end
    if now < duration:
        filled.append((now, duration, ""))
    return filled


def _praat_string(text: str) -> str:
    """Quote a text for a TextGrid."""
    return '"' + text.replace('"', '""') + '"'


def _format_seconds(time: float) -> str:
    """Format a time with enough digits for exact sample positions and no exponent."""
    return f"{time:.9f}".rstrip("0").rstrip(".")
