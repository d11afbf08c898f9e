"""Numbers of a training for MLflow or Weights & Biases, where one is installed and asked for.

The environment variable `TOOLKIT_TRACKER` asks for it; where runs go, and under which account, the
tracker's own variables say (`MLFLOW_TRACKING_URI`, `WANDB_MODE`, ...). It is no setting of recipes,
since results do not depend on it.
"""

import logging
import os
from collections.abc import Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from toolkit.train.errors import TrainingError

VARIABLE = "TOOLKIT_TRACKER"
PROJECT = "asr-recipe-toolkit"
"""MLflow's experiment and W&B's project, unless their own variables name another."""

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """What takes the numbers of one training."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers by name, after so many steps."""

    def close(self) -> None:
        """Take nothing more."""


def open_tracker(out: Path) -> Tracker | None:
    """Return the tracker that the environment asks for, None without.

    Args:
      out: the folder of the training, which names the run.

    Raises:
      TrainingError: an unknown tracker, or one that is not installed or cannot begin a run.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    if name not in _TRACKERS:
        raise TrainingError(f"{VARIABLE}={name}: known are {' and '.join(_TRACKERS)}")
    try:
        library = import_module(name)
    except ImportError as error:
        raise TrainingError(
            f"{VARIABLE}={name}, which cannot be imported ({error}): pip install {name}, or unset "
            "the variable"
        ) from error
    try:
        return _Forgiving(name, _TRACKERS[name](library, run_name(out)))
    except Exception as error:
        raise TrainingError(
            f"{name} cannot begin a run ({error}); see its own settings, or unset {VARIABLE}"
        ) from error


def run_name(out: Path) -> str:
    """Return the name of a training's run: run directory and network, as `demo/lstm_ce`."""
    parts = out.absolute().parts
    kept = [part for before, part in pairwise(parts) if ".partial" not in (before, part)]
    return "/".join(kept[-2:])


class _Mlflow:
    """A run of MLflow, by its client: the state of the module is left alone."""

    def __init__(self, library: Any, run: str) -> None:
        self._client = library.MlflowClient()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(experiment)
        own = known.experiment_id if known else self._client.create_experiment(experiment)
        self._run = self._client.create_run(own, run_name=run).info.run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, float(value), step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class _Wandb:
    """A run of Weights & Biases."""

    def __init__(self, library: Any, run: str) -> None:
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = library.init(project=project, name=run, reinit="create_new")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({name: float(value) for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


_TRACKERS = {"mlflow": _Mlflow, "wandb": _Wandb}


class _Forgiving:
    """A tracker whose faults, such as a server that is gone, do not end the training."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker
        self._lost = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if not self._lost:
            try:
                self._tracker.log(step, values)
            except Exception as error:
                self._lose(error)

    def close(self) -> None:
        try:
            self._tracker.close()
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        self._lost = True
        logger.warning("%s takes no more numbers of this training: %s", self._name, error)
