"""NIST's file formats: STM, trn, CTM as sclite reads it, and a CTM's words by segment.

trn files are read by `toolkit.score.transcripts.read_transcripts`. The CTM files of aligners, with
all times known, are read by `toolkit.align.ctm_textgrid`.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.align.ctm_textgrid import CtmEntry, CtmError, read_ctm_fields
from toolkit.errors import ToolkitError
from toolkit.score.nist.glm import Glm
from toolkit.storage.files import write_atomically
from toolkit.storage.lines import read_lines, single_spaced, split_words
from toolkit.storage.reading import quoted

BEGIN, NEXT, END = "<ALT_BEGIN>", "<ALT>", "<ALT_END>"
"""Tokens around and between alternatives, in any case."""


@dataclass(frozen=True)
class TimedWord:
    """A recognised word, or alternatives of words."""

    recording: str
    channel: str
    start: float
    """Start in seconds; for a word without times, that of the word before it."""
    middle: float
    """Middle in seconds; for alternatives, the latest middle of their words."""
    text: str
    """The word, or alternatives in braces, see `toolkit.score.nist.grammar`."""


def read_scored_ctm(path: Path) -> list[CtmEntry]:
    """Read a CTM file, gzipped or not, in its order; blank lines and `;;` comments are skipped.

    A line is `recording channel start duration word [confidence [further fields]]`. Start and
    duration may be `*`, which is read as NaN; a duration may be negative; a start may begin with
    `&&`, which marks it as bad. A confidence that is no number (`NA`) is unknown.

    Raises:
      CtmError: names the file and line.
    """
    entries = []
    for place, fields in read_ctm_fields(path):
        if len(fields) < 5:
            raise CtmError(
                f"{place}: the line has {len(fields)} fields, but a CTM line has at least five: "
                "recording channel start duration word [confidence]"
            )
        start = _ctm_seconds(place, "start", fields[2].removeprefix("&&"))
        duration = _ctm_seconds(place, "duration", fields[3])
        if start < 0:
            raise CtmError(f"{place}: start {fields[2]} must not be negative")
        confidence = parse_finite(fields[5]) if len(fields) > 5 else None
        entries.append(CtmEntry(fields[0], fields[1], start, duration, fields[4], confidence))
    return entries


def parse_finite(text: str) -> float | None:
    """Return the finite number in a field; None for anything else, such as Python's `1_0`."""
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _ctm_seconds(place: str, name: str, text: str) -> float:
    """Return the seconds in a field of a CTM; NaN for `*`."""
    seconds = math.nan if text == "*" else parse_finite(text)
    if seconds is None:
        raise CtmError(f"{place}: {name} {quoted(text)} is neither a number of seconds nor *")
    return seconds


def filtered(entries: Iterable[CtmEntry], glm: Glm) -> list[CtmEntry]:
    """Apply mapping rules to each word, as csrfilt.sh does.

    The time of a word that becomes several words is divided evenly. A rule's alternatives are put
    between `BEGIN` and `END`, or added to the existing alternatives if the word is in some. A word
    that becomes nothing is left out.

    Raises:
      GlmError: rules cannot be applied to a word; the message names its place.
    """
    mapped: list[CtmEntry] = []
    within: set[tuple[str, str]] = set()
    for entry in entries:
        text, channel = entry.token, (entry.utterance, entry.channel)
        if text.upper() == BEGIN:
            within.add(channel)
        elif text.upper() == END:
            within.discard(channel)
        elif text.upper() != NEXT:
            text = glm.filter(text, _place(entry))
        # A rule's `{ a / b }`: each part is an alternative.
        choice = "{" in text
        parts = [
            split_words(re.sub(r"[{}]", " ", p)) for p in (text.split("/") if choice else [text])
        ]
        outside = choice and channel not in within
        marks = [BEGIN if outside else "", *[NEXT] * (len(parts) - 1)]
        for mark, words in zip(marks, parts, strict=True):
            if mark:
                mapped.append(replace(entry, token=mark))
            # Word n of k has the time start + n d / k, duration d / k.
            length = entry.duration / max(1, len(words))
            mapped += (
                replace(entry, start=entry.start + n * length, duration=length, token=word)
                for n, word in enumerate(words)
            )
        if outside:
            mapped.append(replace(entry, token=END))
    return mapped


