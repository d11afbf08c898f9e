"""Sources of an export: a bundle, or a model in its run directory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.models.priors import PRIORS
from toolkit.models.store import CONFIG, ModelError
from toolkit.storage.reading import read_json, reading

ADVICE = "run the stage again that makes it"


@dataclass(frozen=True)
class ExportSource:
    """A model with the files and settings that belong to it, as far as they were found."""

    model: Path
    """The model's folder."""
    normaliser: Path | None = None
    """The file of its features' normaliser."""
    frontend: dict[str, Any] | None = None
    """The settings of its front end."""
    units: list[str] | None = None
    """The symbols of a CTC model's outputs."""

    @property
    def has_priors(self) -> bool:
        """Whether posteriors can be turned into likelihoods."""
        return (self.model / PRIORS).is_file()


def find_export_source(path: Path) -> ExportSource:
    """Find a model with the files and settings that belong to it.

    Args:
      path: a bundle (final/), or the folder of a model in its run directory.

    Raises:
      ModelError: the path is neither, or a file is damaged.
    """
    settings = path / "recogniser.json"
    if settings.is_file():
        with reading(settings, ModelError, ADVICE):
            content = read_json(settings, {"frontend": {str: Any}})
        if content.get("by_speaker"):
            raise ModelError(
                f"{path} is no network on the features of its front end alone: export the network's"
                " folder in the run directory"
            )
        frontend = content["frontend"]
        return ExportSource(path / "model", path / "normaliser.json", frontend)
    if (path / "ctc.json").is_file():
        with reading(path / "ctc.json", ModelError, ADVICE):
            frontend = read_json(path / "ctc.json", {"frontend": {str: Any}})["frontend"]
        return ExportSource(path / "model", path / "normaliser.json", frontend, _units(path))
    if not (path / CONFIG).is_file():
        raise ModelError(
            f"{path} is neither a bundle (a run's final/) nor a model's folder: it has no"
            f" recogniser.json, ctc.json or {CONFIG}"
        )
    run = path.absolute().parent
    for name in ("fbank", "features"):
        normaliser = run / name / "normaliser.json"
        if normaliser.is_file():
            return ExportSource(path, normaliser, _frontend(run / name), _units(run))
    return ExportSource(path)


def _frontend(features: Path) -> dict[str, Any] | None:
    for manifest in sorted(features.glob("*/features.json")):
        with reading(manifest, ModelError, ADVICE):
            return read_json(manifest, {"frontend": {str: Any}})["frontend"]
    return None


def _units(folder: Path) -> list[str] | None:
    path = folder / "units" / "units.json"
    if not path.is_file():
        return None
    with reading(path, ModelError, ADVICE):
        return read_json(path, {"symbols": [str]})["symbols"]
