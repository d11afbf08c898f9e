"""NIST's file formats: STM and trn, and CTM from `toolkit.align.times`.

trn files are read by `toolkit.score.read.read_transcripts`, CTM files to be scored by
`toolkit.score.ctm`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.align.times import CtmEntry, CtmError, read_ctm, write_ctm
from toolkit.errors import ToolkitError
from toolkit.score.lines import TranscriptError, finite, numbered_lines
from toolkit.storage.files import write_atomically
from toolkit.storage.words import single_spaced, split_words

__all__ = [
    "CtmEntry", "CtmError", "StmError", "StmSegment", "read_ctm", "read_stm", "write_ctm",
    "write_stm", "write_trn",
]  # fmt: skip

IGNORED = "IGNORE_TIME_SEGMENT_IN_SCORING"
"""Text of a segment that is not scored; words recognised in it are ignored."""


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
    """Words separated by single spaces, in the grammar of `toolkit.score.alternatives`; may be
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
    try:
        lines = numbered_lines(path)
    except TranscriptError as error:
        raise StmError(str(error)) from error
    return [
        _segment(f"{path}:{number}", line)
        for number, line in lines
        if split_words(line) and not line.startswith(";;")
    ]


def _segment(place: str, line: str) -> StmSegment:
    fields = split_words(line)
    if len(fields) < 5:
        raise StmError(
            f"{place}: {len(fields)} fields; an STM line needs: recording channel speaker start "
            "end [<label>] text"
        )
    start, end = (_seconds(place, text) for text in fields[3:5])
    if end < start:
        raise StmError(f"{place}: the segment ends at {fields[4]}, before it starts at {fields[3]}")
    words = fields[5:]
    label = words.pop(0) if words and words[0].startswith("<") else ""
    return StmSegment(fields[0], fields[1], fields[2], start, end, " ".join(words), label)


def _seconds(place: str, text: str) -> float:
    seconds = finite(text)
    if seconds is None or seconds < 0:
        raise StmError(f"{place}: {text!r} is not a number of seconds")
    return seconds


def write_stm(segments: Iterable[StmSegment], path: Path) -> None:
    """Write segments atomically, sorted by recording, channel and start; times in milliseconds.

    Raises:
      StmError: a name is empty or has white space, or a time is negative or not finite.
    """
    ordered = sorted(segments, key=lambda s: (s.recording, s.channel, s.start))
    write_atomically(Path(path), "".join(_stm_line(segment) for segment in ordered))


def _stm_line(segment: StmSegment) -> str:
    names = (segment.recording, segment.channel, segment.speaker)
    if any(len(name.split()) != 1 or name != name.strip() for name in names):
        raise StmError(f"{segment}: a name is empty or has white space")
    if segment.recording.startswith(";;"):
        raise StmError(f"{segment}: the line would be a comment: rename the recording")
    if not 0 <= segment.start <= segment.end < math.inf:
        raise StmError(f"{segment}: times must be finite, not negative and in order")
    if segment.label and (segment.label[0] != "<" or len(segment.label.split()) != 1):
        raise StmError(f"{segment}: a label is one word in angle brackets")
    label = segment.label or ("<o>" if segment.text.startswith("<") else "")
    fields = [
        *names,
        f"{segment.start:.3f}",
        f"{segment.end:.3f}",
        label,
        single_spaced(segment.text),
    ]
    return " ".join(field for field in fields if field) + "\n"


def write_trn(texts: Mapping[str, str], path: Path) -> None:
    """Write `word word ... (utterance-id)` lines atomically, in the mapping's order.

    Raises:
      TranscriptError: as `check_trn`.
    """
    check_trn(texts)
    lines = (f"{single_spaced(f'{text} ({id})')}\n" for id, text in texts.items())
    write_atomically(Path(path), "".join(lines))


def check_trn(texts: Mapping[str, str]) -> None:
    """Check that texts can be written as a trn file.

    Raises:
      TranscriptError: an id is empty or has white space or parentheses, or a text would be read as
        a comment (`;;`).
    """
    for utterance, text in texts.items():
        if text.lstrip().startswith(";;"):
            raise TranscriptError(f"{utterance!r}: a trn line cannot begin with ;;")
        if len(utterance.split()) != 1 or set(utterance) & set("() \t"):
            raise TranscriptError(
                f"{utterance!r} cannot be the id of a trn line: rename the utterance to have no "
                "white space and no parentheses"
            )
