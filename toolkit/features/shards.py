"""Feature shards on disk, in the layout of lhotse's Shar.

A shard is `cuts.NNNNNN.jsonl` and `features.NNNNNN.tar`; `CutSet.from_shar(in_dir=...)` reads a
folder of them without this package. The layout is written here and not by lhotse's SharWriter
because that writes cuts with gzip, whose header holds the time, and moves every cut to the start
of its recording; these files depend on their content alone.

Features are stored raw at the front end's rate as float16 `.npy`. Measured on 72 s of read
speech, 64 log-mel, one core: 46 MB/h, largest error 0.008 (0.3 % of a standard deviation),
written at 48,000 and read at 45,000 times real time. lilcom, lhotse's default, has 29 MB/h,
0.016, 4,900 and 27,000: its compression costs as much time as the front end.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from lhotse.cut import MonoCut
from torch import Tensor

from toolkit.corpus.relocation import portable
from toolkit.features.cmn_state import CmnState
from toolkit.features.silence import KINDS, counted_frames, outside, spans
from toolkit.features.tars import TarWriter, read_members
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.paths import places_of
from toolkit.storage.reading import parse_array

MANIFEST = "features.json"
SHARDS = "shards"
CUTS = "cuts"
DIGITAL_SILENCE = "digital_silence"
"""Holds, in a stored cut's `custom`, the spans (first frame, end) of digital silence, if any."""
FAILED_CUTS = "failed.jsonl"
"""Cuts whose features could not be extracted, written by `toolkit.corpus.manifest.write_cuts`."""
_encode = json.JSONEncoder(ensure_ascii=False).encode


class FeatureFormat(Protocol):
    """Description of a store's features in its manifest; a dataclass like `FrontendConfig`."""

    @property
    def kind(self) -> str:
        """Lhotse's name for the type of features."""

    @property
    def frame_shift_ms(self) -> float:
        """Step in milliseconds."""

    @property
    def sampling_rate(self) -> int:
        """Sampling rate of the audio, in Hz."""

    @property
    def dimension(self) -> int:
        """F, the number of values per frame."""


def field_file(field: str, index: int) -> str:
    """Return the file name of a shard's field: `cuts`, `features` or `targets`."""
    return f"{field}.{index:06d}.{'jsonl' if field == CUTS else 'tar'}"


def cuts_path(folder: Path, index: int) -> Path:
    """Return the path of the cuts of shard `index`."""
    return folder / field_file(CUTS, index)


def features_path(folder: Path, index: int) -> Path:
    """Return the path of the features of shard `index`."""
    return folder / field_file("features", index)


def write_shard(
    folder: Path,
    index: int,
    utterances: Iterable[tuple[MonoCut | Mapping[str, Any], str, Tensor]],
    config: FeatureFormat,
) -> tuple[int, int]:
    """Write one shard of whole speakers; each file is written atomically.

    Each stored cut gains two custom fields for causal mean normalisation: `cmn_frames` and
    `cmn_sum` ([F] float64), number and sum of the frames, as stored, of the speaker's earlier
    utterances. Frames of digital silence do not count; a third field, `digital_silence`, has their
    spans. Features that do not show it keep that of the cuts.

    Args:
      folder: a folder that holds nothing but shards.
      index: number of the shard.
      utterances: (cut or its `to_dict()`, speaker, raw features [T, F]); a speaker's
        follow each other in time order.
      config: of the features.

    Returns:
      The number of utterances and of frames.
    """
    num_utterances = num_frames = 0
    current, state = None, CmnState.empty(config.dimension)
    places = places_of(cuts_path(folder, index))
    # Opened and closed together: the file of cuts gets its name after that of the features.
    with (
        open_atomically(cuts_path(folder, index)) as lines,
        open_atomically(features_path(folder, index), "wb") as file,
    ):
        tar = TarWriter(file)
        for cut, speaker, features in utterances:
            if speaker != current:
                current, state = speaker, CmnState.empty(config.dimension)
            plain = portable(cut if isinstance(cut, Mapping) else cut.to_dict(), places)
            stored = features.to(torch.float16)
            manifest = _manifest(plain, len(stored), config)
            tar.add_array(plain["id"], stored.numpy(), manifest)
            custom = plain.get("custom") or {}
            if config.kind in KINDS:
                counted = counted_frames(stored, config.kind)
                custom = {k: v for k, v in custom.items() if k != DIGITAL_SILENCE}
                if not counted.all():
                    custom[DIGITAL_SILENCE] = spans(~counted)
            else:
                counted = outside(custom.get(DIGITAL_SILENCE, ()), len(stored))
            mean = {"cmn_frames": state.frames, "cmn_sum": state.sum.tolist()}
            line = {
                **plain,
                "custom": custom | mean,
                "features": manifest,
            }
            lines.write(_encode(line) + "\n")
            state = state.after(stored, counted)
            num_utterances += 1
            num_frames += len(stored)
        tar.close()
    return num_utterances, num_frames


