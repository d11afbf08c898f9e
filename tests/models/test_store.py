import json

import pytest
import torch

from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.models.store import CONFIG, WEIGHTS, ModelError, load_model, save_model


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(6, 7, hidden=8, layers=2, dropout=0.1))
    save_model(tmp_path, model)
    return tmp_path, model


def test_save_and_load_keep_every_bit(saved):
    folder, model = saved
    loaded = load_model(folder)
    assert type(loaded) is LstmModel
    assert loaded.config == model.config
    assert not loaded.training
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_layers_may_share_weights(saved, tmp_path):
    _, model = saved
    model.lstm.bias_hh_l0 = model.lstm.bias_ih_l0
    save_model(tmp_path / "shared", model)
    loaded = load_model(tmp_path / "shared")
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_saving_twice_gives_the_same_bytes(saved, tmp_path):
    folder, model = saved
    save_model(tmp_path / "again", model)
    for name in (CONFIG, WEIGHTS):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def edit(folder, change):
    described = json.loads((folder / CONFIG).read_text())
    change(described)
    (folder / CONFIG).write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["config"].update(hidden=9), r"weight_hh_l0 is \[32, 8\] instead of \[36, 9\]"),
        (lambda d: d["config"].update(layers=3), "lstm.weight_ih_l2 is missing"),
        (lambda d: d["config"].update(layers=1), "lstm.weight_ih_l1 is not part of the model"),
        (
            lambda d: d.update(kind="transformer"),
            "kind 'transformer'; known kinds are lstm, blstm, ctc",
        ),
        (lambda d: d["config"].update(heads=4), "no lstm configuration.*heads"),
        (lambda d: d["config"].update(layers=0), "`layers` is 0"),
        (lambda d: d.pop("config"), "no lstm configuration"),
    ],
)
def test_a_configuration_that_does_not_fit_the_weights_is_refused(saved, change, message):
    folder, _ = saved
    edit(folder, change)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_missing_and_damaged_files_are_named(saved):
    folder, _ = saved
    weights = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ModelError, match="damaged"):
        load_model(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_model(folder)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(folder / "nowhere")
