"""Features of a speaker-adapted GMM system as a store of their own, for networks to train on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from toolkit.align.system import GmmSystem
from toolkit.features.cepstra import GmmFeatures, load_transforms
from toolkit.features.shards import SHARDS, write_manifest, write_shard
from toolkit.features.store import map_shards


@dataclass(frozen=True)
class AdaptedFormat:
    """What the store says of its features."""

    dimension: int
    """Values per frame, 40 after LDA + MLLT (C4)."""
    kind: str = "fmllr"
    """Type of features."""
    frame_shift_ms: float = 10.0
    """Step in milliseconds."""
    sampling_rate: int = 16000
    """Of the audio, in Hz."""


def write_adapted_features(
    system: Path, cepstra: Path, transforms: Path, out: Path, jobs: int = 1
) -> None:
    """Write LDA + MLLT features moved by each speaker's fMLLR, as Kaldi's make_fmllr_feats.sh.

    Args:
      system: the folder of a GMM system trained with fMLLR.
      cepstra: a feature store of raw cepstra.
      transforms: the file of its speakers' transforms; those of a speaker without one stay as
        LDA + MLLT gives them.
      out: the feature store to write, with the shards of `cepstra`.
      jobs: worker processes.
    """
    features = GmmSystem.load(system, cepstra).adapted(load_transforms(transforms)).features
    form = AdaptedFormat(features.dimension)
    work = partial(_write_shard, features, form, out)
    written = list(map_shards(work, features.store, jobs, "adapt"))
    write_manifest(out, form, written)


def _write_shard(
    features: GmmFeatures, form: AdaptedFormat, out: Path, shard: tuple[int, Sequence[str]]
) -> dict[str, int]:
    number, ids = shard
    found = ((features.store.cut(u), features.speaker(u), features.load(u)) for u in ids)
    utterances, frames = write_shard(out / SHARDS, number, found, form)
    return {"utterances": utterances, "frames": frames}
