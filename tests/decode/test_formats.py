"""Output formats of transcripts."""

import json
import re

import pytest

from toolkit.align.ctm_textgrid import TimedToken
from toolkit.decode.decoded import DecodedUtterance, Transcript
from toolkit.decode.formats import line, plain, written


def utterance(start, *words):
    """An utterance of words of half a second each: (word, seconds after the previous word)."""
    tokens, at = [], start
    for word, gap in words:
        tokens.append(TimedToken(word, round(at + gap, 3), round(at + gap + 0.5, 3), 0.75))
        at += gap + 0.5
    text = " ".join(word.token for word in tokens)
    return DecodedUtterance(text, tuple(tokens), start, round(at + 0.2, 3))


TALK = Transcript(
    "talks/a b.wav",
    "a b",
    (utterance(0.0, ("HELLO", 0.12), ("R&D", 0)), utterance(3661.5, ("<UNK>", 0.0004))),
)


def test_text_and_lines():
    assert written(TALK, "text") == "HELLO R&D <UNK>\n"
    assert line(TALK, "text") == "talks/a b.wav HELLO R&D <UNK>\n"
    assert line(Transcript("empty", "empty"), "text") == "empty\n"


def test_a_name_that_is_not_utf8_can_be_printed():
    broken = Transcript("caf\udce9", "caf\udce9", fault="no file")
    assert line(broken, "json") == '{"name": "caf\\\\xe9", "error": "no file"}\n'


def test_ctm_has_a_channel_and_a_name_without_spaces():
    assert written(TALK, "ctm", channel=2) == (
        "talks/a_b.wav 2 0.120 0.500 HELLO 0.7500\n"
        "talks/a_b.wav 2 0.620 0.500 R&D 0.7500\n"
        "talks/a_b.wav 2 3661.500 0.500 <UNK> 0.7500\n"
    )


def test_subtitles():
    assert written(TALK, "srt") == (
        "1\n00:00:00,120 --> 00:00:01,120\nHELLO R&D\n\n2\n01:01:01,500 --> 01:01:02,000\n<UNK>\n"
    )
    assert written(TALK, "vtt") == (
        "WEBVTT\n\n00:00:00.120 --> 00:00:01.120\nHELLO R&amp;D\n\n"
        "01:01:01.500 --> 01:01:02.000\n&lt;UNK&gt;\n"
    )


@pytest.mark.parametrize(("word", "gap"), [("A", 0.0), ("EXTRAORDINARILY", 0.1), ("PAUSE", 0.8)])
def test_subtitles_are_short_enough_to_be_read(word, gap):
    talk = Transcript("t", "t", (utterance(0.0, *[(word, gap)] * 60),))
    blocks = [block.splitlines() for block in written(talk, "srt").split("\n\n")]
    subtitle_words = []
    for number, (count, times, *lines) in enumerate(blocks, 1):
        assert int(count) == number
        hours, minutes, seconds = zip(*re.findall(r"(\d+):(\d+):(\d+,\d+)", times), strict=True)
        at = [
            3600 * int(h) + 60 * int(m) + float(s.replace(",", "."))
            for h, m, s in zip(hours, minutes, seconds, strict=True)
        ]
        assert 0 < at[1] - at[0] <= 6
        assert 1 <= len(lines) <= 2
        assert max(map(len, lines)) <= 50
        assert gap < 0.7 or len(" ".join(lines).split()) == 1
        subtitle_words += " ".join(lines).split()
    assert subtitle_words == [word] * 60


def test_json_of_good_and_broken_recordings():
    document = json.loads(line(TALK, "json"))
    assert document == json.loads(written(TALK, "json")) == plain(TALK)
    assert document["text"] == "HELLO R&D <UNK>"
    first = document["segments"][0]["words"][0]
    assert first == {"word": "HELLO", "start": 0.12, "end": 0.62, "confidence": 0.75}
    assert plain(Transcript("x", "x", fault="x: broken")) == {"name": "x", "error": "x: broken"}
