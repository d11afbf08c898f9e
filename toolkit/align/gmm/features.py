"""Export of a GMM system's features (LDA + MLLT, fMLLR) as a feature store for networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from toolkit.align.gmm.system import GmmSystem
from toolkit.corpus.manifest import write_cuts
from toolkit.features.gmm_features import GmmFeatures
from toolkit.features.shards import FAILED_CUTS, SHARDS, write_manifest, write_shard
from toolkit.features.store import map_shards


@dataclass(frozen=True)
class GmmFormat:
    """The description of the features in the store's manifest."""

    kind: str
    """Type of features: lda_mllt or fmllr."""
    dimension: int
    """Values per frame, 40 after LDA + MLLT (C4)."""
    frame_shift_ms: float = 10.0
    """Step in milliseconds."""
    sampling_rate: int = 16000
    """Of the audio, in Hz."""


def write_gmm_features(system: GmmSystem, out: Path, jobs: int = 1) -> None:
    """Write LDA + MLLT features; with transforms as Kaldi's make_fmllr_feats.sh writes them.

    Args:
      system: a GMM system on LDA + MLLT features, over a store of cepstra. The features of a
        speaker without a transform stay as LDA + MLLT gives them.
      out: the feature store to write, with the shards of the cepstra and the cuts without them.
      jobs: worker processes.
    """
    features = system.features
    kind = "fmllr" if features.transforms else "lda_mllt"
    audio = features.store.manifest["frontend"]
    known = {key: audio[key] for key in ("frame_shift_ms", "sampling_rate") if key in audio}
    form = GmmFormat(kind, features.dimension, **known)
    work = partial(_write_shard, features, form, out)
    written = list(map_shards(work, features.store, jobs, kind))
    failed = write_cuts(features.store.failed_cuts, out / FAILED_CUTS)
    write_manifest(out, form, written, failed)


def _write_shard(
    features: GmmFeatures, form: GmmFormat, out: Path, shard: tuple[int, Sequence[str]]
) -> dict[str, int]:
    number, ids = shard
    found = ((features.store.cut(u), features.speaker(u), features.load(u)) for u in ids)
    utterances, frames = write_shard(out / SHARDS, number, found, form)
    return {"utterances": utterances, "frames": frames}
