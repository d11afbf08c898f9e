"""Export of acoustic models to TorchScript and ONNX, compared with the original.

torch 2.15 still has `torch.jit.trace` and ONNX's exporter by tracing (`dynamo=False`), and warns of
both: they are deprecated. Their successor, `torch.export`, is missing in torch 1.13.1.
"""

import inspect
import json
import math
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.errors import ToolkitError
from toolkit.models.ctc import CtcModel
from toolkit.models.export.modules import Interface, wrap_for_export
from toolkit.models.export.source import ExportSource
from toolkit.models.lstm import LstmModel
from toolkit.models.priors import load_log_priors
from toolkit.models.store import load_model
from toolkit.storage.files import write_atomically

FILES = {"torchscript": "model.pt", "onnx": "model.onnx"}
"""File name of each format."""
OPSET = 14
TOLERANCE = 1e-4
"""Largest difference of log-posteriors that is tolerated."""
LENGTHS = ((1, 47), (2, 30), (3, 12))
"""Rows and output frames of the inputs that are compared."""

Run = Callable[[Sequence[Tensor]], list[Tensor]]
"""Inputs of an exported model in order -> its outputs."""


class ExportError(ToolkitError):
    """A model that cannot be exported, or whose export computes something else."""


@dataclass(frozen=True)
class ExportCheck:
    """The comparison of an exported model with the original."""

    against: str
    """The runtime that ran it, with its version; empty when it was not run."""
    largest_difference: float | None
    """Over all log-posteriors; None when it was not run."""


def export_model(source: ExportSource, form: str, out: Path) -> ExportCheck:
    """Write a model, `metadata.json` and, if there is one, `normaliser.json` into a folder.

    An earlier export there is replaced once the new model has passed the comparison.

    Args:
      source: the model and its files and settings.
      form: `torchscript` or `onnx`.
      out: the folder.

    Raises:
      ExportError: a package is missing, the exported model does not give the same as ours, or the
        folder is that of the model or its normaliser.
    """
    _refuse_own_folder(source, out)
    model = load_model(source.model)
    module, interface = wrap_for_export(model)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".export", dir=out) as folder:
        path = Path(folder, FILES[form])
        write = _write_onnx if form == "onnx" else _write_torchscript
        write(module, interface, path)
        found = _load_onnx(path) if form == "onnx" else _load_torchscript(path)
        checked = ExportCheck("", None)
        if found is not None:
            run, against = found
            checked = ExportCheck(against, compare(model, run, interface))
            if not checked.largest_difference <= TOLERANCE:
                raise ExportError(
                    "the exported model's log-posteriors differ by"
                    f" {checked.largest_difference:.2g} from the original's (run by {against});"
                    " nothing was written"
                )
        if (out / "metadata.json").exists():  # of an earlier export; until this one is whole
            (out / "metadata.json").unlink()
            (out / "normaliser.json").unlink(missing_ok=True)
        path.replace(out / path.name)
    if source.normaliser is not None:
        shutil.copyfile(source.normaliser, out / "normaliser.json")
    metadata = _metadata(source, form, interface, checked)
    write_atomically(out / "metadata.json", json.dumps(metadata, indent=1) + "\n")
    return checked


def _refuse_own_folder(source: ExportSource, out: Path) -> None:
    """Raise an error if the export would go to a folder that a bundle or a run keeps whole."""
    own = [source.model] if source.normaliser is None else [source.model, source.normaliser.parent]
    if out.resolve() in [folder.resolve() for folder in own]:
        raise ExportError(f"{out} holds what is exported: name another folder (--out)")


def _metadata(
    source: ExportSource, form: str, interface: Interface, checked: ExportCheck
) -> dict[str, Any]:
    names = (*interface.input_names, *interface.output_names)
    state = interface.state and [interface.state[0], "rows", interface.state[1]]
    shapes: dict[str, list] = {name: state for name in names if name not in _WITH_FRAMES}
    shapes["inputs"] = ["rows", "frames", interface.input_dim]
    shapes["log_posteriors"] = ["rows", "frames out", interface.output_dim]
    frontend = source.frontend
    priors = load_log_priors(source.model).tolist() if source.has_priors else None
    return {
        "file": FILES[form],
        "format": form,
        **{key: value for key, value in asdict(interface).items() if key != "state"},
        "raw_frames_per_output": interface.stacked * interface.stride,
        "inputs": {name: shapes[name] for name in interface.input_names},
        "outputs": {name: shapes[name] for name in interface.output_names},
        "frontend": frontend,
        "normaliser": None if source.normaliser is None else "normaliser.json",
        "log_priors": priors,
        "units": source.units,
        "checked": asdict(checked) | {"tolerance": TOLERANCE},
    }


