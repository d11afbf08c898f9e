"""Transcripts written down: plain text, NIST's CTM, subtitles (SRT, WebVTT), JSON."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from toolkit.decode.transcript import Transcript, Word

if TYPE_CHECKING:
    from toolkit.decode.streaming import Heard

FORMATS = ("text", "ctm", "srt", "vtt", "json")
SUFFIXES = {name: ".txt" if name == "text" else f".{name}" for name in FORMATS}
WITH_WORDS = frozenset({"ctm", "srt", "vtt", "json"})
"""Formats that need times of words."""
LETTERS, LINE = 84, 42
"""Most letters of a subtitle: two lines, as is customary."""
LONGEST, PAUSE = 6.0, 0.7
"""Seconds that a subtitle stands at most, and of silence after which a new one begins."""


def written(transcript: Transcript, form: str, channel: int = 1) -> str:
    """Write a transcript that has no fault in a format of its own file.

    Args:
      transcript: with times of words, unless the format is text.
      form: one of `FORMATS`.
      channel: the recording's, for CTM: counted from 1.

    Returns:
      Lines. Text is one line, the words alone.
    """
    if form == "text":
        return transcript.text + "\n"
    if form == "ctm":
        return "".join(_ctm_lines(transcript, channel))
    if form == "json":
        return json.dumps(plain(transcript), ensure_ascii=False, indent=1) + "\n"
    return _vtt(transcript) if form == "vtt" else _srt(transcript)


def line(transcript: Transcript, form: str) -> str:
    """Write a transcript as one line among those of others: `NAME words ...`, or JSON."""
    if form == "json":
        return json.dumps(plain(transcript), ensure_ascii=False) + "\n"
    return f"{transcript.name} {transcript.text}".rstrip() + "\n"


def plain(transcript: Transcript) -> dict:
    """The transcript as data for JSON; a broken recording has an `error` and no text."""
    if transcript.fault:
        return {"name": transcript.name, "error": transcript.fault}
    return {
        "name": transcript.name,
        "text": transcript.text,
        "segments": [
            {
                "start": one.start,
                "end": one.end,
                "text": one.text,
                "words": [_plain_word(word) for word in one.words or ()],
            }
            for one in transcript.utterances
        ],
    }


def heard_line(name: str, heard: "Heard") -> str:
    """Write what is new in a stream as a line of JSON."""
    said = {
        "name": name,
        "final": heard.final is not None,
        "start": round(heard.start, 3),
        "end": round(heard.end, 3),
        "text": heard.text,
    }
    if heard.final is not None and heard.final.words is not None:
        said["words"] = [_plain_word(word) for word in heard.final.words]
    return json.dumps(said, ensure_ascii=False) + "\n"


def _plain_word(word: Word) -> dict:
    return {**asdict(word), "confidence": round(word.confidence, 4)}


def _words(transcript: Transcript) -> Iterator[Word]:
    for utterance in transcript.utterances:
        yield from utterance.words or ()


def _ctm_lines(transcript: Transcript, channel: int) -> Iterator[str]:
    name = "_".join(transcript.key.split())
    for word in _words(transcript):
        duration = word.end - word.start
        yield (
            f"{name} {channel} {word.start:.3f} {duration:.3f} {word.word} {word.confidence:.4f}\n"
        )


def _cues(transcript: Transcript) -> Iterator[tuple[float, float, str]]:
    """Subtitles: (start, end, text of one or two lines)."""
    cue: list[Word] = []
    for word in [*_words(transcript), None]:
        if cue and (word is None or _is_full(cue, word)):
            text = " ".join(one.word for one in cue)
            yield cue[0].start, cue[-1].end, _two_lines(text)
            cue = []
        if word is not None:
            cue.append(word)


def _is_full(cue: list[Word], word: Word) -> bool:
    letters = sum(len(one.word) + 1 for one in cue) + len(word.word)
    late = word.end - cue[0].start > LONGEST or word.start - cue[-1].end > PAUSE
    return late or letters > LETTERS


def _two_lines(text: str) -> str:
    """Part a text that is longer than a line at the space nearest its middle."""
    if len(text) <= LINE:
        return text
    spaces = [i for i, letter in enumerate(text) if letter == " "]
    if not spaces:
        return text
    middle = min(spaces, key=lambda i: abs(2 * i - len(text)))
    return f"{text[:middle]}\n{text[middle + 1 :]}"


def _srt(transcript: Transcript) -> str:
    cues = [
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n"
        for number, (start, end, text) in enumerate(_cues(transcript), 1)
    ]
    return "\n".join(cues)


def _vtt(transcript: Transcript) -> str:
    cues = [
        f"{_clock(start, '.')} --> {_clock(end, '.')}\n{_escaped(text)}\n"
        for start, end, text in _cues(transcript)
    ]
    return "\n".join(["WEBVTT\n", *cues])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    whole, parts = divmod(rest, 1000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{whole:02d}{point}{parts:03d}"
