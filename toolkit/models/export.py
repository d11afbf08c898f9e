"""Export acoustic models to TorchScript and ONNX, and compare the exports with the originals.

torch 2.15 still has `torch.jit.trace` and the tracing exporter to ONNX (`dynamo=False`), but warns
that both are deprecated. Their successor, `torch.export`, is missing in torch 1.13.1.
"""

import inspect
import json
import math
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.errors import ToolkitError
from toolkit.features.config import DEFAULT_MEL_BINS
from toolkit.features.normalise import Cmvn
from toolkit.models.ctc import CtcModel
from toolkit.models.lstm import BlstmModel, LstmModel
from toolkit.models.scorer import PRIORS, load_log_priors
from toolkit.models.store import CONFIG, ModelError, load_model
from toolkit.models.tdnnf import TdnnfModel, repeat_ends
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading

ADVICE = "rerun the stage that makes it"
_NORMALISER = "normaliser.json"
FILES = {"torchscript": "model.pt", "onnx": "model.onnx"}
"""File name of each format."""
OPSET = 14
TOLERANCE = 1e-4
"""Largest difference of log-posteriors that is tolerated."""
LENGTHS = ((1, 47), (2, 30), (3, 12))
"""Rows and output frames of the inputs that are compared."""
Run = Callable[[Sequence[Tensor]], list[Tensor]]
"""Runs an exported model: its inputs, in order -> its outputs."""
_WITH_FRAMES = ("inputs", "log_posteriors")


class ExportedLstm(nn.Module):
    """`LstmModel`: (inputs [N, T, D], hidden, cell) -> (log-posteriors [N, T, C], hidden, cell).

    Hidden and cell are [layers, N, H], zeros at the beginning. The first `lookahead` outputs are
    included, although they belong to no frame.
    """

    def __init__(self, model: LstmModel) -> None:
        super().__init__()
        self.lstm, self.output = model.lstm, model.output

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        """Run the network over the next frames."""
        outputs, (hidden, cell) = self.lstm(inputs, (hidden, cell))
        return self.output(outputs).log_softmax(dim=-1), hidden, cell


class ExportedBlstm(nn.Module):
    """`BlstmModel`: inputs [N, T, D], without padding -> log-posteriors [N, T, C]."""

    def __init__(self, model: BlstmModel) -> None:
        super().__init__()
        self.lstm, self.output = model.lstm, model.output

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the network over whole utterances."""
        return self.output(self.lstm(inputs)[0]).log_softmax(dim=-1)


class ExportedTdnnf(nn.Module):
    """`TdnnfModel`: inputs [N, T, D], without padding -> log-posteriors [N, T, C]."""

    def __init__(self, model: TdnnfModel) -> None:
        super().__init__()
        self.model = model
        self.padding = model.config.raw_context - 1

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the network over whole utterances."""
        raw = inputs.reshape(inputs.shape[0], -1, self.model.input.in_channels)
        return self.model.logits(repeat_ends(raw, self.padding)).log_softmax(dim=-1)


