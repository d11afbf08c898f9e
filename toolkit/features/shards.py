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

import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from lhotse import Features
from lhotse.cut import MonoCut
from torch import Tensor

from toolkit.features.normalise import MeanState
from toolkit.stages.files import open_atomically, write_atomically

MANIFEST = "features.json"
SHARDS = "shards"


class FeatureFormat(Protocol):
    """What a store says of its features, such as a `FrontendConfig`; a dataclass."""

    kind: str
    """Lhotse's name for the type of features."""
    frame_shift_ms: float
    """Step in milliseconds."""
    sampling_rate: int
    """Of the audio, in Hz."""

    @property
    def dimension(self) -> int:
        """F, the number of values per frame."""


def cuts_path(folder: Path, index: int) -> Path:
    """Name the file of shard `index`'s cuts."""
    return folder / f"cuts.{index:06d}.jsonl"


def features_path(folder: Path, index: int) -> Path:
    """Name the file of shard `index`'s features."""
    return folder / f"features.{index:06d}.tar"


def write_shard(
    folder: Path,
    index: int,
    utterances: Iterable[tuple[MonoCut, str, Tensor]],
    config: FeatureFormat,
) -> tuple[int, int]:
    """Write one shard of whole speakers; each file appears at once and whole.

    Each stored cut gains two custom fields for causal mean normalisation: `cmn_frames` and
    `cmn_sum` ([F] float64), number and sum of the frames, as stored, of the speaker's earlier
    utterances.

    Args:
      folder: holds shards and nothing else.
      index: number of the shard.
      utterances: (cut, speaker, raw features [T, F]); a speaker's follow each other in time order.
      config: of the features.

    Returns:
      The number of utterances and of frames.
    """
    num_utterances = num_frames = 0
    current, state = None, MeanState.empty(config.dimension)
    # Opened and closed together: the cuts' file, complete, takes its name after the features'.
    with (
        open_atomically(cuts_path(folder, index)) as lines,
        open_atomically(features_path(folder, index), "wb") as file,
        tarfile.open(fileobj=file, mode="w|") as tar,
    ):
        for cut, speaker, features in utterances:
            if speaker != current:
                current, state = speaker, MeanState.empty(config.dimension)
            stored = features.to(torch.float16)
            manifest = _manifest(cut, len(stored), config)
            _add(tar, f"{cut.id}.npy", _npy(stored.numpy()))
            _add(tar, f"{cut.id}.json", json.dumps(manifest.to_dict()).encode())
            custom = {"cmn_frames": state.frames, "cmn_sum": state.sum.tolist()}
            line = cut.to_dict() | {
                "custom": {**(cut.custom or {}), **custom},
                "features": manifest.to_dict(),
            }
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            state = state.after(stored)
            num_utterances += 1
            num_frames += len(stored)
    return num_utterances, num_frames


def write_manifest(
    folder: Path, config: FeatureFormat, shards: Sequence[Mapping[str, int]], failed: int = 0
) -> None:
    """Say that the shards of a store are complete; written last.

    Args:
      folder: of the store.
      config: of the features.
      shards: `utterances` and `frames` of each.
      failed: utterances that have no features.
    """
    manifest = {
        "frontend": asdict(config),
        "dimension": config.dimension,
        "utterances": sum(shard["utterances"] for shard in shards),
        "frames": sum(shard["frames"] for shard in shards),
        "failed": failed,
        "shards": [{"utterances": s["utterances"], "frames": s["frames"]} for s in shards],
    }
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def index_features(path: Path) -> Iterator[tuple[str, int, int]]:
    """Scan a shard's tar: (utterance id, offset, size) of each array, in bytes of the file."""
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            if member.name.endswith(".npy"):
                yield member.name.removesuffix(".npy"), member.offset_data, member.size


def read_array(path: Path, offset: int, size: int) -> Tensor:
    """Read one array found by `index_features`: [T, F] float32."""
    with open(path, "rb") as file:
        file.seek(offset)
        array = np.load(io.BytesIO(file.read(size)), allow_pickle=False)
    return torch.from_numpy(array.astype(np.float32))


def _manifest(cut: MonoCut, num_frames: int, config: FeatureFormat) -> Features:
    return Features(
        type=config.kind,
        num_frames=num_frames,
        num_features=config.dimension,
        frame_shift=config.frame_shift_ms / 1000,
        sampling_rate=config.sampling_rate,
        start=cut.start,
        duration=cut.duration,
        storage_type="shar",  # a placeholder: the tar member before this manifest has the data
        storage_path="",
        storage_key="",
        recording_id=cut.recording_id if cut.has_recording else None,
        channels=cut.channel,
    )


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # time, owner and group are zero
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
