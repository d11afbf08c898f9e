"""Store networks: weights as safetensors, settings as JSON; make 8-bit copies (A20)."""

import copy
import io
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from toolkit.config.fields import from_plain
from toolkit.errors import ToolkitError
from toolkit.models.config import BlstmConfig, CtcConfig, LstmConfig, TdnnfConfig, WordLstmConfig
from toolkit.models.ctc import CtcModel
from toolkit.models.lstm import BlstmModel, LstmModel, WordLstm
from toolkit.models.tdnnf import TdnnfModel
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import quoted, read_json, read_tensors, reading

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
KINDS: dict[str, tuple[type, type[nn.Module]]] = {
    "lstm": (LstmConfig, LstmModel),
    "blstm": (BlstmConfig, BlstmModel),
    "ctc": (CtcConfig, CtcModel),
    "tdnnf": (TdnnfConfig, TdnnfModel),
    "word_lstm": (WordLstmConfig, WordLstm),
}
"""Name in config.json -> class of the configuration, class of the model built from it."""
_MAKERS = (torch.empty, torch.zeros, torch.ones, torch.tensor)
LAYERS = {nn.LSTM, nn.Linear}
"""Kinds of layers whose weights become integers; others, such as convolutions, stay float32."""


class ModelError(ToolkitError):
    """Raised for a folder without a model, or with weights that do not fit the configuration."""


def make_model(config: LstmConfig | BlstmConfig | CtcConfig | TdnnfConfig) -> nn.Module:
    """Make a new model from its configuration, whose class determines the model's.

    Raises:
      ModelError: `KINDS` lacks the configuration's class.
    """
    for configured, built in KINDS.values():
        if type(config) is configured:
            return built(config)
    raise _unknown_class(config)


def save_model(folder: Path, model: nn.Module) -> None:
    """Write `config.json` and `model.safetensors` into `folder`, each atomically.

    Raises:
      ModelError: `KINDS` lacks the model's class.
    """
    kind = next((name for name, (_, built) in KINDS.items() if type(model) is built), None)
    if kind is None:
        raise _unknown_class(model)
    write_atomically(Path(folder) / WEIGHTS, save(storable(model.state_dict())))
    described = {"kind": kind, "config": asdict(model.config)}
    write_atomically(Path(folder) / CONFIG, json.dumps(described, indent=2) + "\n")


def storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Prepare tensors for safetensors: on the CPU, contiguous, not sharing memory.

    Layers may share weights; these are then stored under each of their names.
    """
    addresses: set[int] = set()
    stored = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        stored[name] = value.clone() if value.data_ptr() in addresses else value
        addresses.add(value.data_ptr())
    return stored


def _unknown_class(model: object) -> ModelError:
    """Make the error for a model class that cannot be stored."""
    name = type(model).__name__
    return ModelError(f"the class {name} is not in KINDS of toolkit/models/store.py: add it there")


def load_model(folder: Path) -> nn.Module:
    """Read a model that `save_model` wrote, on the CPU and in evaluation mode.

    Raises:
      ModelError: a file is missing or broken, the kind is unknown, or configuration and weights
        do not fit; the message names the folder and what differs.
    """
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not os.path.lexists(folder / name):
            raise ModelError(f"{folder} contains no model: there is no {folder / name}")
    with reading(folder / CONFIG, ModelError, "train the model again", "damaged"):
        described = read_json(folder / CONFIG, {"kind": str})
    with reading(folder / WEIGHTS, ModelError, "train the model again", "damaged"):
        weights, _ = read_tensors(folder / WEIGHTS, {})
    kind = described["kind"]
    if kind not in KINDS:
        kinds = ", ".join(KINDS)
        raise ModelError(
            f"{folder / CONFIG} has the unknown kind {quoted(kind)}; known kinds are {kinds}"
        )
    configured, built = KINDS[kind]
    with reading(folder / CONFIG, ModelError, "train the model again", f"no {kind} configuration"):
        config = from_plain(configured, described["config"])
        differences = _differences(_shapes(built, config, len(weights)), weights)
    if differences:
        raise ModelError(
            f"{folder / WEIGHTS} does not match {CONFIG} in the same folder: "
            f"{'; '.join(differences)}. The two files come from different models; train again or "
            "restore one of them"
        )
    model = built(config)
    model.load_state_dict(weights)
    return model.eval()


class _ShapesAlone(TorchFunctionMode):
    """Makes tensors with shapes but no memory, like `torch.device("meta")` in torch 2."""

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        on_meta = {"device": "meta"} if function in _MAKERS else {}
        return function(*args, **{**(kwargs or {}), **on_meta})


def _shapes(built: type[nn.Module], config: Any, tensors: int) -> dict[str, Tensor]:
    """Return the tensors that a model must have by name, without allocating memory."""
    # A damaged configuration of a million layers would take minutes to build.
    if max(getattr(config, name, 0) for name in ("layers", "lstm_layers")) > tensors:
        raise ValueError(f"it has more layers than there are tensors of weights ({tensors})")
    with _ShapesAlone():
        return built(config).state_dict()


def _differences(expected: dict[str, Tensor], weights: dict[str, Tensor]) -> list[str]:
    """List up to five tensors that are missing, unexpected or of a different shape."""
    listed = [f"{name} is missing" for name in expected if name not in weights]
    listed += [f"{name} is not part of the model" for name in weights if name not in expected]
    listed += [
        f"{name} is {list(weights[name].shape)} instead of {list(value.shape)}"
        for name, value in expected.items()
        if name in weights and weights[name].shape != value.shape
    ]
    return listed[:5] + ([f"and {len(listed) - 5} more"] if len(listed) > 5 else [])


def quantize_int8(model: nn.Module) -> nn.Module:
    """Return a copy of a network with LSTMs and linear layers quantised to 8 bits.

    Weights are rounded once, with one scale per matrix. Inputs are rounded at every call, with one
    scale for all frames of the call, so the outputs of a stream differ from those of the whole
    utterance. The copy cannot be trained and computes on the CPU.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's deprecation warnings
        quantise = torch.ao.quantization.quantize_dynamic
        return quantise(copy.deepcopy(model).cpu().eval(), LAYERS, torch.qint8)


def serialized_bytes(model: nn.Module) -> int:
    """Return the number of bytes that torch writes for a network's weights."""
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(model.state_dict(), out)
    return out.tell()
