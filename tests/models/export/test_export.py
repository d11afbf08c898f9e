"""Exported models against the models that they were exported from."""

import json

import pytest
import torch

from toolkit.features.normalise import Cmvn, GlobalStats
from toolkit.models import export
from toolkit.models.config import BlstmConfig, CtcConfig, LstmConfig, TdnnfConfig
from toolkit.models.export import (
    ExportError,
    ExportSource,
    export_model,
    find_export_source,
    wrap_for_export,
)
from toolkit.models.scorer import log_priors, save_priors
from toolkit.models.store import ModelError, load_model, make_model, save_model

SIZES = {"input_dim": 6, "output_dim": 5, "hidden": 7}
CONFIGS = {
    "lstm": LstmConfig(**SIZES, layers=2, lookahead=3),
    "no look-ahead": LstmConfig(**SIZES, layers=1, lookahead=0),
    "blstm": BlstmConfig(**SIZES, layers=2),
    "tdnnf": TdnnfConfig(**SIZES, bottleneck=3, strides=(1, 1, 0, 3), final=4),
    "ctc": CtcConfig(**SIZES, channels=(4,), kernels=(5,), strides=(2,), lstm_layers=2),
    "two convolutions": CtcConfig(
        **SIZES, channels=(4, 5), kernels=(5, 3), strides=(2, 3), lstm_layers=1, activation="none"
    ),
    "ctc, both directions": CtcConfig(
        **SIZES, channels=(4,), kernels=(5,), strides=(2,), lstm_layers=2, bidirectional=True
    ),
}


@pytest.fixture(params=CONFIGS)
def model(request, tmp_path):
    torch.manual_seed(0)
    model = make_model(CONFIGS[request.param])
    for norm in [m for m in model.modules() if hasattr(m, "running_mean")]:
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
        norm.weight.data.uniform_(0.5, 2)
        norm.bias.data.uniform_(-1, 1)
    if not model.output.weight.any():
        torch.nn.init.xavier_uniform_(model.output.weight)
    save_model(tmp_path / "model", model)
    return tmp_path / "model"


def needed(form):
    if form == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    return form


def load_torchscript(path):
    """Return a function from the inputs of an exported model to its outputs."""
    script = torch.jit.load(str(path))

    def run(inputs):
        with torch.no_grad():
            outputs = script(*inputs)
        return [outputs] if isinstance(outputs, torch.Tensor) else outputs

    return run


def load_onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def run(inputs):
        values = dict(zip(names, (value.numpy() for value in inputs), strict=True))
        return [torch.from_numpy(value) for value in session.run(None, values)]

    return run


@pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")
@pytest.mark.parametrize("form", ["torchscript", "onnx"])
def test_an_exported_model_gives_the_outputs_of_the_model(model, tmp_path, form):
    out = tmp_path / "out"
    checked = export_model(find_export_source(model), needed(form), out)
    assert 0 <= checked.largest_difference < 1e-5
    metadata = json.loads((out / "metadata.json").read_text())
    assert metadata["checked"]["largest_difference"] == checked.largest_difference
    assert (out / metadata["file"]).is_file()
    assert metadata["inputs"]["inputs"] == ["rows", "frames", 6]
    assert metadata["outputs"]["log_posteriors"][2] == 5
    # Once more with numbers that the export has not seen.
    load = load_onnx if form == "onnx" else load_torchscript
    run = load(out / metadata["file"])
    module, interface = wrap_for_export(load_model(model))
    inputs = torch.randn(4, 61, 6), *interface.initial_state(4)
    if interface.state is not None:
        inputs = inputs[0], *(torch.randn_like(state) for state in inputs[1:])
    with torch.no_grad():
        expected = module(*inputs)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    for output, expected_output in zip(run(inputs), expected, strict=True):
        assert torch.allclose(output, expected_output, atol=1e-5)