def timed_words(entries: Iterable[CtmEntry]) -> list[TimedWord]:
    """Gather alternatives, and sort the words of each channel by their starts.

    Raises:
      CtmError: alternatives do not end, are nested, or are all empty.
    """
    channels: dict[tuple[str, str], list[CtmEntry]] = {}
    for entry in entries:
        channels.setdefault((entry.utterance, entry.channel), []).append(entry)
    words: list[TimedWord] = []
    for channel_entries in channels.values():
        words += sorted(_gathered(channel_entries), key=lambda word: word.start)
    return words


def _gathered(entries: list[CtmEntry]) -> Iterator[TimedWord]:
    """Yield the words and alternatives of a channel in the file's order.

    Words are sorted by their start, and assigned to a segment by their middle. Alternatives have
    the earliest start and the latest middle of their words.
    """
    previous_start = 0.0
    inside: list[CtmEntry] | None = None
    for entry in entries:
        token = entry.token.upper()
        if token == BEGIN and inside is None:
            inside = []
        elif token == END and inside is not None:
            # NaN, which differs from itself, stands for `*`: a time that is not given.
            starts = [e.start for e in inside if e.start == e.start]
            previous_start = min(starts, default=previous_start)
            middles = (_middle(e, 0.0) for e in inside if e.token.upper() != NEXT)
            text = _in_braces(entry, inside)
            yield TimedWord(
                entry.utterance, entry.channel, previous_start, max(middles, default=0.0), text
            )
            inside = None
        elif token in (BEGIN, END) or (token.startswith("<ALT") and inside is None):
            raise CtmError(
                f"{_place(entry)}: {quoted(entry.token)} does not match the tags of alternatives "
                "before it"
            )
        elif inside is not None:
            inside.append(entry)
        else:
            previous_start = entry.start if entry.start == entry.start else previous_start
            middle = _middle(entry, previous_start)
            yield TimedWord(entry.utterance, entry.channel, previous_start, middle, entry.token)
    if inside is not None:
        raise CtmError(f"{_place(entries[-1])}: {BEGIN} without an {END}")


def _middle(entry: CtmEntry, otherwise: float) -> float:
    """Return the middle of a word in seconds; `otherwise` where its times are unknown."""
    middle = entry.start + entry.duration / 2
    return middle if middle == middle else otherwise


def _in_braces(end: CtmEntry, inside: list[CtmEntry]) -> str:
    """Return the alternatives of a CTM as text in braces."""
    alternatives: list[list[str]] = [[]]
    for entry in inside:
        if entry.token.upper() == NEXT:
            alternatives.append([])
        elif set(entry.token) & set("{}/"):
            raise CtmError(
                f"{_place(entry)}: the word {quoted(entry.token)} of an alternative contains a "
                "brace or slash"
            )
        else:
            alternatives[-1].append(entry.token)
    if not any(alternatives):
        raise CtmError(f"{_place(end)}: alternatives without a word")
    return "{ " + " / ".join(" ".join(words) or "@" for words in alternatives) + " }"


def _place(entry: CtmEntry) -> str:
    """Return where an entry of a CTM is, for messages."""
    return f"{entry.utterance} {entry.channel} at {entry.start:g} s"


IGNORED = ("IGNORE_TIME_SEGMENT_IN_SCORING", "IGNORETIMESEGMENTINSCORING")
"""Texts of a segment that is not scored; words recognised in it are ignored."""


class TrnError(ToolkitError):
    """An utterance that a line of a trn file cannot hold."""


