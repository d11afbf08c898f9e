"""Words of recordings dealt out to segments by time, as sclite does it (-r stm -h ctm)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from toolkit.align.ctm import CtmEntry
from toolkit.score.nist import IGNORED, StmError, StmSegment


@dataclass(frozen=True)
class Segmented:
    """References and hypotheses by segment.

    A segment's id is `recording-channel_start-end` with the times in milliseconds.
    """

    refs: dict[str, str]
    hyps: dict[str, str]
    """Without the segments of recordings of which the CTM has nothing."""
    speakers: dict[str, str]
    orphans: tuple[tuple[str, int], ...]
    """Recordings and channels without a segment, and how many words were recognised there; they
    are not scored."""
    ignored: int
    """Segments that are not to be scored."""


def assign(segments: Iterable[StmSegment], words: Iterable[CtmEntry]) -> Segmented:
    """Deal out the words of a CTM to the segments of an STM.

    In each channel of a recording, segments and words being in order of their starts, a segment
    gets the next words whose middle lies before its end, and the last segment all that are left.
    A word between two segments so counts as an insertion of the later one. Times are compared to
    the microsecond: what is a tie in the files is one here (sclite's depends on rounding).

    Differs from sclite in that recordings may be in any order, that one without a word in the CTM
    is not an error, and that equal words in other cases differ.

    Raises:
      StmError: no segment, or alternatives in the CTM.
    """
    by_channel: dict[tuple[str, str], list[StmSegment]] = {}
    for segment in segments:
        by_channel.setdefault((segment.recording, segment.channel), []).append(segment)
    if not by_channel:
        raise StmError("the STM file has no segment")
    recognised: dict[tuple[str, str], list[CtmEntry]] = {}
    for word in words:
        if word.token.upper().startswith("<ALT"):
            raise StmError(
                f"{word.utterance} at {word.start:g} s: alternatives ({word.token}) are not "
                "supported: keep one of them in the CTM"
            )
        recognised.setdefault((word.utterance, word.channel), []).append(word)
    found = Segmented({}, {}, {}, _orphans(by_channel, recognised), 0)
    ignored = 0
    for channel in sorted(by_channel):
        own = sorted(by_channel[channel], key=lambda segment: segment.start)
        for segment, text in _deal(own, recognised.get(channel, [])):
            if IGNORED in segment.text.upper():
                ignored += 1
                continue
            id = _id(segment, found.refs)
            found.refs[id], found.speakers[id] = segment.text, segment.speaker
            if channel in recognised:
                found.hyps[id] = text
    return Segmented(found.refs, found.hyps, found.speakers, found.orphans, ignored)


def _orphans(
    segments: dict[tuple[str, str], list[StmSegment]],
    words: dict[tuple[str, str], list[CtmEntry]],
) -> tuple[tuple[str, int], ...]:
    without = sorted(words.keys() - segments.keys())
    return tuple((" ".join(channel), len(words[channel])) for channel in without)


def _deal(
    segments: Sequence[StmSegment], words: Sequence[CtmEntry]
) -> Iterator[tuple[StmSegment, str]]:
    """Yield each segment with the words that it gets."""
    words = sorted(words, key=lambda word: word.start)
    at = 0
    for number, segment in enumerate(segments, 1):
        first = at
        while at < len(words) and (
            number == len(segments) or _middle(words[at]) < round(1e6 * segment.end)
        ):
            at += 1
        yield segment, " ".join(word.token for word in words[first:at])


def _middle(word: CtmEntry) -> int:
    """In microseconds."""
    return round(1e6 * (word.start + word.duration / 2))


def _id(segment: StmSegment, taken: dict[str, str]) -> str:
    start, end = round(1000 * segment.start), round(1000 * segment.end)
    id = f"{segment.recording}-{segment.channel}_{start:07d}-{end:07d}"
    copy = 2
    while id in taken:  # speakers who talk at once in one channel
        id = f"{segment.recording}-{segment.channel}_{start:07d}-{end:07d}#{copy}"
        copy += 1
    return id
