"""The headline numbers of a finished training, stored so that it is not repeated."""

import json
import os
from pathlib import Path
from typing import Any

from toolkit.config.settings import result_parameters
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading
from toolkit.train.config import TrainerConfig
from toolkit.train.errors import TrainingError

HEADLINE = "headline.json"


def settings_of(config: TrainerConfig, **more: Any) -> dict[str, Any]:
    """Return what a training depends on, its settings and `more`, after a JSON round trip."""
    return json.loads(json.dumps({**result_parameters(config), **more}))


def finished(out: Path, settings: dict[str, Any]) -> dict[str, float] | None:
    """Return the headline of a training that finished in `out` with these settings, else None.

    Removes checkpoints that are left if it was killed while removing them.
    """
    path = out / HEADLINE
    if not os.path.lexists(path):
        return None
    with reading(path, TrainingError, "remove it to go on"):
        stored = read_json(path, {"settings": {str: Any}, "headline": {str: Any}})
    if stored["settings"] != settings:
        return None
    for path in out.rglob("checkpoints/*.safetensors"):
        path.unlink(missing_ok=True)
    return stored["headline"]


def write_headline(out: Path, settings: dict[str, Any], headline: dict[str, float]) -> None:
    """Mark a training as finished: after its results are stored, before checkpoints are removed."""
    stored = {"settings": settings, "headline": headline}
    write_atomically(out / HEADLINE, json.dumps(stored, indent=1) + "\n")