class ExportedCtc(nn.Module):
    """`CtcModel`: (inputs [N, T, D], hidden, cell) -> (log-posteriors [N, T', C], hidden, cell).

    Hidden and cell are [layers, N, H], zeros at the beginning; a bidirectional model has neither.
    The convolutions keep no state: each piece begins with the last `overlap` inputs of the previous
    piece. Rows have no padding.
    """

    def __init__(self, model: CtcModel) -> None:
        super().__init__()
        self.convolutions, self.lstms = model.convolutions, model.lstms
        self.norms, self.output = model.norms, model.output
        self.rectified = model.config.activation == "relu"
        self.bidirectional = model.config.bidirectional

    def forward(
        self, inputs: Tensor, hidden: Tensor | None = None, cell: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Run the network over the next frames."""
        x, norms = inputs, iter(self.norms)
        for convolution in self.convolutions:
            x = convolution(x.transpose(1, 2)).transpose(1, 2)
            x = next(norms)(x.relu() if self.rectified else x, None)
        hiddens, cells = [], []
        for layer, lstm in enumerate(self.lstms):
            if hidden is None or cell is None:
                x, _ = lstm(x)
            else:
                # Hidden and cell state of one layer, [1, N, H] each
                x, state = lstm(x, (hidden[layer : layer + 1], cell[layer : layer + 1]))
                hiddens.append(state[0])
                cells.append(state[1])
            x = next(norms)(x, None)
        posteriors = self.output(x).log_softmax(dim=-1)
        return (posteriors, torch.cat(hiddens), torch.cat(cells)) if hiddens else posteriors


@dataclass(frozen=True)
class Interface:
    """Inputs, outputs and frame rates of an exported model."""

    kind: str
    """`lstm`, `blstm`, `tdnnf` or `ctc`."""
    input_dim: int
    """D, values per input."""
    output_dim: int
    """C, values per output."""
    state: tuple[int, int] | None = None
    """Layers and cells of the hidden and cell states; None: the model needs whole utterances."""
    lookahead: int = 0
    """Number of outputs at the beginning that belong to no frame. The last frame's output needs the
    same number of inputs after that frame; at the end of an utterance they are copies of it."""
    overlap: int = 0
    """Number of inputs at the beginning of a piece that repeat the end of the previous piece."""
    stacked: int = 3
    """Raw frames in an input."""
    stride: int = 1
    """Inputs per output."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return ("inputs",) if self.state is None else ("inputs", "hidden", "cell")

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs."""
        first = "log_posteriors"
        return (first,) if self.state is None else (first, "hidden_out", "cell_out")

    def initial_state(self, rows: int) -> tuple[Tensor, ...]:
        """Return the states before the first frame of `rows` utterances."""
        if self.state is None:
            return ()
        layers, cells = self.state
        return torch.zeros(layers, rows, cells), torch.zeros(layers, rows, cells)


def wrap_for_export(model: nn.Module) -> tuple[nn.Module, Interface]:
    """Wrap a model for export, sharing its weights; return the wrapper and its interface.

    Raises:
      ModelError: there is no wrapper for models of this class.
    """
    config = model.config
    if isinstance(model, LstmModel):
        state, lookahead = (config.layers, config.hidden), config.lookahead
        sizes = config.input_dim, config.output_dim
        return ExportedLstm(model).eval(), Interface("lstm", *sizes, state, lookahead)
    if isinstance(model, BlstmModel):
        sizes = config.input_dim, config.output_dim
        return ExportedBlstm(model).eval(), Interface("blstm", *sizes)
    if isinstance(model, TdnnfModel):
        sizes = config.input_dim, config.output_dim
        return ExportedTdnnf(model).eval(), Interface("tdnnf", *sizes)
    if not isinstance(model, CtcModel):
        raise ModelError(
            f"{type(model).__name__} cannot be exported: toolkit/models/export.py has wrappers "
            "only for LstmModel, BlstmModel, TdnnfModel and CtcModel; add one there"
        )
    state = None if config.bidirectional else (config.lstm_layers, config.hidden)
    overlap = 0 if state is None else config.frames_needed - config.subsampling
    sizes = config.input_dim, config.output_dim
    interface = Interface(
        "ctc", *sizes, state, overlap=overlap, stacked=1, stride=config.subsampling
    )
    return ExportedCtc(model).eval(), interface


@dataclass(frozen=True)
class ExportSource:
    """A model to export, with the related files and settings that exist."""

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
        """Whether the model has priors, to turn posteriors into likelihoods."""
        return (self.model / PRIORS).is_file()


def find_export_source(path: Path) -> ExportSource:
    """Find a model and its related files and settings.

    The marker of the stage that made the model names its features. Without a marker, the features
    are the only ones in the run directory whose dimension, stacked, is the model's input dimension.
    Features from a GMM system have no front end to record.

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
                f"the model in {path} reads features of a GMM system, not those of a front end: "
                "export the network's folder in the run directory instead"
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
        which = "several folders of features fit" if fitting else "no folder of features fits"
        note = f"{which} {path.name} in {run}: exported without a normaliser and a front end"
        return ExportSource(path, None, None, _units(run), note)
    frontend, note = _frontend(fitting[0]), ""
    if frontend is not None and frontend.get("kind") not in DEFAULT_MEL_BINS:
        note = f"the features in {fitting[0]} ({frontend.get('kind')}) have no front end"
        frontend = None
    return ExportSource(path, fitting[0] / _NORMALISER, frontend, _units(run), note)


def _stages_that_make(run: Path, model: str) -> list[set[str]]:
    """Return the inputs and outputs of each finished stage that wrote the model."""
    stages = []
    for marker in sorted(run.glob("stages/[0-9]*.json")):
        if not marker.stem.isdecimal():  # 17.publishing.json of a killed stage, or a user's copy
            continue
        with reading(marker, ModelError, ADVICE):
            record = read_json(marker, {"inputs": {str: Any}, "outputs": {str: Any}})
        if model in record["outputs"]:
            stages.append({*record["inputs"], *record["outputs"]})
    return stages


def _features_of(run: Path, stages: Sequence[set[str]]) -> list[Path]:
    """Return the feature folders that stages name; those with normalisers take precedence.

    A student is also trained on labelled features, with the normaliser of the unlabelled ones.
    """
    names = {PurePosixPath(name) for stage in stages for name in stage}
    with_normaliser = {name.parts[0] for name in names if name.name == _NORMALISER}
    named = with_normaliser or {name.parts[0] for name in names}
    return [run / name for name in sorted(named) if (run / name / _NORMALISER).is_file()]


def _with_features(run: Path) -> list[Path]:
    """Return the run's folders with both a normaliser and a front end."""
    folders = [normaliser.parent for normaliser in sorted(run.glob(f"*/{_NORMALISER}"))]
    return [folder for folder in folders if _frontend(folder) is not None]


def _dimension(features: Path) -> int:
    """Return the feature dimension of a folder's normaliser."""
    return len(Cmvn.load(features / _NORMALISER).prior_mean)


def _frontend(features: Path) -> dict[str, Any] | None:
    """Return the front end in a folder's features.json; None without one."""
    for pattern in ("features.json", "*/features.json"):
        for manifest in sorted(features.glob(pattern)):
            with reading(manifest, ModelError, ADVICE):
                return read_json(manifest, {"frontend": {str: Any}})["frontend"]
    return None


def _units(folder: Path) -> list[str] | None:
    """Return the output symbols of a run; None without units."""
    path = folder / "units" / "units.json"
    if not path.is_file():
        return None
    with reading(path, ModelError, ADVICE):
        return read_json(path, {"symbols": [str]})["symbols"]


class ExportError(ToolkitError):
    """Raised if a model cannot be exported, or its export computes different outputs."""


@dataclass(frozen=True)
class ExportCheck:
    """The result of comparing an exported model with the original."""

    against: str
    """The runtime that ran the exported model, with its version; empty if it was not run."""
    largest_difference: float | None
    """Largest difference of a log-posterior from the original's; None if it was not run."""


def export_model(source: ExportSource, form: str, out: Path) -> ExportCheck:
    """Export a model to a folder, with `metadata.json` and its normaliser, if any.

    An earlier export there is replaced once the new model has passed the comparison.

    Args:
      source: the model and its files and settings.
      form: `torchscript` or `onnx`.
      out: the folder to write.

    Raises:
      ExportError: a package is missing, the outputs of the exported model differ, or the folder is
        that of the model or its normaliser.
    """
    _refuse_own_folder(source, out)
    model = load_model(source.model)
    module, interface = wrap_for_export(model)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".export", dir=out) as folder:
        path = Path(folder, FILES[form])
        write = _write_onnx if form == "onnx" else _write_torchscript
        write(module, interface, path)
        runtime = _load_onnx(path) if form == "onnx" else _load_torchscript(path)
        checked = ExportCheck("", None)
        if runtime is not None:
            run, against = runtime
            checked = ExportCheck(against, compare(model, run, interface))
            if not checked.largest_difference <= TOLERANCE:
                raise ExportError(
                    f"the log-posteriors of the exported model (run by {against}) differ by "
                    f"{checked.largest_difference:.2g} from those of the original; nothing was "
                    "written"
                )
        # An earlier export loses its metadata first: a folder without metadata is incomplete.
        if (out / "metadata.json").exists():
            (out / "metadata.json").unlink()
            (out / "normaliser.json").unlink(missing_ok=True)
        path.replace(out / path.name)
    if source.normaliser is not None:
        shutil.copyfile(source.normaliser, out / "normaliser.json")
    metadata = _metadata(source, form, interface, checked)
    write_atomically(out / "metadata.json", json.dumps(metadata, indent=1) + "\n")
    return checked


