"""Acoustic models on disk: weights as safetensors, everything else as JSON."""

import json
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from toolkit.errors import ToolkitError
from toolkit.models.blstm import BlstmConfig, BlstmModel
from toolkit.models.ctc import CtcConfig, CtcModel
from toolkit.models.lstm import LstmConfig, LstmModel
from toolkit.stages.files import write_atomically

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
KINDS: dict[str, tuple[type, type[nn.Module]]] = {
    "lstm": (LstmConfig, LstmModel),
    "blstm": (BlstmConfig, BlstmModel),
    "ctc": (CtcConfig, CtcModel),
}
"""Name in config.json -> class of the configuration, class of the model built from it."""


class ModelError(ToolkitError):
    """A folder that holds no model, or one whose weights and configuration disagree."""


def make_model(config: LstmConfig | BlstmConfig | CtcConfig) -> nn.Module:
    """Make a new model of the kind that the configuration is of."""
    return next(built for configured, built in KINDS.values() if type(config) is configured)(config)


def save_model(folder: Path, model: nn.Module) -> None:
    """Write `config.json` and `model.safetensors` into `folder`, each atomically."""
    kind = next(name for name, (_, built) in KINDS.items() if type(model) is built)
    weights = {
        name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()
    }
    write_atomically(Path(folder) / WEIGHTS, save(weights))
    described = {"kind": kind, "config": asdict(model.config)}
    write_atomically(Path(folder) / CONFIG, json.dumps(described, indent=2) + "\n")


def load_model(folder: Path) -> nn.Module:
    """Read the model that `save_model` wrote, on the CPU and in evaluation mode.

    Raises:
      ModelError: a file is missing or broken, the kind is unknown, or configuration and weights
        do not fit; the message names the folder and what differs.
    """
    folder = Path(folder)
    try:
        described = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        weights = load((folder / WEIGHTS).read_bytes())
    except FileNotFoundError as error:
        raise ModelError(f"{folder} holds no model: there is no {error.filename}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise ModelError(f"the model in {folder} is damaged ({error}); train it again") from error
    kind = described.get("kind") if isinstance(described, dict) else None
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise ModelError(f"{folder / CONFIG} is of kind {kind!r}; known kinds: {known}")
    configured, built = KINDS[kind]
    try:
        model = built(configured(**described["config"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG} is no {kind} configuration: {error}") from error
    differences = _differences(model.state_dict(), weights)
    if differences:
        raise ModelError(
            f"{folder / WEIGHTS} does not fit {CONFIG} beside it: {'; '.join(differences)}. "
            "The two files come from different models; train again or restore one of them"
        )
    model.load_state_dict(weights)
    return model.eval()


def _differences(expected: dict[str, Tensor], found: dict[str, Tensor]) -> list[str]:
    """Say what is missing, too much or of another shape, at most five of them."""
    listed = [f"{name} is missing" for name in expected if name not in found]
    listed += [f"{name} is not part of the model" for name in found if name not in expected]
    listed += [
        f"{name} is {list(found[name].shape)} instead of {list(value.shape)}"
        for name, value in expected.items()
        if name in found and found[name].shape != value.shape
    ]
    return listed[:5] + ([f"and {len(listed) - 5} more"] if len(listed) > 5 else [])
