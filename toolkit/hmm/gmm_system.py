"""GMM acoustic models (features, senones and mixtures), and their features as a store."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from toolkit.corpus.manifest import write_cuts
from toolkit.features.gmm_features import GmmFeatures, GmmFrontend
from toolkit.features.shards import FAILED_CUTS, SHARDS, map_shards, write_manifest, write_shard
from toolkit.hmm.gmm import Gmm, GmmError
from toolkit.hmm.senones import Senones


@dataclass(frozen=True)
class GmmSystem:
    """A GMM acoustic model with its features and senones; picklable."""

    features: GmmFeatures
    """The features that it scores."""
    senones: Senones
    """Its tied states."""
    gmm: Gmm
    """The mixtures of its pdfs."""

    @classmethod
    def load(cls, folder: Path, cepstra: Path) -> "GmmSystem":
        """Read a system that `save` wrote, and attach a store of cepstra.

        Raises:
          GmmError: projection, tree and mixtures have different sizes.
          ToolkitError: a file cannot be read.
        """
        features = GmmFeatures(cepstra, GmmFrontend.load(folder))
        system = cls(features, Senones.load(folder), Gmm.load(folder / "gmm.safetensors"))
        system._check_sizes(folder)
        return system

    def _check_sizes(self, folder: Path) -> None:
        """Check that mixtures, senones and features have matching sizes."""
        dimension, num_pdfs = self.gmm.means.shape[1], self.gmm.num_pdfs
        projection, disagreeing = self.features.frontend.projection, ""
        if projection is not None and len(projection) != dimension:
            disagreeing = f"projection.safetensors has {len(projection)} rows"
        elif self.cepstra % 1:
            disagreeing = f"features.json splices {self.features.frontend.splice} frames"
        elif self.senones.num_pdfs != num_pdfs:
            disagreeing = f"tree.json has {self.senones.num_pdfs} pdfs"
        if disagreeing:
            raise GmmError(
                f"{folder}: {disagreeing}, but gmm.safetensors has {num_pdfs} pdfs of {dimension} "
                "dimensions: the files are from different systems. Restore the files or train the "
                "system again"
            )

    @property
    def cepstra(self) -> float:
        """Number of cepstra per frame in training; a fraction means damaged files."""
        frontend = self.features.frontend
        projection = frontend.projection
        inputs = self.gmm.means.shape[1] if projection is None else projection.shape[1]
        return inputs / (3 * (2 * frontend.splice + 1))  # deltas of two orders beside each

    def save(self, folder: Path) -> None:
        """Write `gmm.safetensors`, `topology.json`, `tree.json` and the front end's files."""
        self.features.frontend.save(folder)
        self.senones.save(folder)
        self.gmm.save(folder / "gmm.safetensors")

    def on(self, cepstra: Path) -> "GmmSystem":
        """Return the same system for another store of cepstra, without transforms."""
        return replace(self, features=GmmFeatures(cepstra, self.features.frontend))

    def with_gmm(self, gmm: Gmm) -> "GmmSystem":
        """Return the same system with other mixtures."""
        return replace(self, gmm=gmm)

    def adapted(self, transforms: dict[str, Tensor]) -> "GmmSystem":
        """Return the same system with fMLLR transforms by speaker."""
        return replace(self, features=self.features.adapted(transforms))


@dataclass(frozen=True)
class GmmFormat:
    """Description of GMM features in the store's manifest."""

    kind: str
    """Type of features: lda_mllt or fmllr."""
    dimension: int
    """Values per frame, 40 after LDA + MLLT (C4)."""
    frame_shift_ms: float = 10.0
    """Frame shift in milliseconds."""
    sampling_rate: int = 16000
    """Sampling rate of the audio, in Hz."""


def write_gmm_features(system: GmmSystem, out: Path, jobs: int = 1) -> None:
    """Write LDA + MLLT features, with fMLLR if there are transforms (Kaldi's make_fmllr_feats.sh).

    Args:
      system: a GMM system on LDA + MLLT features, over a store of cepstra. The features of a
        speaker without a transform stay as LDA + MLLT gives them.
      out: the feature store to write; it has the shards and the failed cuts of the cepstra's store.
      jobs: worker processes.
    """
    features = system.features
    kind = "fmllr" if features.transforms else "lda_mllt"
    audio = features.store.manifest["frontend"]
    audio_format = {key: audio[key] for key in ("frame_shift_ms", "sampling_rate") if key in audio}
    form = GmmFormat(kind, features.dimension, **audio_format)
    write = partial(_write_shard, features, form, out)
    written = list(map_shards(write, features.store, jobs, kind))
    failed = write_cuts(features.store.failed_cuts, out / FAILED_CUTS)
    write_manifest(out, form, written, failed)


def _write_shard(
    features: GmmFeatures, form: GmmFormat, out: Path, shard: tuple[int, Sequence[str]]
) -> dict[str, int]:
    """Write the GMM features of one shard."""
    number, ids = shard
    utterances = ((features.store.cut(u), features.speaker(u), features.load(u)) for u in ids)
    num_utterances, frames = write_shard(out / SHARDS, number, utterances, form)
    return {"utterances": num_utterances, "frames": frames}
