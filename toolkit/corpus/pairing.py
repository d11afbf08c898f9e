"""Pairs transcripts with audio into cuts; an utterance without one of them becomes a fault."""

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from lhotse import MonoCut, Recording

from toolkit.corpus.manifest import empty_recording, make_cut, recording_or_fault


@dataclass(frozen=True)
class Audio:
    """The audio of an utterance: a file or a segment of one."""

    path: str
    """Absolute path of the audio file, or the shell command of a refused pipe."""
    start: float = 0.0
    """Start of the segment, in seconds."""
    end: float | None = None
    """End of the segment, in seconds; None: the end of the file."""
    recording_id: str | None = None
    """Recording id; None: the utterance's id."""
    fault: tuple[str, str] | None = None
    """(kind, detail) of a fault found while the corpus was read."""
    note: tuple[str, str] | None = None
    """(kind, detail) of something harmless that the check should mention."""
    channel: str | None = None
    """Name of the channel that holds the utterance; a fault in a file of several."""


@dataclass(frozen=True)
class FaultyText:
    """A transcript that is not UTF-8, for the check to report."""

    detail: str
    """File, line and the line with its bytes."""


NOT_UTF8 = "not-utf8"
"""Fault of an utterance whose line in a text or table is not UTF-8."""
UNREAD_CHANNEL = "unread-channel"
"""Fault of an utterance on one channel of a file of several. The mean of all channels would have
the speakers of the others in it."""


def channel_index(name: str) -> int | None:
    """Return the index of a channel called A, B, ... or 1, 2, ...; None for other names."""
    if name.isdecimal() and name.isascii():
        return int(name) - 1 if int(name) else None
    return ord(name.upper()) - ord("A") if len(name) == 1 and name.upper() in "ABCDEFGH" else None


def pair(
    texts: Iterable[tuple[str, str | FaultyText]],
    audio: Iterable[tuple[str, Audio]],
    speaker: Callable[[str, Path | None], str],
    where: str,
) -> list[MonoCut]:
    """Make the cuts of utterances given as (id, text) and (id, audio), in any order.

    An id that occurs more than once on either side gives as many cuts, for the check to report.

    Args:
      speaker: (utterance id, audio file or None) to the speaker's name.
      where: name of the transcripts in messages, such as "etc/an4_train.transcription".
    """
    audio = list(audio)
    named = {item.path for _, item in audio if item.channel is not None}
    texts_by_id: dict[str, list[str | FaultyText]] = {}
    audio_by_id: dict[str, list[Audio]] = {}
    for id, text in texts:
        texts_by_id.setdefault(id, []).append(text)
    for id, item in audio:
        audio_by_id.setdefault(id, []).append(item)
    recordings: dict[str, tuple[Recording, str | None]] = {}
    cuts = []
    for id in dict.fromkeys([*texts_by_id, *audio_by_id]):
        copies = zip_longest(texts_by_id.get(id, []), audio_by_id.get(id, []))
        text, item = None, None
        for next_text, next_item in copies:
            text = next_text if next_text is not None else text
            item = next_item if next_item is not None else item
            if item is None:
                item = Audio(id, fault=("missing-audio", f"{where} has a transcript, but no audio"))
            path = Path(item.path) if item.fault is None else None
            cut = _cut(id, text, item, speaker(id, path), where, recordings, named)
            cuts.append(cut)
    return cuts


def _cut(
    id: str,
    text: str | FaultyText | None,
    item: Audio,
    speaker: str,
    where: str,
    recordings: dict[str, tuple[Recording, str | None]],
    named: Collection[str],
) -> MonoCut:
    """Make the cut of one utterance; `named` are the files of which a channel is named."""
    recording_id = item.recording_id or id
    fault = item.fault
    if isinstance(text, FaultyText):
        fault, text = fault or (NOT_UTF8, text.detail), ""
    if fault is not None:
        recording = empty_recording(item.path, recording_id)
    else:
        if item.path not in recordings:
            recordings[item.path] = recording_or_fault(Path(item.path), recording_id)
        recording, reason = recordings[item.path]
        if reason is not None:
            exists = os.path.exists(item.path)
            fault = ("unreadable-audio" if exists else "missing-audio", reason)
        elif item.path in named and recording.num_channels > 1:
            channel = "no channel" if item.channel is None else f"channel {item.channel}"
            detail = f"{channel} of {recording.num_channels} in {item.path}"
            fault = (UNREAD_CHANNEL, f"{detail}: write each to its own file")
            recording = empty_recording(item.path, recording_id)
        elif text is None:
            fault = ("missing-transcript", f"{where} has no line for {item.path}")
    return make_cut(id, recording, text or "", speaker, item.start, item.end, fault, item.note)
