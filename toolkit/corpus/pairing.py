"""Pairs transcripts with audio into cuts; an utterance that lacks either becomes a fault."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

from lhotse import MonoCut, Recording
from lhotse.utils import fastcopy

from toolkit.corpus.manifest import (
    FEATURE_MATRIX,
    OVERSHOOT_SECONDS,
    empty_recording,
    feature_recording,
    make_cut,
    probe_recording,
)


@dataclass(frozen=True)
class FeatureMatrix:
    """An utterance's features in a Kaldi archive."""

    num_frames: int
    """Number of rows, one for each 10 ms."""
    dimension: int
    """Number of columns."""
    offset: int
    """Offset of the matrix in the archive, in bytes."""
    range: str = ""
    """Rows and columns taken, such as `[0:9]`; empty: all."""


@dataclass(frozen=True)
class AudioSegment:
    """An utterance's audio: a file, a segment of a file, or features instead."""

    path: str
    """Absolute path of the audio file or archive, or the shell command of a refused pipe."""
    start: float = 0.0
    """Start of the segment, in seconds."""
    end: float | None = None
    """End of the segment, in seconds; None: the end of the file."""
    recording_id: str | None = None
    """Recording id; None: the utterance's id."""
    fault: tuple[str, str] | None = None
    """(kind, detail) of a fault found while the corpus was read."""
    note: tuple[str, str] | None = None
    """(kind, detail) of something harmless that the check will report."""
    channel: str | None = None
    """The channel of the file that holds the utterance: A, B, ... or 1, 2, ...; None: the mean of
    all."""
    side: str | None = None
    """Name of the side of a conversation. In a file of several channels, the side is the channel of
    this name; a file of one channel holds only this side."""
    whole: bool = False
    """Whether `end` is the file's length according to a manifest. A longer file is then read to its
    end."""
    features: FeatureMatrix | None = None
    """The features in the archive `path`; None: `path` is audio."""


@dataclass(frozen=True)
class FaultyText:
    """A transcript that is not UTF-8, kept for the check to report."""

    detail: str
    """File and line number, and the line with its bytes shown."""


NOT_UTF8 = "not-utf8"
"""Fault of an utterance whose line in a text or table is not UTF-8."""
BAD_LINE = "bad-line"
"""Fault of a line, in a table or a file of cuts, from which no utterance can be read."""
NO_CHANNEL = "no-channel"
"""Fault of an utterance whose file lacks its channel, or that names no channel while others do."""
OTHER_CHANNEL = "other-channel"
"""Note on an utterance for which the tables of a Kaldi data directory name different channels."""
MAX_CHANNELS = 1024
"""Largest number of channels of a file, in libsndfile."""


_SIDES = {"left": 0, "l": 0, "right": 1, "r": 1}


def channel_index(name: str) -> int | None:
    """Return the index of a channel named A to H, 1, 2, ..., l, r, left or right; None for others.

    Letters may be in either case.
    """
    if name.lower() in _SIDES:
        return _SIDES[name.lower()]
    if name.isdecimal() and name.isascii() and len(name) <= len(str(MAX_CHANNELS)):
        return int(name) - 1 if int(name) else None
    return ord(name.upper()) - ord("A") if len(name) == 1 and name.upper() in "ABCDEFGH" else None


def count_from_one(names: Iterable[str | None]) -> list[str | None]:
    """Renumber channel names to count from 1 if one of them is 0."""
    names = list(names)
    first = 0 if "0" in names else 1
    return [from_one(name, first) for name in names]


def from_one(name: str | None, first: int) -> str | None:
    """Return a channel's number counted from 1, given that its corpus counts from `first`."""
    if first or name is None or not (name.isdecimal() and name.isascii()):
        return name
    return str(int(name) + 1) if len(name) <= len(str(MAX_CHANNELS)) else name


def locate(folder: Path, name: str) -> Path:
    """Resolve a path relative to `folder` or to one of the folders above it."""
    # A path that exists nowhere is returned relative to the innermost folder.
    folder = folder.absolute()
    places = [place / name for place in (folder, *folder.parents)]
    return next((path for path in places if os.path.isfile(path)), places[0])


