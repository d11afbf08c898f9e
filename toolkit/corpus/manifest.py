"""Cut manifests: one MonoCut with one supervision per utterance, as JSON lines."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource

from toolkit.corpus.audio_file import open_audio
from toolkit.corpus.check.exclusions import read_exclusions
from toolkit.corpus.cuts import parse_cut
from toolkit.corpus.relocation import portable
from toolkit.errors import ToolkitError
from toolkit.storage.files import open_atomically
from toolkit.storage.paths import encoding_error, places_of, printable
from toolkit.storage.reading import NATURAL, reading, validated
from toolkit.storage.words import single_spaced

HELD_OUT = "held_out"
"""Marks, in `custom`, the cuts of a split that was taken out of the training data."""
NO_SPEAKER = "no_speaker"
"""Holds, in `custom`, why the cut's speaker is not known."""
OTHER_SPEAKER = "other_speaker"
"""Holds, in `custom`, which other speaker the corpus names for the cut."""
CHANNEL_NAME = "channel_name"
"""Holds, in `custom`, what the corpus calls the cut's channel: A, B, 1, ..."""
FEATURE_MATRIX = "feature_matrix"
"""Holds, in `custom`, where the cut's features are in the Kaldi archive that takes the place of its
audio: `offset` in bytes, `range` of rows and columns, and `dimension`."""
TAGS = "tags"
"""Holds, in `custom`, the tags of the transcript as it was written, which are not words of it."""
TOLERANCE_SECONDS = 0.01
"""A segment that ends at most a frame past its recording is trimmed without a word: its end was
rounded."""
OVERSHOOT_SECONDS = 0.5
"""A segment that ends at most this long past its recording is trimmed (Kaldi's extract-segments
has the same limit); one that ends later is a fault."""


_CUT = {
    **{"id": str, "start": float, "duration": float, "type": str},
    "supervisions": [{"id": str, "text": str, "speaker": str}],
    "recording": {
        **{"id": str, "sampling_rate": NATURAL, "num_samples": NATURAL, "duration": float},
        "sources": [{"type": str, "source": str}],
    },
}


class ManifestError(ToolkitError):
    """A corpus or manifest that cannot be read at all."""


def recording_or_fault(path: Path, id: str) -> tuple[Recording, str | None]:
    """Read an audio file's header; of a streamed file, which has no length there, all of it.

    Returns:
      The recording and None; or a recording of no samples, and the reason why it cannot be read.
    """
    try:
        with open_audio(path) as file:
            channels = list(range(file.channels))
            rate, samples = file.samplerate, file.frames
        seconds = samples / rate
    except (soundfile.SoundFileError, OSError, ValueError, ArithmeticError) as error:
        return empty_recording(printable(str(path)), id), _reason(path, error)
    source = AudioSource(type="file", channels=channels, source=str(path))
    return Recording(id, [source], rate, samples, seconds), None


def empty_recording(source: str, id: str) -> Recording:
    """Make a recording of no samples, in place of audio that cannot be read."""
    return Recording(id, [AudioSource(type="file", channels=[0], source=source)], 16000, 0, 0.0)


def _reason(path: Path, error: Exception) -> str:
    if unwritable := encoding_error(error):
        return str(unwritable)
    if not os.path.exists(path):
        link = f", a link to {os.readlink(path)}" if os.path.islink(path) else ""
        return f"no such file: {path}{link}"
    if os.path.isdir(path):
        return f"{path} is a folder, not an audio file"
    if Path(path).is_file() and Path(path).stat().st_size == 0:
        return f"{path} is an empty file"
    return f"{path} is not readable audio: {str(error).rstrip(': ')}"


def feature_recording(archive: str, id: str, num_frames: int) -> Recording:
    """Make the recording of an utterance that has features and no audio.

    Args:
      archive: path of the Kaldi archive that holds the features.
      id: id of the utterance.
      num_frames: its frames, of 10 ms each.
    """
    source = AudioSource(type="file", channels=[0], source=archive)
    return Recording(id, [source], 16000, 160 * num_frames, num_frames / 100)


def make_cut(
    id: str,
    recording: Recording,
    text: str,
    speaker: str,
    start: float = 0.0,
    end: float | None = None,
    fault: tuple[str, str] | None = None,
    note: tuple[str, str] | None = None,
    channel: int | None = None,
    channel_name: str | None = None,
) -> MonoCut:
    """Make the cut of one utterance.

    Args:
      text: transcript; white space is normalised.
      start, end: seconds in the recording; `end` None or negative: the recording's end.
      fault: (kind of `toolkit.corpus.check.findings.KINDS`, detail) that the check is to report. A
        segment outside its recording gets its fault here.
      note: likewise, of something harmless; a trimmed segment gets its note here.
      channel: the channel of the recording, from 0; None: the mean of all.
      channel_name: what the corpus calls it, for CTM files and the like; None: its number from 1.
    """
    length = recording.duration
    if end is None or end < 0:
        end = length
    if fault is None and length > 0:
        if not 0 <= start < min(end, length) or not end <= length + OVERSHOOT_SECONDS:
            detail = f"segment {start:g} to {end:g} s of a recording of {length:g} s"
            fault = ("bad-segment", detail)
        elif end > length:
            if end - length > TOLERANCE_SECONDS + 1e-9:
                detail = f"ends {end - length:.3f} s past its recording's end"
                note = ("trimmed-segment", detail)
            end = length
    if fault is not None and fault[0] == "bad-segment":
        start, end = 0.0, 0.0
    duration = max(0.0, round(end - start, 8)) if length > 0 else 0.0
    custom: dict[str, str | bool] = {}
    if channel is None and recording.num_channels > 1:
        custom["mix_channels"] = True  # lhotse's MonoCut has one channel; the toolkit averages all
    if channel_name not in (None, str((channel or 0) + 1)):
        custom[CHANNEL_NAME] = channel_name
    if fault is not None:
        custom["fault"], custom["fault_detail"] = fault
    if note is not None:
        custom["note"], custom["note_detail"] = note
    text = single_spaced(text)
    supervision = SupervisionSegment(
        id, recording.id, 0.0, duration, channel or 0, text=text, speaker=speaker
    )
    return MonoCut(
        id=id,
        start=start,
        duration=duration,
        channel=channel or 0,
        supervisions=[supervision],
        recording=recording,
        custom=custom or None,
    )