class StmError(ToolkitError):
    """An STM file that cannot be read, or a segment that cannot be written."""


@dataclass(frozen=True)
class StmSegment:
    """One line of an STM file: the reference of a segment of a recording."""

    recording: str
    """Name of the recording."""
    channel: str
    """1, 2, ... or A, B, ..."""
    speaker: str
    """Speaker id."""
    start: float
    """Seconds from the beginning of the recording."""
    end: float
    """Seconds from the beginning of the recording."""
    text: str
    """Words separated by single spaces, in the grammar of `toolkit.score.nist.grammar`; may be
    empty."""
    label: str = ""
    """Label of a condition, such as `<o,f0,male>`; empty for none."""


def read_stm(path: Path) -> list[StmSegment]:
    """Read the segments of an STM file in UTF-8; blank lines and `;;` comments are skipped.

    A line is `recording channel speaker start end [<label>] [text]`; as in sclite, a sixth field
    that begins with `<` is a label.

    Raises:
      StmError: a line is malformed; the message names the file and line.
    """
    return [
        _segment(f"{path}:{number}", line)
        for number, line in read_lines(path, StmError)
        if split_words(line) and not line.startswith(";;")
    ]


def _segment(place: str, line: str) -> StmSegment:
    """Parse a line of an STM file."""
    fields = split_words(line)
    if len(fields) < 5:
        raise StmError(
            f"{place}: the line has {len(fields)} fields, but an STM line has at least five: "
            "recording channel speaker start end [<label>] text"
        )
    start, end = (_seconds(place, text) for text in fields[3:5])
    if end < start:
        raise StmError(f"{place}: the segment ends at {fields[4]}, before it starts at {fields[3]}")
    words = fields[5:]
    label = words.pop(0) if words and words[0].startswith("<") else ""
    return StmSegment(fields[0], fields[1], fields[2], start, end, " ".join(words), label)


def _seconds(place: str, text: str) -> float:
    """Return the seconds in a field of an STM file."""
    seconds = parse_finite(text)
    if seconds is None or seconds < 0:
        raise StmError(f"{place}: {text!r} is not a number of seconds")
    return seconds


def write_trn(texts: Mapping[str, str], path: Path) -> None:
    """Write `word word ... (utterance-id)` lines atomically, in the mapping's order.

    Raises:
      TrnError: as `check_trn`.
    """
    check_trn(texts)
    lines = (f"{single_spaced(f'{text} ({id})')}\n" for id, text in texts.items())
    write_atomically(Path(path), "".join(lines))


def check_trn(texts: Mapping[str, str]) -> None:
    """Check that texts can be written as a trn file.

    Raises:
      TrnError: an id is empty or has white space or parentheses, or a text would be read as
        a comment (`;;`).
    """
    for utterance, text in texts.items():
        if text.lstrip().startswith(";;"):
            raise TrnError(
                f"{utterance!r}: its text begins with ;;, which marks a comment in a trn file"
            )
        if len(utterance.split()) != 1 or set(utterance) & set("() \t"):
            raise TrnError(
                f"{utterance!r} cannot be the id of a trn line, which must not contain white space "
                "or parentheses: rename the utterance"
            )


@dataclass(frozen=True)
class SegmentTranscripts:
    """References and hypotheses by segment.

    A segment's id is `recording-channel_start-end` with the times in milliseconds.
    """

    refs: dict[str, str]
    hyps: dict[str, str]
    """Hypotheses by segment; segments of channels that the CTM does not contain have none."""
    speakers: dict[str, str]
    unscored_channels: tuple[tuple[str, int], ...]
    """Recordings and channels without a segment, with the number of words recognised there, which
    are not scored."""
    ignored: int
    """Number of segments that are marked as not to be scored."""
    overlapping: int
    """Number of segments that begin before the end of an earlier one in their channel. The words of
    two speakers who talk at once are assigned by time alone."""