def pair(
    texts: Iterable[tuple[str, str | FaultyText]],
    audio: Iterable[tuple[str, AudioSegment]],
    speaker: Callable[[str, Path | None], str],
    where: str,
) -> list[MonoCut]:
    """Make the cuts of utterances given as (id, text) and (id, audio), in any order.

    An id that occurs n times as text or audio becomes n cuts, for the check to report.

    Args:
      speaker: returns the speaker's name for (utterance id, audio file or None).
      where: name of the transcripts in messages, such as "etc/an4_train.transcription".
    """
    audio = list(audio)
    named = named_channels(item for _, item in audio)
    texts_by_id: dict[str, list[str | FaultyText]] = {}
    audio_by_id: dict[str, list[AudioSegment]] = {}
    for id, text in texts:
        texts_by_id.setdefault(id, []).append(text)
    for id, item in audio:
        audio_by_id.setdefault(id, []).append(item)
    recordings: dict[str, tuple[Recording, str | None]] = {}
    cuts = []
    for id in dict.fromkeys([*texts_by_id, *audio_by_id]):
        # The n-th text belongs to the n-th audio; the shorter list repeats its last item.
        copies = zip_longest(texts_by_id.get(id, []), audio_by_id.get(id, []))
        text, item = None, None
        for next_text, next_item in copies:
            text = next_text if next_text is not None else text
            item = next_item if next_item is not None else item
            if item is None:
                item = AudioSegment(
                    id, fault=("missing-audio", f"{where} has a transcript, but no audio")
                )
            path = Path(item.path) if item.fault is None else None
            cut = _cut(id, text, item, speaker(id, path), where, recordings, named)
            cuts.append(cut)
    return cuts


def _cut(
    id: str,
    text: str | FaultyText | None,
    item: AudioSegment,
    speaker: str,
    where: str,
    recordings: dict[str, tuple[Recording, str | None]],
    named: Mapping[str, set[str]],
) -> MonoCut:
    """Make the cut of one utterance.

    Args:
      recordings: by file, the recording and the reason why it cannot be read (None if it can); new
          files are added.
      named: names of channels by file, see `named_channels`.
    """
    recording_id = item.recording_id or id
    fault, note, end, channel = item.fault, item.note, item.end, None
    if isinstance(text, FaultyText):
        fault, text = fault or (NOT_UTF8, text.detail), ""
    # The recording is empty for a fault, a placeholder for features, or read once per file.
    if fault is not None:
        recording = empty_recording(item.path, recording_id)
    elif item.features is not None:
        recording = feature_recording(item.path, recording_id, item.features.num_frames)
        if text is None:
            fault = ("missing-transcript", f"{where} has no line for the features in {item.path}")
    else:
        if item.path not in recordings:
            recordings[item.path] = probe_recording(Path(item.path), recording_id)
        recording, reason = recordings[item.path]
        if reason is not None:
            exists = os.path.exists(item.path)
            fault = ("unreadable-audio" if exists else "missing-audio", reason)
        else:
            channel, reason = choose_channel(item, recording.num_channels, named.get(item.path, ()))
            if reason:
                fault = (NO_CHANNEL, f"{reason} in {item.path}")
                recording = empty_recording(item.path, recording_id)
            elif text is None:
                fault = ("missing-transcript", f"{where} has no line for {item.path}")
        if item.whole and end is not None and end < recording.duration:
            if recording.duration > end + OVERSHOOT_SECONDS:
                lengths = f"{recording.duration:g} s, not {end:g} s as its manifest says"
                note = ("other-length", f"{item.path}: {lengths}")
            end = None
        if recording.id != recording_id:  # several recordings share a file, such as two sides
            recording = fastcopy(recording, id=recording_id)
    cut = make_cut(
        id,
        recording,
        text or "",
        speaker,
        item.start,
        end,
        fault,
        note,
        channel,
        None if fault else item.side or item.channel,
    )
    if item.features is not None:
        place = asdict(item.features)
        del place["num_frames"]  # follows from the duration
        cut.custom = {**(cut.custom or {}), FEATURE_MATRIX: place}
    return cut


def named_channels(audio: Iterable[AudioSegment]) -> dict[str, set[str]]:
    """Return the channel and side names that the utterances use, by audio file."""
    named: dict[str, set[str]] = {}
    for item in audio:
        if name := item.channel or item.side:
            named.setdefault(item.path, set()).add(name)
    return named


def choose_channel(
    item: AudioSegment, num_channels: int, named: Collection[str]
) -> tuple[int | None, str]:
    """Return an utterance's channel (from 0; None for the mean of all) and fault ("" for none).

    Args:
      num_channels: number of channels of its file.
      named: names of the channels of all utterances of the file.
    """
    count = f"{num_channels} channel" if num_channels == 1 else f"{num_channels} channels"
    name = item.channel or item.side
    if name is None:
        missing = num_channels > 1 and named
        return None, f"names no channel, but others name one of the {count}" if missing else ""
    if num_channels == 1 and item.channel is None:
        if len({channel_index(side) for side in named}) > 1:
            sides = ", ".join(sorted(named))
            return None, f"side {name}: sides {sides} are named, but only {count}"
        return None, ""
    index = channel_index(name)
    if index is None or index >= num_channels:
        return None, f"no channel {name}, but {count}"
    return index if num_channels > 1 else None, ""
