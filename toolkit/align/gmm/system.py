"""A GMM acoustic model in use: features, senones and mixtures together."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from toolkit.features.cepstra import GmmFeatures, GmmFrontend
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.senones import Senones


@dataclass(frozen=True)
class GmmSystem:
    """All that scores utterances; picklable."""

    features: GmmFeatures
    """What it sees."""
    senones: Senones
    """Its pdfs."""
    gmm: Gmm
    """Their densities."""

    @classmethod
    def load(cls, folder: Path, cepstra: Path) -> "GmmSystem":
        """Read a system that `save` wrote, over a store of cepstra."""
        features = GmmFeatures(cepstra, GmmFrontend.load(folder))
        return cls(features, Senones.load(folder), Gmm.load(folder / "gmm.safetensors"))

    def save(self, folder: Path) -> None:
        """Write `gmm.safetensors`, `topology.json`, `tree.json` and the front end's files."""
        self.features.frontend.save(folder)
        self.senones.save(folder)
        self.gmm.save(folder / "gmm.safetensors")

    def with_gmm(self, gmm: Gmm) -> "GmmSystem":
        """The same with other densities."""
        return replace(self, gmm=gmm)

    def adapted(self, transforms: dict[str, Tensor]) -> "GmmSystem":
        """The same on features transformed by speaker."""
        return replace(self, features=self.features.adapted(transforms))
