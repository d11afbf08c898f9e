"""Sources of an export: a bundle, or a model in its run directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.features.frontend import DEFAULT_MEL_BINS
from toolkit.features.normalise import Normaliser
from toolkit.models.export.modules import wrap_for_export
from toolkit.models.priors import PRIORS
from toolkit.models.store import CONFIG, ModelError, load_model
from toolkit.storage.reading import read_json, reading

ADVICE = "run the stage again that makes it"
_NORMALISER = "normaliser.json"


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
    note: str = ""
    """What is missing, and why."""

    @property
    def has_priors(self) -> bool:
        """Whether posteriors can be turned into likelihoods."""
        return (self.model / PRIORS).is_file()


def find_export_source(path: Path) -> ExportSource:
    """Find a model with the files and settings that belong to it.

    Which features a model of a run directory was trained on its stage's marker says; without one
    they are the only ones there whose dimension, stacked, is that of the model's input. Features
    that a GMM system makes have no front end that could be named.

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
        return ExportSource(path / "model", path / _NORMALISER, frontend)
    if (path / "ctc.json").is_file():
        with reading(path / "ctc.json", ModelError, ADVICE):
            frontend = read_json(path / "ctc.json", {"frontend": {str: Any}})["frontend"]
        return ExportSource(path / "model", path / _NORMALISER, frontend, _units(path))
    if not (path / CONFIG).is_file():
        raise ModelError(
            f"{path} is neither a bundle (a run's final/) nor a model's folder: it has no"
            f" recogniser.json, ctc.json or {CONFIG}"
        )
    run, model = path.absolute().parent, wrap_for_export(load_model(path))[1]
    stages = _stages_that_make(run, path.absolute().name)
    folders = _features_of(run, stages) if stages else _with_features(run)
    fitting = [each for each in folders if model.stacked * _dimension(each) == model.input_dim]
    if len(fitting) != 1:
        which = "several folders of features could be" if fitting else "no folder of features is"
        note = f"{which} those of {path.name} in {run}: neither a normaliser nor a front end"
        return ExportSource(path, None, None, _units(run), note)
    frontend, note = _frontend(fitting[0]), ""
    if frontend is not None and frontend.get("kind") not in DEFAULT_MEL_BINS:
        note = f"the features in {fitting[0]} ({frontend.get('kind')}) have no front end"
        frontend = None
    return ExportSource(path, fitting[0] / _NORMALISER, frontend, _units(run), note)


def _stages_that_make(run: Path, model: str) -> list[set[str]]:
    """The names of the inputs and outputs of each finished stage that has made a model."""
    stages = []
    for marker in sorted(run.glob("stages/[0-9]*.json")):
        if not marker.stem.isdecimal():  # 17.publishing.json of a killed stage, somebody's copies
            continue
        with reading(marker, ModelError, ADVICE):
            plain = read_json(marker, {"inputs": {str: Any}, "outputs": {str: Any}})
        if model in plain["outputs"]:
            stages.append({*plain["inputs"], *plain["outputs"]})
    return stages


def _features_of(run: Path, stages: Sequence[set[str]]) -> list[Path]:
    """The folders of features that stages name; where they name normalisers, the folders of these.

    A student is trained on labelled features too, with the normaliser of the unlabelled ones.
    """
    names = {PurePosixPath(name) for stage in stages for name in stage}
    own = {name.parts[0] for name in names if name.name == _NORMALISER}
    named = own or {name.parts[0] for name in names}
    return [run / name for name in sorted(named) if (run / name / _NORMALISER).is_file()]


def _with_features(run: Path) -> list[Path]:
    found = [normaliser.parent for normaliser in sorted(run.glob(f"*/{_NORMALISER}"))]
    return [folder for folder in found if _frontend(folder) is not None]


def _dimension(features: Path) -> int:
    return len(Normaliser.load(features / _NORMALISER).prior_mean)


def _frontend(features: Path) -> dict[str, Any] | None:
    for pattern in ("features.json", "*/features.json"):
        for manifest in sorted(features.glob(pattern)):
            with reading(manifest, ModelError, ADVICE):
                return read_json(manifest, {"frontend": {str: Any}})["frontend"]
    return None


def _units(folder: Path) -> list[str] | None:
    path = folder / "units" / "units.json"
    if not path.is_file():
        return None
    with reading(path, ModelError, ADVICE):
        return read_json(path, {"symbols": [str]})["symbols"]
