"""What belongs to a model that is exported: a bundle, or a model in its run directory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.models.priors import PRIORS
from toolkit.models.store import CONFIG, ModelError
from toolkit.storage.reading import read_json, reading

ADVICE = "run the stage again that makes it"


@dataclass(frozen=True)
class Parts:
    """A model and what belongs to it, as far as it was found."""

    model: Path
    """The model's folder."""
    normaliser: Path | None = None
    """The file of its features' normaliser."""
    frontend: dict[str, Any] | None = None
    """The settings of its front end."""
    units: list[str] | None = None
    """What a CTC model's outputs stand for."""

    @property
    def has_priors(self) -> bool:
        """Whether posteriors can be turned into likelihoods."""
        return (self.model / PRIORS).is_file()


def find_parts(path: Path) -> Parts:
    """Find a model and what belongs to it.

    Args:
      path: a bundle (final/), or the folder of a model in its run directory.

    Raises:
      ModelError: neither, or a file is damaged.
    """
    settings = path / "recogniser.json"
    if settings.is_file():
        with reading(settings, ModelError, ADVICE):
            frontend = read_json(settings, {"frontend": {str: Any}})["frontend"]
        return Parts(path / "model", path / "normaliser.json", frontend)
    if not (path / CONFIG).is_file():
        raise ModelError(
            f"{path} is neither a bundle (a run's final/) nor a model's folder: it has no"
            f" recogniser.json and no {CONFIG}"
        )
    run = path.absolute().parent
    for name in ("fbank", "features"):
        normaliser = run / name / "normaliser.json"
        if normaliser.is_file():
            return Parts(path, normaliser, _frontend(run / name), _units(run))
    return Parts(path)


def _frontend(features: Path) -> dict[str, Any] | None:
    for manifest in sorted(features.glob("*/features.json")):
        with reading(manifest, ModelError, ADVICE):
            return read_json(manifest, {"frontend": {str: Any}})["frontend"]
    return None


def _units(run: Path) -> list[str] | None:
    path = run / "units" / "units.json"
    if not path.is_file():
        return None
    with reading(path, ModelError, ADVICE):
        return read_json(path, {"symbols": [str]})["symbols"]
