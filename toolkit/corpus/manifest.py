"""Makes, validates, reads and writes cuts: MonoCuts with one supervision per utterance.

A lhotse manifest can name more than files: shell commands, URLs, archives that are unpickled, and
classes of transforms. Such names may be in the recording of a cut, in the tracks of a mixed cut, in
the impulse response of a transform, in custom fields, or nested in any of these. `parse_cut` checks
the plain data before lhotse parses it; `check_audio` checks cuts made in memory before their audio
is read. File names need no check: `toolkit.features.cut_audio.LocalFiles` reads only local files,
and takes a command or URL for a missing file.

Cuts in memory hold absolute paths. In files, paths in the run directory or its corpus are replaced
by names of places, so that both can be moved; see `toolkit.storage.paths`.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource
from lhotse.augmentation import AudioTransform
from lhotse.cut import Cut, MixedCut, PaddingCut
from lhotse.serialization import deserialize_item

from toolkit.corpus.audio import open_audio
from toolkit.corpus.findings import read_exclusions
from toolkit.errors import ToolkitError
from toolkit.storage.files import open_atomically
from toolkit.storage.lines import single_spaced
from toolkit.storage.paths import PathAliases, encoding_error, places_of, printable
from toolkit.storage.reading import NATURAL, quoted, reading, validated

_DETAILS = ("fault_detail", "note_detail")


def to_relative_paths(cut_data: Mapping[str, Any], places: PathAliases | None) -> Mapping[str, Any]:
    """Replace the paths in a cut's plain data by the aliases of their places.

    Args:
      cut_data: `Cut.to_dict()`; it is not changed.
      places: places of the file that the cut is written to; None: nothing is replaced.
    """
    return _replaced(cut_data, places.name, places.relativize_in) if places else cut_data


def to_absolute_paths(cut_data: Mapping[str, Any], places: PathAliases | None) -> Mapping[str, Any]:
    """Replace the aliases that `to_relative_paths` wrote by paths again.

    Args:
      cut_data: plain data of a cut; it is not changed.
      places: places of the file that the cut is read from; None: nothing is replaced.
    """
    return _replaced(cut_data, places.path, places.resolve_in) if places else cut_data


def _replaced(
    cut_data: Mapping[str, Any], path: Callable[[str], str], text: Callable[[str], str]
) -> dict[str, Any]:
    """Apply `path` to the paths in a cut's plain data, and `text` to texts that contain paths."""
    replaced = dict(cut_data)
    if isinstance(recording := replaced.get("recording"), Mapping):
        sources = [_with_path(source, path) for source in recording.get("sources", ())]
        replaced["recording"] = {**recording, "sources": sources}
    if isinstance(custom := replaced.get("custom"), Mapping):
        changes: dict[str, Any] = {key: text(custom[key]) for key in _DETAILS if key in custom}
        if isinstance(parts := custom.get("components"), Mapping):
            changes["components"] = {key: path(value) for key, value in parts.items()}
        replaced["custom"] = {**custom, **changes}
    return replaced


def _with_path(source: Any, path: Callable[[str], str]) -> Any:
    """Apply `path` to the file of an audio source; return other data as they are."""
    has_source = isinstance(source, Mapping) and isinstance(source.get("source"), str)
    return {**source, "source": path(source["source"])} if has_source else source


SOURCES = frozenset({"file", "memory"})
"""Types of lhotse's audio sources that may be read: local files, and bytes in memory, which only
cuts made in memory have."""
STORAGES = frozenset(
    {
        "shar",  # a placeholder; the toolkit's own shards have it
        *("lilcom_chunky", "lilcom_files", "numpy_files"),
        *("lilcom_hdf5", "numpy_hdf5", "chunked_lilcom_hdf5"),
    }
)
"""Storage types of lhotse's arrays that are accepted: local files without pickles. The toolkit does
not read them."""
TRANSFORMS = frozenset(
    {
        *("Clipping", "Compress", "DereverbWPE", "LoudnessNormalization", "Narrowband", "Resample"),
        *("ReverbWithImpulseResponse", "Speed", "Tempo", "Volume"),
        *("AddNoise", "Reverberate"),  # of toolkit.features.cut_audio
    }
)
"""Transforms of audio that are accepted, because they read only local files. Lhotse looks up
transforms by name."""


