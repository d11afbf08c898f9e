"""Transcripts and audio into cuts, with nothing left out: what has no partner becomes a fault."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from lhotse import MonoCut, Recording

from toolkit.corpus.manifest import empty_recording, make_cut, recording_or_fault


@dataclass(frozen=True)
class Audio:
    """Where an utterance's speech is."""

    path: str
    """Audio file (absolute), or the shell command of a refused pipe."""
    start: float = 0.0
    """Seconds in the file."""
    end: float | None = None
    """Seconds in the file; None: its end."""
    recording_id: str | None = None
    """Name of the recording; None: the utterance's."""
    fault: tuple[str, str] | None = None
    """(kind, detail) of a fault found on the way here."""
    note: tuple[str, str] | None = None
    """(kind, detail) of something the check shall mention, though it does no harm."""


def pair(
    texts: Iterable[tuple[str, str]],
    audio: Iterable[tuple[str, Audio]],
    speaker: Callable[[str, Path | None], str],
    where: str,
) -> list[MonoCut]:
    """Make the cuts of utterances given as (id, text) and (id, audio), in any order.

    An id that occurs more than once on either side gives as many cuts, for the check to name.

    Args:
      speaker: (utterance id, audio file or None) to the speaker's name.
      where: what the transcripts are called in messages, such as "etc/an4_train.transcription".
    """
    texts_by_id: dict[str, list[str]] = {}
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
                item = Audio(id, fault=("missing-audio", f"{where} has it, but there is no audio"))
            path = Path(item.path) if item.fault is None else None
            cut = _cut(id, text, item, speaker(id, path), where, recordings)
            cuts.append(cut)
    return cuts


def _cut(
    id: str,
    text: str | None,
    item: Audio,
    speaker: str,
    where: str,
    recordings: dict[str, tuple[Recording, str | None]],
) -> MonoCut:
    recording_id = item.recording_id or id
    fault = item.fault
    if fault is not None:
        recording = empty_recording(item.path, recording_id)
    else:
        if item.path not in recordings:
            recordings[item.path] = recording_or_fault(Path(item.path), recording_id)
        recording, reason = recordings[item.path]
        if reason is not None:
            exists = os.path.exists(item.path)
            fault = ("unreadable-audio" if exists else "missing-audio", reason)
        elif text is None:
            fault = ("missing-transcript", f"{where} has no line for {item.path}")
    return make_cut(id, recording, text or "", speaker, item.start, item.end, fault, item.note)