def assign(segments: Iterable[StmSegment], words: Iterable[CtmEntry]) -> SegmentTranscripts:
    """Assign the words of a CTM to the segments of an STM.

    In each channel of a recording, segments and words are taken in order of their starts: a segment
    gets the next words whose middle is before its end, and the last segment all that remain. A
    word between two segments thus counts as an insertion in the later one. Times are compared to
    the microsecond, so that ties in the files are ties here (in sclite they depend on rounding).

    Alternatives count as one word, whose middle is the latest of its words. Names of recordings and
    channels that differ only in case are the same. Unlike in sclite, recordings, segments and words
    may be in any order; a recording without words in the CTM is not an error; and words that differ
    in case are different words.

    Args:
      segments: segments of the STM.
      words: words of the CTM, with alternatives as they stand there.

    Raises:
      StmError: there is no segment.
      CtmError: as for `timed_words`.
    """
    by_channel: dict[tuple[str, str], list[StmSegment]] = {}
    for segment in segments:
        by_channel.setdefault(_folded(segment.recording, segment.channel), []).append(segment)
    if not by_channel:
        raise StmError("the STM file has no segment")
    recognised: dict[tuple[str, str], list[TimedWord]] = {}
    for word in timed_words(words):
        recognised.setdefault(_folded(word.recording, word.channel), []).append(word)
    refs: dict[str, str] = {}
    hyps: dict[str, str] = {}
    speakers: dict[str, str] = {}
    ignored = overlapping = 0
    for channel in sorted(by_channel):
        channel_segments = sorted(by_channel[channel], key=lambda segment: segment.start)
        latest_end = 0.0
        for segment, text in _assign_words(channel_segments, recognised.get(channel, [])):
            if any(mark in segment.text.upper() for mark in IGNORED):
                ignored += 1
                continue
            overlapping += round(1e6 * segment.start) < round(1e6 * latest_end)
            latest_end = max(latest_end, segment.end)
            id = _id(segment, refs)
            refs[id], speakers[id] = segment.text, segment.speaker
            if channel in recognised:
                hyps[id] = text
    unscored = _unscored_channels(by_channel, recognised)
    return SegmentTranscripts(refs, hyps, speakers, unscored, ignored, overlapping)


def _folded(recording: str, channel: str) -> tuple[str, str]:
    """Return recording and channel without case, as they are compared."""
    return recording.casefold(), channel.casefold()


def _unscored_channels(
    segments: dict[tuple[str, str], list[StmSegment]],
    words: dict[tuple[str, str], list[TimedWord]],
) -> tuple[tuple[str, int], ...]:
    """Return the channels without segments, with their numbers of words."""
    without = [words[channel] for channel in sorted(words.keys() - segments.keys())]
    return tuple(
        (f"{channel_words[0].recording} {channel_words[0].channel}", len(channel_words))
        for channel_words in without
    )


def _assign_words(
    segments: Sequence[StmSegment], words: Sequence[TimedWord]
) -> Iterator[tuple[StmSegment, str]]:
    """Yield each segment with the words assigned to it."""
    words = sorted(words, key=lambda word: word.start)
    at = 0
    # Middles and ends are compared in whole microseconds; the last segment takes all that remain.
    for number, segment in enumerate(segments, 1):
        first = at
        while at < len(words) and (
            number == len(segments) or round(1e6 * words[at].middle) < round(1e6 * segment.end)
        ):
            at += 1
        yield segment, " ".join(word.text for word in words[first:at])


def _id(segment: StmSegment, texts_by_id: Mapping[str, str]) -> str:
    """Return an id for a segment, from recording, channel and times, that has no text yet."""
    start, end = round(1000 * segment.start), round(1000 * segment.end)
    id = f"{segment.recording}-{segment.channel}_{start:07d}-{end:07d}"
    copy = 2
    while id in texts_by_id:  # speakers who talk at once in one channel
        id = f"{segment.recording}-{segment.channel}_{start:07d}-{end:07d}#{copy}"
        copy += 1
    return id
