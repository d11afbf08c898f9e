"""Imports and exports features in Kaldi archives."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolkit.errors import ToolkitError
from toolkit.features.extract import remove_strays
from toolkit.features.shards import (
    MANIFEST,
    SHARDS,
    FeatureStore,
    plan_shards,
    write_manifest,
    write_shard,
)
from toolkit.kaldi.archive import (
    ArchiveWriter,
    Entry,
    entries,
    kaldi_native_io,
    read_matrix,
    read_shape,
)
from toolkit.kaldi.data_dir import RENAMED
from toolkit.kaldi.feature_dir import HALF_MAX, KaldiFormat
from toolkit.processes.bars import Bar
from toolkit.storage.files import write_atomically
from toolkit.storage.paths import PathMap
from toolkit.storage.reading import reading


class KaldiFeaturesError(ToolkitError):
    """Raised for features that cannot be imported or exported."""


def export_features(features: Path, out: Path, compress: bool = False, text: bool = False) -> int:
    """Write a store's raw features as `feats.NNNNNN.ark` and one sorted `feats.scp`.

    It also writes `utt2num_frames`, `utt2spk` and `spk2utt`, so that the folder becomes a Kaldi
    data directory once a `text` is added. If the folder has the `utt_map` of `export_data_dir`, its
    utterances get their new ids, and all others also get their speakers as prefixes. The scp file,
    which names the archives by absolute paths, is written last.

    Args:
      features: folder of a `FeatureStore`.
      out: output folder.
      compress: write Kaldi's compressed matrices (a byte per value, as `copy-feats
        --compress=true`), which lose some precision. Otherwise no value changes.
      text: write text archives, as `copy-feats ark,t:`, which cannot be compressed.

    Returns:
      Number of utterances.

    Raises:
      KaldiFeaturesError: both `text` and `compress` are set, an id is not valid in Kaldi's tables,
        or `utt_map` has none of the utterances.
      ArchiveError: an archive cannot be written, see `ArchiveWriter`.
    """
    if text and compress:
        raise KaldiFeaturesError("text archives cannot be compressed: choose text or compression")
    store = FeatureStore(features)
    kaldi, out = kaldi_native_io(), Path(out)
    keys = _keys(store, out / RENAMED)
    # Remove the scp of an earlier export first: its offsets are wrong in the new archives.
    (out / "feats.scp").unlink(missing_ok=True)
    lines: dict[str, str] = {}
    with Bar(total=len(store), unit="utt", desc="features") as bar:
        for number, ids in enumerate(store.shards):
            name = f"feats.{number:06d}"
            scp_part = out / f".{name}.scp"
            writer_type = kaldi.CompressedMatrixWriter if compress else kaldi.FloatMatrixWriter
            compression = (kaldi.CompressionMethod.kAutomaticMethod,) if compress else ()
            with ArchiveWriter(writer_type, out / f"{name}.ark", scp_part, text) as writer:
                for id in ids:
                    check_key(keys[id])
                    writer.write(keys[id], store.load(id).numpy(), *compression)
                    bar.update()
            lines |= dict(line.split(" ", 1) for line in scp_part.read_text("utf-8").splitlines())
            scp_part.unlink()
    frames = {keys[id]: str(store.num_frames(id)) for id in store.ids}
    write_table(out / "utt2num_frames", frames)
    speaker_of = {keys[id]: store.speaker(id) for id in store.ids}
    speakers: dict[str, list[str]] = {}
    for key in sorted(speaker_of, key=str.encode):
        speakers.setdefault(speaker_of[key], []).append(key)
    write_table(out / "utt2spk", speaker_of)
    write_table(out / "spk2utt", {name: " ".join(ids) for name, ids in speakers.items()})
    write_table(out / "feats.scp", lines)
    return len(lines)


def _keys(store: FeatureStore, renamed: Path) -> dict[str, str]:
    """Return the Kaldi key of each utterance; see `export_features` for the file `renamed`."""
    if not renamed.is_file():
        return {id: id for id in store.ids}
    with reading(renamed, KaldiFeaturesError, "export the data directory again"):
        lines = renamed.read_text(encoding="utf-8").splitlines()
        new_of = {old: new for new, old in (line.split(" ", 1) for line in lines)}
    if not new_of.keys() & set(store.ids):
        raise KaldiFeaturesError(
            f"{renamed} contains none of the utterances of {store.path}: write the Kaldi features "
            "to another folder"
        )
    return {id: new_of.get(id, f"{store.speaker(id)}-{id}") for id in store.ids}


def check_key(key: str) -> None:
    """Check that an utterance id is a valid key of Kaldi tables.

    Raises:
      KaldiFeaturesError: it is empty or contains white space.
    """
    if len(key.split()) != 1 or key != key.strip():
        raise KaldiFeaturesError(f"{key!r}: Kaldi's ids must not be empty or contain white space")


def write_table(path: Path, table: Mapping[str, str]) -> None:
    """Write lines sorted by bytes, as Kaldi's tools require."""
    lines = (f"{key} {table[key]}\n" for key in sorted(table, key=str.encode))
    write_atomically(path, "".join(lines))


@dataclass(frozen=True)
class FeatureImportSummary:
    """Counts of an import of features."""

    utterances: int
    """Number of utterances."""
    frames: int
    """Number of frames."""
    without: tuple[str, ...]
    """Utterances without features in the table, sorted."""
    rounding: float
    """Largest rounding error of a value in 16 bits."""


def import_features(
    table: Path,
    cuts: Iterable[Mapping[str, Any]],
    out: Path,
    frame_shift_ms: float = 10.0,
    sampling_rate: int = 16000,
    hours_per_shard: float = 0.5,
    allow_pipes: bool = False,
    path_map: PathMap = (),
) -> FeatureImportSummary:
    """Import the features of a Kaldi table into shards for training.

    Values are rounded to 16-bit floats; features that a store exported do not change.

    Args:
      table: feats.scp or an archive, compressed or not, or text.
      cuts: `MonoCut.to_dict()` of the utterances, see `cuts_without_audio`.
      out: folder of the `FeatureStore` to write.
      frame_shift_ms: step of the features in milliseconds.
      sampling_rate: sampling rate of their audio, in Hz.
      hours_per_shard: see `toolkit.features.config.ExtractConfig`.
      allow_pipes, path_map: see `entries`.

    Raises:
      KaldiFeaturesError: table and cuts have no utterance in common, or features have different
        dimensions, no frames, or values that are not finite or too large for 16 bits.
    """
    # 1. The utterances with features, by speaker.
    entry_of_id = entries(table, allow_pipes, path_map)
    all_cuts = list(cuts)
    cut_of_id = {cut["id"]: cut for cut in all_cuts if cut["id"] in entry_of_id}
    if not cut_of_id:
        raise KaldiFeaturesError(
            f"{table} contains none of the {len(all_cuts)} utterances of the data; the first "
            f"utterance in this table is {next(iter(entry_of_id))!r}"
        )
    speakers: dict[str, list[str]] = {}
    for id in sorted(cut_of_id):
        speakers.setdefault(cut_of_id[id]["supervisions"][0]["speaker"], []).append(id)
    seconds = {s: sum(cut_of_id[id]["duration"] for id in ids) for s, ids in speakers.items()}
    feature_format = KaldiFormat(
        _matrix(entry_of_id[next(iter(cut_of_id))]).shape[1],
        frame_shift_ms=frame_shift_ms,
        sampling_rate=sampling_rate,
    )
    # 2. The shards. Remove the old manifest first, so that an unfinished import cannot be opened.
    (Path(out) / MANIFEST).unlink(missing_ok=True)
    remove_strays(Path(out), set())
    rounding, shards = _Rounding(), []
    with Bar(total=len(cut_of_id), unit="utt", desc="features") as bar:
        for number, names in enumerate(plan_shards(seconds, hours_per_shard)):
            utterances = (
                (
                    cut_of_id[id],
                    speaker,
                    rounding(id, _matrix(entry_of_id[id], feature_format.dimension, bar)),
                )
                for speaker in names
                for id in speakers[speaker]
            )
            written = write_shard(Path(out) / SHARDS, number, utterances, feature_format)
            shards.append(dict(zip(("utterances", "frames"), written, strict=True)))
    without = tuple(sorted(cut["id"] for cut in all_cuts if cut["id"] not in entry_of_id))
    write_manifest(Path(out), feature_format, shards, len(without))
    return FeatureImportSummary(
        len(cut_of_id), sum(s["frames"] for s in shards), without, rounding.largest
    )


def _matrix(entry: Entry, dimension: int | None = None, bar: Bar | None = None) -> np.ndarray:
    """Read a matrix, and check that it has frames and the given dimension, if any."""
    matrix = read_matrix(entry)
    if not len(matrix) or (dimension is not None and matrix.shape[1] != dimension):
        shape = " x ".join(map(str, matrix.shape))
        expectation = f", but the first utterance has {dimension} columns" if dimension else ""
        raise KaldiFeaturesError(
            f"{entry.key} has {shape} values{expectation}: remove this entry from the table"
        )
    if bar is not None:
        bar.update()
    return matrix


class _Rounding:
    """Converts matrices to tensors, and records the largest error of rounding to 16 bits."""

    def __init__(self) -> None:
        self.largest = 0.0

    def __call__(self, id: str, matrix: np.ndarray) -> torch.Tensor:
        if not np.isfinite(matrix).all() or np.abs(matrix).max() > HALF_MAX:
            raise KaldiFeaturesError(
                f"{id} has values that are not finite or larger than {HALF_MAX:g}. They cannot be "
                "stored: remove this entry from the table"
            )
        # Stores hold float16.
        change = np.abs(matrix - matrix.astype(np.float16).astype(np.float32)).max()
        self.largest = max(self.largest, float(change))
        return torch.from_numpy(matrix)


def cuts_without_audio(
    num_frames: Mapping[str, int],
    speakers: Mapping[str, str],
    texts: Mapping[str, str],
    frame_shift_ms: float = 10.0,
) -> list[dict[str, Any]]:
    """Make cuts for utterances that have features and no audio.

    Args:
      num_frames: number of frames by utterance.
      speakers: speaker by utterance. An utterance without one is its own speaker, as usual in
        Kaldi.
      texts: transcript by utterance; "" for utterances that it lacks.
      frame_shift_ms: step in milliseconds.
    """
    cuts = []
    for id in sorted(num_frames):
        length = {"start": 0.0, "duration": round(num_frames[id] * frame_shift_ms / 1000, 8)}
        words = {"text": texts.get(id, ""), "speaker": speakers.get(id) or id}
        supervision = {"id": id, "recording_id": id, **length, "channel": 0, **words}
        cuts.append(
            {"id": id, **length, "channel": 0, "supervisions": [supervision], "type": "MonoCut"}
        )
    return cuts


def count_frames(table: Path, allow_pipes: bool = False, path_map: PathMap = ()) -> dict[str, int]:
    """Count the frames of every utterance in a table, from headers alone where possible."""
    matrices = entries(table, allow_pipes, path_map)
    return {key: read_shape(entry)[0] for key, entry in matrices.items()}