def test_an_export_with_other_outputs_is_not_kept(tmp_path, monkeypatch):
    save_model(tmp_path / "model", make_model(CONFIGS["lstm"]))
    load = torch.jit.load

    def load_other_model(path):
        script = load(path)
        return lambda *inputs: [script(*inputs)[0] + 0.01, *script(*inputs)[1:]]

    monkeypatch.setattr(torch.jit, "load", load_other_model)
    with pytest.raises(ExportError, match=r"differ by 0\.01"):
        export_model(find_export_source(tmp_path / "model"), "torchscript", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_export_leaves_an_earlier_one(tmp_path, monkeypatch):
    save_model(tmp_path / "model", make_model(CONFIGS["lstm"]))
    source, out = find_export_source(tmp_path / "model"), tmp_path / "out"
    export_model(source, "torchscript", out)
    contents = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr(export, "compare", lambda *_: float("nan"))
    with pytest.raises(ExportError, match="differ by nan"):
        export_model(source, "torchscript", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == contents


def test_an_export_replaces_that_of_another_model(tmp_path):
    save_model(tmp_path / "model", make_model(CONFIGS["lstm"]))
    (tmp_path / "features").mkdir()
    normaliser = tmp_path / "features/normaliser.json"
    Cmvn(torch.zeros(6).double(), GlobalStats.of(torch.randn(9, 6))).save(normaliser)
    out = tmp_path / "out"
    export_model(ExportSource(tmp_path / "model", normaliser), "torchscript", out)
    assert (out / "normaliser.json").is_file()
    export_model(ExportSource(tmp_path / "model"), "torchscript", out)
    assert sorted(path.name for path in out.iterdir()) == ["metadata.json", "model.pt"]


def test_export_refuses_to_write_into_its_source(tmp_path):
    save_model(tmp_path / "final/model", make_model(CONFIGS["lstm"]))
    normaliser = tmp_path / "final/normaliser.json"
    Cmvn(torch.zeros(6).double(), GlobalStats.of(torch.randn(9, 6))).save(normaliser)
    source = ExportSource(tmp_path / "final/model", normaliser)
    for out in (tmp_path / "final", tmp_path / "final/../final/model"):
        paths = sorted(out.iterdir())
        with pytest.raises(ExportError, match="choose another folder"):
            export_model(source, "torchscript", out)
        assert sorted(out.iterdir()) == paths


def test_comparison_notices_nan(tmp_path):
    model = make_model(CONFIGS["lstm"]).eval()
    module, interface = wrap_for_export(model)

    def broken(inputs):
        with torch.no_grad():
            posteriors, *state = module(*inputs)
        posteriors[0, -1, 0] = float("nan")
        return [posteriors, *state]

    assert not export.compare(model, broken, interface) <= export.TOLERANCE


def test_comparison_notices_a_lost_state(tmp_path):
    model = make_model(CONFIGS["lstm"]).eval()
    module, interface = wrap_for_export(model)

    def forgetful(inputs):
        with torch.no_grad():
            posteriors, *state = module(*inputs)
        return [posteriors, *(0 * part for part in state)]

    assert export.compare(model, forgetful, interface) > 1e-3


def test_an_export_has_the_front_end_and_units_of_its_run(tmp_path):
    run = tmp_path / "exp"
    save_model(run / "ctc", make_model(CONFIGS["ctc"]))
    save_priors(run / "ctc", torch.tensor([1, 2, 3, 4, 5]))
    (run / "features/train").mkdir(parents=True)
    manifest = {"frontend": {"kind": "fbank"}, "dimension": 6}
    (run / "features/train/features.json").write_text(json.dumps(manifest))
    normaliser = Cmvn(torch.zeros(6).double(), GlobalStats.of(torch.randn(9, 6)))
    normaliser.save(run / "features/normaliser.json")
    (run / "units").mkdir()
    (run / "units/units.json").write_text('{"kind": "characters", "symbols": ["a", "<blank>"]}')
    assert find_export_source(run / "ctc") == ExportSource(
        run / "ctc",
        run / "features/normaliser.json",
        {"kind": "fbank"},
        ["a", "<blank>"],
    )
    export_model(find_export_source(run / "ctc"), "torchscript", tmp_path / "out")
    metadata = json.loads((tmp_path / "out/metadata.json").read_text())
    assert metadata["units"] == ["a", "<blank>"]
    assert metadata["frontend"] == {"kind": "fbank"}
    expected = log_priors(torch.tensor([1, 2, 3, 4, 5]))
    assert torch.allclose(torch.tensor(metadata["log_priors"]), expected)
    assert (metadata["raw_frames_per_output"], metadata["overlap"]) == (2, 3)
    exported = Cmvn.load(tmp_path / "out" / metadata["normaliser"])
    assert torch.equal(exported.prior_mean, normaliser.prior_mean)


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises(ModelError, match="neither a bundle"):
        find_export_source(tmp_path)
    (tmp_path / "recogniser.json").write_text('{"frontend": 1}')
    with pytest.raises(ModelError, match=r"recogniser\.json"):
        find_export_source(tmp_path)