def _refuse_own_folder(source: ExportSource, out: Path) -> None:
    """Raise an error if the output folder holds the model or its normaliser."""
    sources = [source.model]
    if source.normaliser is not None:
        sources.append(source.normaliser.parent)
    if out.resolve() in [folder.resolve() for folder in sources]:
        raise ExportError(
            f"{out} contains the model that is exported: choose another folder with --out"
        )


def _metadata(
    source: ExportSource, form: str, interface: Interface, checked: ExportCheck
) -> dict[str, Any]:
    """Return the contents of metadata.json."""
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


def _write_torchscript(module: nn.Module, interface: Interface, path: Path) -> None:
    """Write the traced model as TorchScript."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation; the shapes are compared afterwards
        script = torch.jit.trace(module, _example(interface), check_trace=False)
        script.save(str(path))


def _write_onnx(module: nn.Module, interface: Interface, path: Path) -> None:
    """Write the model as ONNX."""
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
    """Load a TorchScript model; return a function that runs it, and the runtime's name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation
        script = torch.jit.load(str(path))

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            outputs = script(*inputs)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)

    return run, f"torch {torch.__version__}"


def _load_onnx(path: Path) -> tuple[Run, str] | None:
    """Load an ONNX model; return a function that runs it, and the runtime's name.

    Returns None if onnxruntime is not installed.
    """
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
    """Return random inputs that give `outputs` frames, and initial states."""
    frames = interface.overlap + outputs * interface.stride + interface.lookahead
    return _random(rows, frames, interface.input_dim), *interface.initial_state(rows)


