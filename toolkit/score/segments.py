"""Assignment of a CTM's words to the segments of an STM by time, as in sclite -r stm -h ctm."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from toolkit.align.times import CtmEntry
from toolkit.score.ctm import TimedWord, timed_words
from toolkit.score.nist import IGNORED, StmError, StmSegment


@dataclass(frozen=True)
class SegmentTranscripts:
    """References and hypotheses by segment.

    A segment's id is `recording-channel_start-end` with the times in milliseconds.
    """

    refs: dict[str, str]
    hyps: dict[str, str]
    """Without the segments of channels that the CTM does not contain."""
    speakers: dict[str, str]
    orphans: tuple[tuple[str, int], ...]
    """Recordings and channels without a segment, with the number of words recognised there, which
    are not scored."""
    ignored: int
    """Number of segments that are marked as not to be scored."""


def assign(segments: Iterable[StmSegment], words: Iterable[CtmEntry]) -> SegmentTranscripts:
    """Assign the words of a CTM to the segments of an STM.

    In each channel of a recording, segments and words are taken in order of their starts: a segment
    gets the next words whose middle is before its end, and the last segment all that remain. A
    word between two segments thus counts as an insertion in the later one. Times are compared to
    the microsecond, so that ties in the files are ties here (in sclite they depend on rounding).

    Alternatives are one word, whose middle is the latest of its words. Names of recordings and
    channels are the same where they differ in case alone. Unlike in sclite, recordings, segments
    and words may be in any order, a recording without words in the CTM is not an error, and words
    that differ in case are different.

    Args:
      segments: of the STM.
      words: of the CTM, with alternatives as they stand there.

    Raises:
      StmError: there is no segment.
      CtmError: alternatives do not end.
    """
    by_channel: dict[tuple[str, str], list[StmSegment]] = {}
    for segment in segments:
        by_channel.setdefault(_folded(segment.recording, segment.channel), []).append(segment)
    if not by_channel:
        raise StmError("the STM file has no segment")
    recognised: dict[tuple[str, str], list[TimedWord]] = {}
    for word in timed_words(words):
        recognised.setdefault(_folded(word.recording, word.channel), []).append(word)
    found = SegmentTranscripts({}, {}, {}, _orphans(by_channel, recognised), 0)
    ignored = 0
    for channel in sorted(by_channel):
        own = sorted(by_channel[channel], key=lambda segment: segment.start)
        for segment, text in _assign_words(own, recognised.get(channel, [])):
            if IGNORED in segment.text.upper():
                ignored += 1
                continue
            id = _id(segment, found.refs)
            found.refs[id], found.speakers[id] = segment.text, segment.speaker
            if channel in recognised:
                found.hyps[id] = text
    return SegmentTranscripts(found.refs, found.hyps, found.speakers, found.orphans, ignored)


def _folded(recording: str, channel: str) -> tuple[str, str]:
    return recording.casefold(), channel.casefold()


def _orphans(
    segments: dict[tuple[str, str], list[StmSegment]],
    words: dict[tuple[str, str], list[TimedWord]],
) -> tuple[tuple[str, int], ...]:
    without = [words[channel] for channel in sorted(words.keys() - segments.keys())]
    return tuple((f"{own[0].recording} {own[0].channel}", len(own)) for own in without)


def _assign_words(
    segments: Sequence[StmSegment], words: Sequence[TimedWord]
) -> Iterator[tuple[StmSegment, str]]:
    """Yield each segment with the words assigned to it."""
    words = sorted(words, key=lambda word: word.start)
    at = 0
    for number, segment in enumerate(segments, 1):
        first = at
        while at < len(words) and (
            number == len(segments) or round(1e6 * words[at].middle) < round(1e6 * segment.end)
        ):
            at += 1
        yield segment, " ".join(word.text for word in words[first:at])


def _id(segment: StmSegment, taken: dict[str, str]) -> str:
    start, end = round(1000 * segment.start), round(1000 * segment.end)
    id = f"{segment.recording}-{segment.channel}_{start:07d}-{end:07d}"
    copy = 2
    while id in taken:  # speakers who talk at once in one channel
        id = f"{segment.recording}-{segment.channel}_{start:07d}-{end:07d}#{copy}"
        copy += 1
    return id