class UnsafeCutError(ToolkitError):
    """Raised for a cut that names more than local files, or whose audio would need gigabytes."""


def parse_cut(cut_data: Any, place: str, places: PathAliases | None = None) -> Cut:
    """Make a cut from a manifest's plain data, after checking that it is safe to load.

    Args:
      cut_data: result of `json.loads`; lhotse changes it.
      place: file and line, for messages.
      places: places of the manifest, `places_of(path)`, by which names of audio become paths.

    Raises:
      UnsafeCutError: it names a command, a URL, an archive that would be unpickled, or an unknown
        transform; the message says which, and what to do.
      ValueError, KeyError, TypeError, ...: it is not a cut; `reading` catches them.
    """
    id = validated(cut_data, {"id": str, "type": str}, "the line")["id"]
    cut_data = to_absolute_paths(cut_data, places)
    for fault in _faults(cut_data):
        raise UnsafeCutError(f"{place}: {id}: {fault}")
    try:
        cut = deserialize_item(cut_data)
    except ImportError as error:  # of a transform's library
        raise ValueError(f"a transform needs {error.name}, which is not installed") from error
    if not isinstance(cut, Cut):
        raise ValueError(f"it describes a {type(cut).__name__}, not a cut")
    return cut


def check_audio(cut: Cut) -> None:
    """Check everything that lhotse would read for a cut's audio, at any depth.

    Raises:
      UnsafeCutError: as for `parse_cut`.
    """
    # A stack instead of recursion, see `_faults`.
    pending: list[Any] = [cut]
    while pending:
        item = pending.pop()
        if isinstance(item, MixedCut):
            pending += [track.cut for track in item.tracks]
            pending.append(item.transforms)
        elif isinstance(item, Cut):
            pending.append(None if isinstance(item, PaddingCut) else item.recording)
        elif isinstance(item, Recording):
            for source in item.sources:
                if fault := _source_fault(source.type, source.source):
                    raise UnsafeCutError(f"{cut.id}: {fault}")
            pending.append(item.transforms)
        elif isinstance(item, AudioTransform):
            pending += vars(item).values()
        elif isinstance(item, list | tuple):
            pending += item
        elif isinstance(item, Mapping):
            for fault in _faults(item):
                raise UnsafeCutError(f"{cut.id}: {fault}")


def _faults(cut_data: Any) -> Iterator[str]:
    """Yield the faults of plain data, at any depth: everything in it that must not be read."""
    # A stack instead of recursion, because a manifest may be nested deeper than Python's stack.
    pending = [cut_data]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            yield from _mapping_faults(value)
            value = value.values()
        pending += [item for item in value if isinstance(item, Mapping | list | tuple)]