def mark_no_speaker(cut: MonoCut, why: str, recording_id: str | None = None) -> None:
    """Make the recording of a cut its speaker, as the corpus names none, for the check to report.

    Of a recording of several channels that are not mixed each channel is a speaker. A recording has
    one microphone and usually one talker: its mean is of more speech than that of an utterance, and
    not of all talkers of the corpus.

    Args:
      why: the reason for the report.
      recording_id: the recording; None: that of the cut.
    """
    custom = cut.custom or {}
    one_channel = cut.recording.num_channels == 1 or custom.get("mix_channels")
    speaker = recording_id or cut.recording_id
    speaker = speaker if one_channel else f"{speaker}-{cut.channel}"
    cut.supervisions[0].speaker = speaker
    cut.custom = {**custom, NO_SPEAKER: f"{why}: its recording counts as its speaker"}


def mark_other_speaker(cut: MonoCut, which: str) -> None:
    """Record in a cut that the corpus names another speaker too, for the check to report."""
    cut.custom = {**(cut.custom or {}), OTHER_SPEAKER: which}


def text_of(cut: MonoCut) -> str:
    """Return the transcript."""
    return cut.supervisions[0].text


def rewrite_texts(
    cuts: Iterable[MonoCut],
    transcript: Callable[[str], str],
    found_tags: Callable[[str], Iterable[str]],
) -> None:
    """Rewrite the transcripts of `cuts`, and record the tags that they had.

    Args:
      cuts: are changed.
      transcript: returns the text for a manifest, as `TextPolicy.transcript` does.
      found_tags: returns the tags that are no words of a text.
    """
    for cut in cuts:
        text = text_of(cut)
        cut.supervisions[0].text = transcript(text)
        if tags := found_tags(text):
            cut.custom = {**(cut.custom or {}), TAGS: " ".join(dict.fromkeys(tags))}


def speaker_of(cut: MonoCut) -> str:
    """Return the speaker's name."""
    return cut.supervisions[0].speaker


def channel_of(cut: MonoCut) -> int | None:
    """Return the channel of the recording, from 0; None: the mean of all its channels."""
    return None if (cut.custom or {}).get("mix_channels") else cut.channel


def channel_name(cut: MonoCut) -> str:
    """Return the channel for CTM and STM files: as the corpus calls it, else counted from 1."""
    name = (cut.custom or {}).get(CHANNEL_NAME)
    return name if isinstance(name, str) else str((channel_of(cut) or 0) + 1)


def audio_of(cut: MonoCut) -> str:
    """Return the path of the audio file, or the shell command that makes the audio.

    Of a cut with features in place of audio it is the path of their archive.
    """
    return cut.recording.sources[0].source


def has_audio(cut: MonoCut) -> bool:
    """Return whether the recording of a cut is audio, not an archive of features."""
    return FEATURE_MATRIX not in (cut.custom or {})


def write_cuts(cuts: Iterable[MonoCut], path: Path) -> int:
    """Write cuts in the order given, the same bytes for the same cuts; return their number.

    In a run directory paths that lie in it or in the corpus are written relative to them.
    """
    count, places = 0, places_of(path)
    with open_atomically(path) as file:
        for cut in cuts:
            file.write(json.dumps(portable(cut.to_dict(), places), ensure_ascii=False) + "\n")
            count += 1
    return count


def iter_cuts(path: Path, excluded: Path | None = None) -> Iterator[MonoCut]:
    """Read cuts one by one.

    Args:
      path: what `write_cuts` wrote; the file's stem is the split.
      excluded: the check's excluded.tsv; utterances listed there for this split are left out.

    Raises:
      ManifestError: a line that is no cut.
      UnsafeCutError: a cut that names more than local files, see `toolkit.corpus.cuts`.
    """
    out = read_exclusions(excluded, Path(path).stem) if excluded is not None else set()
    copies: dict[str, int] = {}
    places = places_of(path)
    with _naming(path), open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            with _naming(f"{path}:{number}", "is no cut"):
                plain = validated(json.loads(line), _CUT, "the line")
                cut = parse_cut(plain, f"{path}:{number}", places)
            copies[cut.id] = copies.get(cut.id, 0) + 1
            if (cut.id, copies[cut.id]) not in out:
                yield cut


def _naming(place: Path | str, what: str = "cannot be read") -> AbstractContextManager:
    return reading(place, ManifestError, "prepare the data again", what)


def read_cuts(path: Path, excluded: Path | None = None) -> list[MonoCut]:
    """Read all cuts: see `iter_cuts`."""
    return list(iter_cuts(path, excluded))
