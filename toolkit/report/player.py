"""The player of an utterance: spectrogram with axes and word boundaries, words, audio."""

from collections.abc import Sequence
from html import escape

from toolkit.align.times import CtmError, TimedToken, read_ctm
from toolkit.report.chart import linear_ticks
from toolkit.report.decodes import Decode
from toolkit.report.folder import RunFolder
from toolkit.report.media import RATE, Clip
from toolkit.score.alignment import Pair
from toolkit.score.wer import UtteranceScore

TICKS = 6
"""About as many times are labelled."""
KILOHERTZ = (0, 2, 4, 6, 8)
"""Frequencies that are labelled, up to that of the picture's top."""


def word_times(run: RunFolder, decode: Decode) -> dict[str, list[TimedToken]]:
    """Return the word times of a decode by utterance, empty if it has not written them."""
    path = decode.folder / "words.ctm"
    if not path.exists():
        return {}
    times: dict[str, list[TimedToken]] = {}
    try:
        for entry in read_ctm(path):
            token = TimedToken(entry.token, entry.start, entry.end)
            times.setdefault(entry.utterance, []).append(token)
    except CtmError as error:
        run.note(path, error)
    return times


def player(clip: Clip, times: Sequence[TimedToken], utterance: UtteranceScore) -> str:
    """Return a spectrogram with the recognised words below it, and an audio player.

    Args:
      clip: audio and picture.
      times: of the recognised words; they are left out where they belong to another text.
      utterance: what was recognised.
    """
    recognised = [pair for pair in utterance.pairs if pair[1] is not None]
    words = edges = ""
    if times and [pair[1] for pair in recognised] == [entry.token for entry in times]:
        words = _tier(clip, times, [_kind(pair) for pair in recognised])
        edges = _edges(clip, times)
    return _sound(clip, utterance.id, edges, words)


def aligned_player(
    clip: Clip, utterance: str, words: Sequence[TimedToken], phones: Sequence[TimedToken]
) -> str:
    """Return a spectrogram with aligned words, if known, and phones, and an audio player."""
    tiers = [_tier(clip, tier, ["right"] * len(tier)) for tier in (words, phones) if tier]
    return _sound(clip, utterance, _edges(clip, phones), "".join(tiers))


def _sound(clip: Clip, utterance: str, edges: str, tiers: str) -> str:
    name, high = escape(utterance), RATE / 2000
    heights = "".join(
        f'<span style="bottom:{100 * khz / high:g}%">{khz:g}</span>' for khz in KILOHERTZ
    )
    seconds = "".join(
        f'<span style="left:{_place(clip, at)}">{at:g}</span>'
        for at in linear_ticks(0.0, 0.95 * clip.seconds, TICKS)  # at the end stands the unit
    )
    return (
        f'<div class="sound"><div class="khz" aria-hidden="true"><b>kHz</b>{heights}</div>'
        f'<div class="picture"><img src="{clip.image}" alt="Spectrogram of {name}, 0 to {high:g} '
        f'kHz, {clip.seconds:.1f} s">{edges}<i class="head"></i></div>'
        f'<div class="seconds" aria-hidden="true">{seconds}<b>s</b></div>{tiers}'
        f'<audio controls preload="metadata" aria-label="Audio of {name}" src="{clip.audio}">'
        "</audio></div>"
    )


def _tier(clip: Clip, times: Sequence[TimedToken], kinds: Sequence[str]) -> str:
    tokens = "".join(_word(clip, *each) for each in zip(times, kinds, strict=True))
    return f'<div class="times" aria-hidden="true">{tokens}</div>'


def _edges(clip: Clip, times: Sequence[TimedToken]) -> str:
    bounds = sorted({at for entry in times for at in (entry.start_s, entry.end_s)})
    return "".join(f'<i class="edge" style="left:{_place(clip, at)}"></i>' for at in bounds)


def _word(clip: Clip, entry: TimedToken, kind: str) -> str:
    token = escape(entry.token)
    width = 100 * (entry.end_s - entry.start_s) / (clip.seconds or 1.0)
    return (
        f'<span class="{kind}" style="left:{_place(clip, entry.start_s)};width:{width:.2f}%" '
        f'data-start="{entry.start_s:.3f}" data-end="{entry.end_s:.3f}" '
        f'title="{token}: {entry.start_s:.2f} to {entry.end_s:.2f} s">{token}</span>'
    )


def _place(clip: Clip, seconds: float) -> str:
    return f"{min(100.0, 100 * seconds / (clip.seconds or 1.0)):.2f}%"


def _kind(pair: Pair) -> str:
    if pair[0] is None:
        return "new"
    return "right" if pair[0] == pair[1] else "sub"