def write_manifest(
    folder: Path,
    config: FeatureFormat,
    shards: Sequence[Mapping[str, int]],
    failed: int = 0,
    engine: str | None = None,
) -> None:
    """Write a store's manifest; written last, it marks the shards as complete.

    Args:
      folder: of the store.
      config: of the features.
      shards: `utterances` and `frames` of each.
      failed: utterances that have no features.
      engine: what computed the features, with its version; None: left out.
    """
    write_atomically(folder / MANIFEST, manifest_text(config, shards, failed, engine))


def manifest_text(
    config: FeatureFormat,
    shards: Sequence[Mapping[str, int]],
    failed: int = 0,
    engine: str | None = None,
) -> str:
    """Return the content of a store's manifest: see `write_manifest`."""
    manifest = {
        "frontend": asdict(config),
        **({"engine": engine} if engine else {}),
        "dimension": config.dimension,
        "utterances": sum(shard["utterances"] for shard in shards),
        "frames": sum(shard["frames"] for shard in shards),
        "failed": failed,
        "shards": [{"utterances": s["utterances"], "frames": s["frames"]} for s in shards],
    }
    return json.dumps(manifest, indent=1) + "\n"


def index_features(path: Path) -> Iterator[tuple[str, int, int]]:
    """Scan a shard's tar: (utterance id, offset, size) of each array, in bytes of the file."""
    with open(path, "rb") as file:
        yield from index_arrays(file)


def index_arrays(file: IO[bytes]) -> Iterator[tuple[str, int, int]]:
    """Scan an open tar, as `index_features` does."""
    for name, _, offset, size in read_members(file):
        if name.endswith(".npy"):
            yield name.removesuffix(".npy"), offset, size


def read_array(path: Path, offset: int, size: int) -> Tensor:
    """Read one array found by `index_features`: [T, F] float32."""
    with open(path, "rb") as file:
        return read_array_of(file, offset, size)


def read_features(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield (utterance id, features [T, F] float32) of a shard's tar, in its order."""
    with open(path, "rb") as file:
        for name, offset, size in index_features(path):
            yield name, read_array_of(file, offset, size)


def read_array_of(file: IO[bytes], offset: int, size: int) -> Tensor:
    """Read one array of an open tar, as `read_array` does."""
    file.seek(offset)
    content = bytearray(size)  # torch wants writable memory
    if file.readinto(content) < size:
        raise ValueError("the file is cut short")
    array = parse_array(content)
    if array.ndim != 2:
        raise ValueError(f"an array of shape {array.shape}, not [frames, dimensions]")
    return torch.from_numpy(array).float()  # numpy takes ten times as long


def _manifest(cut: Mapping[str, Any], num_frames: int, config: FeatureFormat) -> dict[str, Any]:
    """Return what `lhotse.Features.to_dict` returns, which takes as long as reading the audio."""
    manifest = {
        "type": config.kind,
        "num_frames": num_frames,
        "num_features": config.dimension,
        "frame_shift": config.frame_shift_ms / 1000,
        "sampling_rate": config.sampling_rate,
        "start": cut["start"],
        "duration": cut["duration"],
        "storage_type": "shar",  # a placeholder: the tar member before this manifest has the data
        "storage_path": "",
        "storage_key": "",
        "recording_id": cut["recording"]["id"] if "recording" in cut else None,
        "channels": cut["channel"],
    }
    return {key: value for key, value in manifest.items() if value is not None}
