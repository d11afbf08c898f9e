"""Cuts that somebody else wrote: what they may name, and the one place where lhotse parses them.

A manifest of lhotse can name more than files: shell commands, addresses, archives that are
unpickled, classes of transforms; in the recording of a cut, in the tracks of a mixed cut, in the
impulse response of a transform, in custom fields, in any of these inside another. `parse_cut` looks
at the plain data before lhotse does; `check_audio` at cuts made in memory before their audio is
read. The name of a file may be anything: audio is read by libsndfile alone, see
`toolkit.features.cut_audio.LocalFiles`, to which a command or an address is a file that is missing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from lhotse import Recording
from lhotse.augmentation import AudioTransform
from lhotse.cut import Cut, MixedCut, PaddingCut
from lhotse.serialization import deserialize_item

from toolkit.corpus.relocation import resolved
from toolkit.errors import ToolkitError
from toolkit.storage.paths import PathAliases
from toolkit.storage.reading import quoted, validated

SOURCES = frozenset({"file", "memory"})
"""Types of lhotse's audio sources that are read: the name of a local file; bytes, which only cuts
made in memory have."""
STORAGES = frozenset(
    {
        "shar",  # a placeholder; the toolkit's own shards have it
        *("lilcom_chunky", "lilcom_files", "numpy_files"),
        *("lilcom_hdf5", "numpy_hdf5", "chunked_lilcom_hdf5"),
    }
)
"""Where lhotse's arrays may be: local files without pickles. The toolkit does not read them."""
TRANSFORMS = frozenset(
    {
        *("Clipping", "Compress", "DereverbWPE", "LoudnessNormalization", "Narrowband", "Resample"),
        *("ReverbWithImpulseResponse", "Speed", "Tempo", "Volume"),
        *("AddNoise", "Reverberate"),  # of toolkit.features.cut_audio
    }
)
"""Transforms of audio, which lhotse looks up by name: those that read nothing but local files."""


class UnsafeCutError(ToolkitError):
    """A cut that names something other than local files, or would take gigabytes to compute."""


def parse_cut(plain: Any, place: str, places: PathAliases | None = None) -> Cut:
    """Make a cut from the plain data of a manifest.

    Args:
      plain: as `json.loads` gives it; lhotse changes it.
      place: file and line, for messages.
      places: of the manifest, `places_of(path)`: what names of audio in it stand for.

    Raises:
      UnsafeCutError: it names a command, an address, an archive that would be unpickled, or a
        transform that is not known; the message says which, and the way out.
      ValueError, KeyError, TypeError, ...: it is no cut; to be caught by `reading`.
    """
    id = validated(plain, {"id": str, "type": str}, "the line")["id"]
    plain = resolved(plain, places)
    for fault in _faults(plain):
        raise UnsafeCutError(f"{place}: {id}: {fault}")
    try:
        cut = deserialize_item(plain)
    except ImportError as error:  # of a transform's library
        raise ValueError(f"{error.name} is not installed, which a transform needs") from error
    if not isinstance(cut, Cut):
        raise ValueError(f"it is a {type(cut).__name__}, not a cut")
    return cut


def check_audio(cut: Cut) -> None:
    """Check everything that lhotse would read for the audio of a cut, however deep inside it.

    Raises:
      UnsafeCutError: as `parse_cut`.
    """
    waiting: list[Any] = [cut]
    while waiting:
        item = waiting.pop()
        if isinstance(item, MixedCut):
            waiting += [track.cut for track in item.tracks]
            waiting.append(item.transforms)
        elif isinstance(item, Cut):
            waiting.append(None if isinstance(item, PaddingCut) else item.recording)
        elif isinstance(item, Recording):
            for source in item.sources:
                if fault := _source_fault(source.type, source.source):
                    raise UnsafeCutError(f"{cut.id}: {fault}")
            waiting.append(item.transforms)
        elif isinstance(item, AudioTransform):
            waiting += vars(item).values()
        elif isinstance(item, list | tuple):
            waiting += item
        elif isinstance(item, Mapping):
            for fault in _faults(item):
                raise UnsafeCutError(f"{cut.id}: {fault}")


def _faults(plain: Any) -> Iterator[str]:
    """Yield what plain data name at any depth that must not be read."""
    waiting = [plain]
    while waiting:  # no recursion: the depth is the writer's choice
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield from _mapping_faults(value)
            value = value.values()
        waiting += [item for item in value if isinstance(item, Mapping | list | tuple)]


def _mapping_faults(plain: Mapping[str, Any]) -> Iterator[str]:
    source = plain.keys() >= {"type", "channels", "source"}
    if source and (fault := _source_fault(plain["type"], plain["source"])):
        yield fault
    if "storage_type" in plain and plain["storage_type"] not in STORAGES:
        yield (
            f"an array or image is stored as {quoted(str(plain['storage_type']))}, which may be "
            "fetched or run code; leave it out of the cut, or store it in local files"
        )
    if plain.keys() >= {"name", "kwargs"} and plain["name"] not in TRANSFORMS:  # a transform
        yield (
            f"the transform {quoted(str(plain['name']))} is not known to read local files only; "
            "write its output to a file and name that"
        )


def _source_fault(kind: Any, source: Any) -> str:
    if kind in SOURCES:
        return ""
    shown = quoted(source) if isinstance(source, str) else "its data"
    if kind == "command":
        return (
            f"the recording is the shell command {shown}, which is not run; write its output to a "
            "file and name that"
        )
    if kind == "url":
        return (
            f"the recording is at the address {shown}, which is not fetched; fetch it to a file and"
            " name that"
        )
    return (
        f"the recording is of the type {quoted(str(kind))}, which is not read here; write it to a "
        "file and name that"
    )