def _mapping_faults(mapping: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of a mapping; its keys show whether it is a source, array or transform."""
    source = mapping.keys() >= {"type", "channels", "source"}
    if source and (fault := _source_fault(mapping["type"], mapping["source"])):
        yield fault
    if "storage_type" in mapping and mapping["storage_type"] not in STORAGES:
        yield (
            f"an array or image is stored as {quoted(str(mapping['storage_type']))}, which may "
            "fetch data or run code; remove it from the cut, or store it in local files"
        )
    if mapping.keys() >= {"name", "kwargs"} and mapping["name"] not in TRANSFORMS:  # a transform
        yield (
            f"the transform {quoted(str(mapping['name']))} is not known to read only local files; "
            "write its output to a file, and put the file's path in the cut"
        )


def _source_fault(kind: Any, source: Any) -> str:
    """Return why an audio source must not be read, for a message; "" if it may be read."""
    if kind in SOURCES:
        return ""
    source_text = quoted(source) if isinstance(source, str) else "its data"
    if kind == "command":
        return (
            f"the recording is the shell command {source_text}, which is not run; write its output "
            "to a file, and put the file's path in the cut"
        )
    if kind == "url":
        return (
            f"the recording is at the address {source_text}, which is not fetched; download it, "
            "and put the file's path in the cut"
        )
    return (
        f"the recording is of the type {quoted(str(kind))}, which is not supported; write it to a "
        "file, and put the file's path in the cut"
    )


HELD_OUT = "held_out"
"""Marks, in `custom`, the cuts of a split that was taken out of the training data."""
NO_SPEAKER = "no_speaker"
"""Holds, in `custom`, why the speaker of the cut is unknown."""
OTHER_SPEAKER = "other_speaker"
"""Holds, in `custom`, which other speaker the corpus names for the cut."""
CHANNEL_NAME = "channel_name"
"""Holds, in `custom`, the name of the cut's channel in the corpus: A, B, 1, ..."""
FEATURE_MATRIX = "feature_matrix"
"""Holds, in `custom`, where the cut's features are in the Kaldi archive that takes the place of its
audio: `offset` in bytes, `range` of rows and columns, and `dimension`."""
TAGS = "tags"
"""Holds, in `custom`, the tags of the original transcript that are not words."""
TOLERANCE_SECONDS = 0.01
"""A segment that ends at most this long past its recording, one frame, is trimmed without a note,
because its end was rounded."""
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
    """Raised when a corpus or manifest cannot be read."""


def probe_recording(path: Path, id: str) -> tuple[Recording, str | None]:
    """Read the header of an audio file, or the whole file if the header has no length.

    Returns:
      The recording and None; or a recording without samples, and why the file cannot be read.
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
    """Make a recording without samples, a placeholder for audio that cannot be read."""
    return Recording(id, [AudioSource(type="file", channels=[0], source=source)], 16000, 0, 0.0)


def _reason(path: Path, error: Exception) -> str:
    """Return why a file cannot be read, for a message."""
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
    """Make the recording of an utterance with features and no audio.

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
      fault: (kind of `toolkit.corpus.findings.FINDING_KINDS`, detail), which the check will report.
        A segment outside its recording gets its fault here.
      note: (kind, detail) of something harmless; a trimmed segment gets its note here.
      channel: the channel of the recording, from 0; None for the mean of all channels.
      channel_name: name of the channel in the corpus, for CTM files and the like; None: its number
        from 1.
    """
    # 1. The span: trimmed to the recording, or empty if it lies outside.
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
    # 2. What lhotse has no field for.
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


def flag_missing_speaker(cut: MonoCut, why: str, recording_id: str | None = None) -> None:
    """Use the recording as the speaker of a cut without one, and flag it for the check.

    If the channels of a recording are not mixed, each channel is a speaker. A recording has one
    microphone and usually one talker, so means over a recording are better estimates than means
    over an utterance.

    Args:
      why: the reason, for the report.
      recording_id: the recording; None: that of the cut.
    """
    custom = cut.custom or {}
    one_channel = cut.recording.num_channels == 1 or custom.get("mix_channels")
    speaker = recording_id or cut.recording_id
    speaker = speaker if one_channel else f"{speaker}-{cut.channel}"
    cut.supervisions[0].speaker = speaker
    cut.custom = {**custom, NO_SPEAKER: f"{why}: its recording counts as its speaker"}


def flag_ambiguous_speaker(cut: MonoCut, which: str) -> None:
    """Flag for the check that the corpus names a second speaker for a cut."""
    cut.custom = {**(cut.custom or {}), OTHER_SPEAKER: which}


def text_of(cut: MonoCut) -> str:
    """Return a cut's transcript."""
    return cut.supervisions[0].text


def rewrite_texts(
    cuts: Iterable[MonoCut],
    transcript: Callable[[str], str],
    found_tags: Callable[[str], Iterable[str]],
) -> None:
    """Rewrite the transcripts of `cuts` in place, and record the tags that they had.

    Args:
      cuts: they are changed.
      transcript: returns the text for a manifest, such as `TextPolicy.transcript`.
      found_tags: returns the tags of a text that are not words.
    """
    for cut in cuts:
        text = text_of(cut)
        cut.supervisions[0].text = transcript(text)
        if tags := found_tags(text):
            cut.custom = {**(cut.custom or {}), TAGS: " ".join(dict.fromkeys(tags))}


def speaker_of(cut: MonoCut) -> str:
    """Return the name of a cut's speaker."""
    return cut.supervisions[0].speaker


def channel_of(cut: MonoCut) -> int | None:
    """Return a cut's channel, from 0; None for the mean of all channels."""
    return None if (cut.custom or {}).get("mix_channels") else cut.channel


def channel_name(cut: MonoCut) -> str:
    """Return a cut's channel for CTM and STM: its name in the corpus, else its number from 1."""
    name = (cut.custom or {}).get(CHANNEL_NAME)
    return name if isinstance(name, str) else str((channel_of(cut) or 0) + 1)


def audio_of(cut: MonoCut) -> str:
    """Return a cut's audio source: a path, or a shell command that writes the audio.

    For a cut with features in place of audio it is the path of their archive.
    """
    return cut.recording.sources[0].source


def has_audio(cut: MonoCut) -> bool:
    """Return whether a cut's recording is audio rather than an archive of features."""
    return FEATURE_MATRIX not in (cut.custom or {})


def write_cuts(cuts: Iterable[MonoCut], path: Path) -> int:
    """Write cuts in order, always the same bytes for the same cuts; return their number.

    For a file in a run directory, paths in this directory or the corpus are written relative to it.
    """
    count, places = 0, places_of(path)
    with open_atomically(path) as file:
        for cut in cuts:
            file.write(
                json.dumps(to_relative_paths(cut.to_dict(), places), ensure_ascii=False) + "\n"
            )
            count += 1
    return count


def iter_cuts(path: Path, excluded: Path | None = None) -> Iterator[MonoCut]:
    """Read cuts from a manifest one at a time.

    Args:
      path: what `write_cuts` wrote; the file's stem is the split.
      excluded: the check's excluded.tsv; utterances listed there for this split are left out.

    Raises:
      ManifestError: a line is not a cut.
      UnsafeCutError: a cut names more than local files, see `toolkit.corpus.manifest`.
    """
    excluded_copies = read_exclusions(excluded, Path(path).stem) if excluded is not None else set()
    copies: dict[str, int] = {}
    places = places_of(path)
    with _naming(path), open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            with _naming(f"{path}:{number}", "is not a cut"):
                cut_data = validated(json.loads(line), _CUT, "the line")
                cut = parse_cut(cut_data, f"{path}:{number}", places)
            copies[cut.id] = copies.get(cut.id, 0) + 1
            # An exclusion names an id and which of its cuts, counted in the order of the file.
            if (cut.id, copies[cut.id]) not in excluded_copies:
                yield cut


def _naming(place: Path | str, problem: str = "cannot be read") -> AbstractContextManager:
    """Return a context that turns reading errors into a ManifestError that names the place."""
    return reading(place, ManifestError, "prepare the data again", problem)


def read_cuts(path: Path, excluded: Path | None = None) -> list[MonoCut]:
    """Read all cuts of a manifest; see `iter_cuts`."""
    return list(iter_cuts(path, excluded))


MAX_FOLDERS = 16


def audio_folders(cuts: Iterable[MonoCut], root: Path, most: int = MAX_FOLDERS) -> list[Path]:
    """Return the folders outside `root` that contain the audio of `cuts`, at any depth.

    A path with `..`, such as `root/../wav`, counts as outside. At most `most` folders are returned:
    while there are more, the deepest are replaced by their parents. The file system's root is never
    returned.
    """
    folders = {Path(source).parent for source in {audio_of(cut) for cut in cuts}}
    folders = {folder for folder in folders if folder.is_absolute() and folder.is_dir()}
    folders = _topmost({f for f in folders if ".." in f.parts or not f.is_relative_to(root)})
    # Replace the deepest folders by their parents until few enough are left.
    while len(folders) > most:
        depth = max(len(folder.parts) for folder in folders)
        folders = _topmost({f.parent if len(f.parts) == depth else f for f in folders})
    return sorted(folder for folder in folders if folder != folder.parent)


def _topmost(folders: set[Path]) -> set[Path]:
    """Remove folders that lie inside other folders of the set."""
    return {folder for folder in folders if not folders & set(folder.parents)}
