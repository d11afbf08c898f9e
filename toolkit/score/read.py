"""Transcript files: Kaldi text, trn and plain lines."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.errors import ToolkitError

Form = Literal["text", "trn", "plain"]
FORMS: tuple[Form, ...] = ("text", "trn", "plain")

_TRN = re.compile(r"^(.*?)\s*\(([^()\s]+)\)\s*$")
_LIKE_AN_ID = re.compile(r"[0-9_-]")


class TranscriptError(ToolkitError):
    """A transcript file that cannot be read."""


@dataclass(frozen=True)
class Transcripts:
    """The transcripts of one file."""

    form: Form
    """The format the file was read as."""
    texts: dict[str, str]
    """Transcript by utterance id, in the file's order; words separated by single spaces."""


def read_transcripts(path: Path, form: Form | Literal["auto"] = "auto") -> Transcripts:
    """Read a file of transcripts in UTF-8.

    - "text", Kaldi's: `utterance-id word word ...`; an id alone is an empty transcript.
    - "trn", sclite's: `word word ... (utterance-id)`.
    - "plain": one transcript per line, the line's number (from 1) being its id; blank lines count.
    - "auto": trn when every line ends in an id in parentheses; text when every line's first field
      has a digit, `-` or `_`; plain when none has.

    Blank lines are skipped in text and trn files.

    Raises:
      TranscriptError: unreadable file, bytes that are not UTF-8, a missing or repeated id, or a
        file whose format is not clear; the message names file and line.
    """
    lines = _lines(path)
    if form == "auto":
        form = _detect(path, lines)
    if form == "plain":
        texts = {str(number): " ".join(line.split()) for number, line in lines}
        return Transcripts("plain", texts)
    texts, seen = {}, {}
    for number, line in lines:
        if not line.strip():
            continue
        utterance, words = (_text_line if form == "text" else _trn_line)(path, number, line)
        if utterance in seen:
            raise TranscriptError(
                f"{path}:{number}: utterance id {utterance!r} was on line {seen[utterance]} "
                "already: remove one of the two lines"
            )
        seen[utterance] = number
        texts[utterance] = " ".join(words.split())
    return Transcripts(form, texts)


def read_speakers(path: Path) -> dict[str, str]:
    """Read Kaldi's `utt2spk`: lines of `utterance-id speaker`.

    Raises:
      TranscriptError: unreadable file, a line without a speaker, a repeated id.
    """
    speakers = read_transcripts(path, "text").texts
    for utterance, speaker in speakers.items():
        if not speaker or " " in speaker:
            raise TranscriptError(
                f"{path}: {utterance!r} must be followed by one speaker, not by {speaker!r}"
            )
    return speakers


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise TranscriptError(f"{path}: cannot read it: {error.strerror}") from error
    numbered = []
    for number, line in enumerate(raw.removesuffix(b"\n").split(b"\n") if raw else [], start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise TranscriptError(
                f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8: "
                "convert the file, for instance with iconv"
            ) from error
        if "\0" in text:
            raise TranscriptError(f"{path}:{number}: a zero byte: this is not a transcript file")
        numbered.append((number, text.removesuffix("\r")))
    return numbered


def _detect(path: Path, lines: list[tuple[int, str]]) -> Form:
    filled = [(number, line) for number, line in lines if line.strip()]
    if filled and all(_TRN.match(line) for _, line in filled):
        return "trn"
    ids = [(number, bool(_LIKE_AN_ID.search(line.split()[0]))) for number, line in filled]
    if all(like for _, like in ids) and ids:
        return "text"
    if not any(like for _, like in ids):
        return "plain"
    with_id = next(number for number, like in ids if like)
    without = next(number for number, like in ids if not like)
    raise TranscriptError(
        f"{path}: cannot tell its format: line {with_id} begins like an utterance id and line "
        f"{without} does not: name the format with --format text, trn or plain"
    )


def _text_line(path: Path, number: int, line: str) -> tuple[str, str]:
    if line[0].isspace():
        raise TranscriptError(
            f"{path}:{number}: the line begins with white space where the utterance id should be"
        )
    utterance, *rest = line.split(maxsplit=1)
    return utterance, rest[0] if rest else ""


def _trn_line(path: Path, number: int, line: str) -> tuple[str, str]:
    match = _TRN.match(line)
    if match is None:
        raise TranscriptError(
            f"{path}:{number}: a trn line ends in an utterance id in parentheses, this one in "
            f"{line[-30:]!r}"
        )
    return match[2], match[1]
