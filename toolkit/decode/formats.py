"""Formats transcripts: plain text, NIST's CTM, subtitles (SRT, WebVTT) and JSON."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolkit.align.ctm_textgrid import TimedToken, ctm_lines
from toolkit.decode.config import FORMATS
from toolkit.decode.decoded import Transcript
from toolkit.storage.paths import printable

if TYPE_CHECKING:
    from toolkit.decode.stream import StreamResult

SUFFIXES = {name: ".txt" if name == "text" else f".{name}" for name in FORMATS}
WITH_WORDS = frozenset({"ctm", "srt", "vtt", "json"})
"""Formats that need word times."""
LETTERS, LINE = 84, 42
"""Maximum numbers of characters of a subtitle and of each of its two lines, as is customary."""
LONGEST, PAUSE = 6.0, 0.7
"""Longest duration of a subtitle, and the pause after which a new one begins, in seconds."""


def written(transcript: Transcript, form: str, channel: int | str = 1) -> str:
    """Return the text of a file with one transcript.

    Args:
      transcript: without `fault`; with word times, unless the format is text.
      form: one of `FORMATS`.
      channel: the recording's channel in CTM, such as 1 or A.

    Returns:
      The lines of the file; the format text is a single line of words.
    """
    if form == "text":
        return transcript.text + "\n"
    if form == "ctm":
        name = "_".join(transcript.name.split())
        return "".join(ctm_lines(name, str(channel), _words(transcript)))
    if form == "json":
        return json.dumps(plain(transcript), ensure_ascii=False, indent=1) + "\n"
    return _vtt(transcript) if form == "vtt" else _srt(transcript)


def line(transcript: Transcript, form: str) -> str:
    """Return a transcript as one line of a common file: `NAME words ...`, or JSON."""
    if form == "json":
        return json.dumps(plain(transcript), ensure_ascii=False) + "\n"
    return f"{transcript.name} {transcript.text}".rstrip() + "\n"


def plain(transcript: Transcript) -> dict:
    """Convert a transcript to JSON data; a recording that failed has an `error` and no text.

    Only a broken recording can have a name that is not UTF-8; the name is shown as far as possible.
    """
    if transcript.fault:
        return {"name": printable(transcript.name), "error": transcript.fault}
    return {
        "name": transcript.name,
        "text": transcript.text,
        "segments": [
            {
                "start": utterance.start_s,
                "end": utterance.end_s,
                "text": utterance.text,
                "words": [plain_word(word) for word in utterance.words or ()],
            }
            for utterance in transcript.utterances
        ],
    }


def stream_result_line(name: str, result: "StreamResult") -> str:
    """Return a stream result as a line of JSON."""
    data = {
        "name": name,
        "final": result.final is not None,
        "start": round(result.start, 3),
        "end": round(result.end, 3),
        "text": result.text,
    }
    if result.final is not None and result.final.words is not None:
        data["words"] = [plain_word(word) for word in result.final.words]
    return json.dumps(data, ensure_ascii=False) + "\n"


def plain_word(word: TimedToken) -> dict:
    """Convert a recognised word to JSON data."""
    return {
        "word": word.token,
        "start": word.start_s,
        "end": word.end_s,
        "confidence": round(word.confidence, 4),
    }


def _words(transcript: Transcript) -> Iterator[TimedToken]:
    """Yield the words of all utterances of a transcript."""
    for utterance in transcript.utterances:
        yield from utterance.words or ()


def _cues(transcript: Transcript) -> Iterator[tuple[float, float, str]]:
    """Yield subtitle cues: (start, end, text of one or two lines)."""
    cue: list[TimedToken] = []
    for word in [*_words(transcript), None]:
        # A subtitle ends before a word that would make it too long, in characters or seconds, and
        # before a word that follows a pause.
        if cue and (word is None or _is_full(cue, word)):
            text = " ".join(cued.token for cued in cue)
            yield cue[0].start_s, cue[-1].end_s, _two_lines(text)
            cue = []
        if word is not None:
            cue.append(word)


def _is_full(cue: list[TimedToken], word: TimedToken) -> bool:
    """Whether a cue has no room for another word."""
    letters = sum(len(cued.token) + 1 for cued in cue) + len(word.token)
    late = word.end_s - cue[0].start_s > LONGEST or word.start_s - cue[-1].end_s > PAUSE
    return late or letters > LETTERS


def _two_lines(text: str) -> str:
    """Break a long text into two lines at the space nearest its middle."""
    if len(text) <= LINE:
        return text
    spaces = [i for i, letter in enumerate(text) if letter == " "]
    if not spaces:
        return text
    middle = min(spaces, key=lambda i: abs(2 * i - len(text)))
    return f"{text[:middle]}\n{text[middle + 1 :]}"


def _srt(transcript: Transcript) -> str:
    """Return a transcript as SRT subtitles."""
    cues = [
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n"
        for number, (start, end, text) in enumerate(_cues(transcript), 1)
    ]
    return "\n".join(cues)


def _vtt(transcript: Transcript) -> str:
    """Return a transcript as WebVTT subtitles."""
    cues = [
        f"{_clock(start, '.')} --> {_clock(end, '.')}\n{_escaped(text)}\n"
        for start, end, text in _cues(transcript)
    ]
    return "\n".join(["WEBVTT\n", *cues])


def _escaped(text: str) -> str:
    """Escape the characters that are special in WebVTT."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clock(seconds: float, point: str) -> str:
    """Format seconds as hours, minutes, seconds and milliseconds."""
    milliseconds = round(1000 * seconds)
    minutes, milliseconds_left = divmod(milliseconds, 60_000)
    whole, parts = divmod(milliseconds_left, 1000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{whole:02d}{point}{parts:03d}"
