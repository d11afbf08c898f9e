"""Praat's TextGrid files: an alignment as interval tiers."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from toolkit.align.ctm import CtmEntry
from toolkit.errors import ToolkitError
from toolkit.storage.files import write_atomically

TOLERANCE = 0.05
"""Seconds by which an alignment may reach beyond the end of the audio."""
SLIVER = 0.0001
"""Largest gap or overlap, in seconds, that is put down to rounding."""

Interval = tuple[float, float, str]


class TextGridError(ToolkitError):
    """Entries that are not the intervals of a tier."""


def write_textgrid(path: Path, tiers: Mapping[str, Iterable[CtmEntry]], duration: float) -> None:
    """Write a TextGrid in the long text form, UTF-8, atomically.

    Args:
      tiers: entries of one recording in order of time, by the name of the tier ("words",
        "phones"). Time between them becomes intervals without text; an entry that ends at most
        `TOLERANCE` after the audio is shortened to it.
      duration: of the audio in seconds, where every tier ends.

    Raises:
      TextGridError: entries that overlap, have no length or are outside the audio.
    """
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        "xmin = 0",
        f"xmax = {_seconds(duration)}",
        "tiers? <exists>",
        f"size = {len(tiers)}",
        "item []:",
    ]
    for number, (name, entries) in enumerate(tiers.items(), start=1):
        filled = _fill(name, entries, duration)
        lines += [
            f"    item [{number}]:",
            '        class = "IntervalTier"',
            f"        name = {_quoted(name)}",
            "        xmin = 0",
            f"        xmax = {_seconds(duration)}",
            f"        intervals: size = {len(filled)}",
        ]
        for index, (start, end, text) in enumerate(filled, start=1):
            lines += [
                f"        intervals [{index}]:",
                f"            xmin = {_seconds(start)}",
                f"            xmax = {_seconds(end)}",
                f"            text = {_quoted(text)}",
            ]
    write_atomically(Path(path), "\n".join(lines) + "\n")


def _fill(tier: str, entries: Iterable[CtmEntry], duration: float) -> list[Interval]:
    """Join the entries to intervals without gaps from 0 to `duration`."""
    if not duration > 0:
        raise TextGridError(f"tier {tier}: a TextGrid of {duration} s is not possible")
    filled: list[Interval] = []
    now = 0.0
    for entry in entries:
        place = f"tier {tier}: {entry.token!r} of {entry.utterance} at {entry.start:.3f} s"
        start = now if abs(entry.start - now) < SLIVER else entry.start
        end = duration if -SLIVER < entry.end - duration <= TOLERANCE else entry.end
        if start < now:
            raise TextGridError(f"{place} begins before the end of the previous entry")
        if end > duration:
            raise TextGridError(f"{place} ends after the audio, which lasts {duration:.3f} s")
        if end - start < SLIVER:
            raise TextGridError(f"{place} has no length within the audio")
        if start > now:
            filled.append((now, start, ""))
        filled.append((start, end, entry.token))
        now = end
    if now < duration:
        filled.append((now, duration, ""))
    return filled


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _seconds(time: float) -> str:
    """Write enough digits for neighbours to agree and samples to be exact, and no exponent."""
    return f"{time:.9f}".rstrip("0").rstrip(".")