_WITH_FRAMES = ("inputs", "log_posteriors")


def _write_torchscript(module: nn.Module, interface: Interface, path: Path) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation; the shapes are compared afterwards
        script = torch.jit.trace(module, _example(interface), check_trace=False)
        script.save(str(path))


def _write_onnx(module: nn.Module, interface: Interface, path: Path) -> None:
    axes: dict[str, dict[int, str]] = {}
    for name in (*interface.input_names, *interface.output_names):
        axes[name] = {1: "rows"} if name not in _WITH_FRAMES else {0: "rows", 1: f"{name}_frames"}
    options: dict[str, Any] = {}
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False  # it needs more packages, and fixes the number of frames
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about rows: the state is an input
            torch.onnx.export(
                module,
                _example(interface),
                str(path),
                input_names=list(interface.input_names),
                output_names=list(interface.output_names),
                dynamic_axes=axes,
                opset_version=OPSET,
                **options,
            )
    except ImportError as error:
        raise ExportError(
            f"{error}: exporting to ONNX needs more packages: `pip install onnx onnxruntime`"
        ) from error


def _load_torchscript(path: Path) -> tuple[Run, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation
        script = torch.jit.load(str(path))

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            outputs = script(*inputs)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)

    return run, f"torch {torch.__version__}"


def _load_onnx(path: Path) -> tuple[Run, str] | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        values = dict(zip(names, (value.numpy() for value in inputs), strict=True))
        return [torch.from_numpy(value) for value in session.run(None, values)]

    return run, f"onnxruntime {onnxruntime.__version__}"


def _example(interface: Interface, rows: int = 2, outputs: int = 9) -> tuple[Tensor, ...]:
    frames = interface.overlap + outputs * interface.stride + interface.lookahead
    return _random(rows, frames, interface.input_dim), *interface.initial_state(rows)


def _random(rows: int, frames: int, dimension: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rows + frames)
    return torch.randn(rows, frames, dimension, generator=generator)


@torch.no_grad()
def compare(model: nn.Module, run: Run, interface: Interface) -> float:
    """The largest difference of log-posteriors between a model and its export; nan if there is one.

    Whole utterances of several lengths are compared, and where there is a state the same in pieces.
    """
    largest = 0.0
    for rows, outputs in LENGTHS:
        inputs = _example(interface, rows, outputs)[0]
        expected = _expected(model.eval(), inputs)
        pieces = [(0, inputs.shape[1])]
        if interface.state is not None:
            part = interface.overlap + (outputs // 3) * interface.stride + interface.lookahead
            cuts = [0, part, part + 2 * interface.stride, inputs.shape[1]]
            pieces += list(pairwise(cuts))
        for some in (pieces[:1], pieces[1:]):
            state, found = interface.initial_state(rows), []
            for begin, end in some:
                piece = inputs[:, max(0, begin - interface.overlap) : end].contiguous()
                posteriors, *state = run([piece, *state])
                found.append(posteriors)
            if found:
                together = torch.cat(found, dim=1)[:, interface.lookahead :]
                if together.shape != expected.shape:
                    return float("inf")
                difference = float((together - expected).abs().max())
                if math.isnan(difference):  # which `max` would drop
                    return difference
                largest = max(largest, difference)
    return largest


def _expected(model: nn.Module, inputs: Tensor) -> Tensor:
    """Log-posteriors of the original for whole utterances, look-ahead included: [N, T', C]."""
    if isinstance(model, CtcModel):
        return model(inputs)[0]
    if isinstance(model, LstmModel):
        return model(inputs)[0].log_softmax(dim=-1)
    return model(inputs, lengths=None)[0].log_softmax(dim=-1)
