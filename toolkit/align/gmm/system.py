"""A GMM acoustic model: features, senones and mixtures together."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from toolkit.features.gmm_features import GmmFeatures, GmmFrontend
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.senones import Senones


@dataclass(frozen=True)
class GmmSystem:
    """Everything that scoring utterances needs; picklable."""

    features: GmmFeatures
    """The features that it scores."""
    senones: Senones
    """Its tied states."""
    gmm: Gmm
    """The mixtures of its pdfs."""

    @classmethod
    def load(cls, folder: Path, cepstra: Path) -> "GmmSystem":
        """Read a system that `save` wrote, over a store of cepstra."""
        features = GmmFeatures(cepstra, GmmFrontend.load(folder))
        return cls(features, Senones.load(folder), Gmm.load(folder / "gmm.safetensors"))

    @property
    def cepstra(self) -> float:
        """Values of a frame of the cepstra that it was trained on; no whole number is damage."""
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
        """The same system over another store of cepstra, without transforms."""
        return replace(self, features=GmmFeatures(cepstra, self.features.frontend))

    def with_gmm(self, gmm: Gmm) -> "GmmSystem":
        """The same system with other mixtures."""
        return replace(self, gmm=gmm)

    def adapted(self, transforms: dict[str, Tensor]) -> "GmmSystem":
        """The same system on features transformed by speaker."""
        return replace(self, features=self.features.adapted(transforms))