def _random(rows: int, frames: int, dimension: int) -> Tensor:
    """Return random inputs [rows, frames, dimension], always the same for these sizes."""
    generator = torch.Generator().manual_seed(1000 * rows + frames)
    return torch.randn(rows, frames, dimension, generator=generator)


@torch.no_grad()
def compare(model: nn.Module, run: Run, interface: Interface) -> float:
    """Return the largest difference between a model's and its export's log-posteriors.

    Whole utterances of several lengths are compared; for models with a state, also in pieces.
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
        # Once the whole utterance in one call, once in pieces that pass the state on
        for spans in (pieces[:1], pieces[1:]):
            state, outputs_of_pieces = interface.initial_state(rows), []
            for begin, end in spans:
                piece = inputs[:, max(0, begin - interface.overlap) : end].contiguous()
                posteriors, *state = run([piece, *state])
                outputs_of_pieces.append(posteriors)
            if outputs_of_pieces:
                # The first `lookahead` outputs precede the first frame: [N, T', C] without them.
                exported = torch.cat(outputs_of_pieces, dim=1)[:, interface.lookahead :]
                if exported.shape != expected.shape:
                    return float("inf")
                difference = float((exported - expected).abs().max())
                if math.isnan(difference):  # which `max` would drop
                    return difference
                largest = max(largest, difference)
    return largest


def _expected(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the original model's log-posteriors of whole utterances: [N, T', C]."""
    if isinstance(model, CtcModel):
        return model(inputs)[0]
    if isinstance(model, LstmModel):
        return model(inputs)[0].log_softmax(dim=-1)
    return model(inputs, lengths=None)[0].log_softmax(dim=-1)
