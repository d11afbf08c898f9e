"""CTM files as sclite reads them: alternatives, unknown times, further fields.

`toolkit.align.times` reads the CTM files of aligners, all of whose times must be known.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.align.times import CtmEntry, CtmError
from toolkit.score.glm import Glm
from toolkit.score.lines import TranscriptError, finite, numbered_lines
from toolkit.storage.reading import quoted
from toolkit.storage.words import split_words

BEGIN, NEXT, END = "<ALT_BEGIN>", "<ALT>", "<ALT_END>"
"""Tokens around and between alternatives, in any case."""


@dataclass(frozen=True)
class TimedWord:
    """A recognised word, or alternatives of words."""

    recording: str
    channel: str
    start: float
    """Seconds; of a word without times that of the word before."""
    middle: float
    """Seconds; of alternatives the latest middle of their words."""
    text: str
    """The word, or alternatives in braces, see `toolkit.score.alternatives`."""


def read_scored_ctm(path: Path) -> list[CtmEntry]:
    """Read a CTM file, gzipped or not, in its order; blank lines and `;;` comments are skipped.

    A line is `recording channel start duration word [confidence [further fields]]`. Start and
    duration may be `*`, which is read as NaN; a duration may be negative; a start may begin with
    `&&`, which marks it as bad. A confidence that is no number (`NA`) is unknown.

    Raises:
      CtmError: names the file and line.
    """
    try:
        lines = numbered_lines(path)
    except TranscriptError as error:
        raise CtmError(str(error)) from error
    entries = []
    for number, line in lines:
        fields = split_words(line)
        if not fields or line.startswith(";;"):
            continue
        if len(fields) < 5:
            raise CtmError(
                f"{path}:{number}: {len(fields)} fields; a CTM line is: recording channel start "
                "duration word [confidence]"
            )
        start = _seconds(f"{path}:{number}", "start", fields[2].removeprefix("&&"))
        duration = _seconds(f"{path}:{number}", "duration", fields[3])
        if start < 0:
            raise CtmError(f"{path}:{number}: start {fields[2]} must not be negative")
        confidence = finite(fields[5]) if len(fields) > 5 else None
        entries.append(CtmEntry(fields[0], fields[1], start, duration, fields[4], confidence))
    return entries


def _seconds(place: str, name: str, text: str) -> float:
    seconds = math.nan if text == "*" else finite(text)
    if seconds is None:
        raise CtmError(f"{place}: {name} {quoted(text)} is neither a number of seconds nor *")
    return seconds


def filtered(entries: Iterable[CtmEntry], glm: Glm) -> list[CtmEntry]:
    """Apply mapping rules to each word, as csrfilt.sh does.

    A word that becomes several is divided evenly in time; alternatives are put between the tokens
    for them, unless the word stands within alternatives already: those of the rule are added to
    them. A word that becomes nothing is left out.

    Raises:
      GlmError: rules cannot be applied to a word; the message names its place.
    """
    found: list[CtmEntry] = []
    within: set[tuple[str, str]] = set()
    for entry in entries:
        text, channel = entry.token, (entry.utterance, entry.channel)
        if text.upper() == BEGIN:
            within.add(channel)
        elif text.upper() == END:
            within.discard(channel)
        elif text.upper() != NEXT:
            text = glm.filter(text, _place(entry))
        choice = "{" in text
        parts = [
            split_words(re.sub(r"[{}]", " ", p)) for p in (text.split("/") if choice else [text])
        ]
        outside = choice and channel not in within
        marks = [BEGIN if outside else "", *[NEXT] * (len(parts) - 1)]
        for mark, words in zip(marks, parts, strict=True):
            if mark:
                found.append(replace(entry, token=mark))
            length = entry.duration / max(1, len(words))
            found += (
                replace(entry, start=entry.start + n * length, duration=length, token=word)
                for n, word in enumerate(words)
            )
        if outside:
            found.append(replace(entry, token=END))
    return found


def timed_words(entries: Iterable[CtmEntry]) -> list[TimedWord]:
    """Gather alternatives, and sort the words of each channel by their starts.

    Raises:
      CtmError: alternatives do not end, are nested, or are all empty.
    """
    channels: dict[tuple[str, str], list[CtmEntry]] = {}
    for entry in entries:
        channels.setdefault((entry.utterance, entry.channel), []).append(entry)
    found: list[TimedWord] = []
    for own in channels.values():
        found += sorted(_gathered(own), key=lambda word: word.start)
    return found


def _gathered(entries: list[CtmEntry]) -> Iterator[TimedWord]:
    """Yield the words and alternatives of a channel in its order."""
    before = 0.0
    inside: list[CtmEntry] | None = None
    for entry in entries:
        token = entry.token.upper()
        if token == BEGIN and inside is None:
            inside = []
        elif token == END and inside is not None:
            starts = [e.start for e in inside if e.start == e.start]
            before = min(starts, default=before)
            middles = (_middle(e, 0.0) for e in inside if e.token.upper() != NEXT)
            text = _in_braces(entry, inside)
            yield TimedWord(entry.utterance, entry.channel, before, max(middles, default=0.0), text)
            inside = None
        elif token in (BEGIN, END) or (token.startswith("<ALT") and inside is None):
            raise CtmError(f"{_place(entry)}: {quoted(entry.token)} does not match the one before")
        elif inside is not None:
            inside.append(entry)
        else:
            before = entry.start if entry.start == entry.start else before
            middle = _middle(entry, before)
            yield TimedWord(entry.utterance, entry.channel, before, middle, entry.token)
    if inside is not None:
        raise CtmError(f"{_place(entries[-1])}: {BEGIN} without an {END}")


def _middle(entry: CtmEntry, otherwise: float) -> float:
    """Return the middle of a word in seconds; `otherwise` where its times are unknown."""
    middle = entry.start + entry.duration / 2
    return middle if middle == middle else otherwise


def _in_braces(end: CtmEntry, inside: list[CtmEntry]) -> str:
    alternatives: list[list[str]] = [[]]
    for entry in inside:
        if entry.token.upper() == NEXT:
            alternatives.append([])
        elif set(entry.token) & set("{}/"):
            raise CtmError(
                f"{_place(entry)}: the word {quoted(entry.token)} of an alternative has a brace or "
                "slash"
            )
        else:
            alternatives[-1].append(entry.token)
    if not any(alternatives):
        raise CtmError(f"{_place(end)}: alternatives without a word")
    return "{ " + " / ".join(" ".join(words) or "@" for words in alternatives) + " }"


def _place(entry: CtmEntry) -> str:
    return f"{entry.utterance} {entry.channel} at {entry.start:g} s"
