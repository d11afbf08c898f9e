import pytest
import torch
from torch.nn.functional import layer_norm

from toolkit.config.settings import parameters_of
from toolkit.models.lstm import LstmConfig, LstmModel
from toolkit.models.store import load_model, save_model

SMALL = LstmConfig(input_dim=6, output_dim=7, hidden=8, layers=3, lookahead=2, layer_norm=True)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = LstmModel(SMALL).double().eval()
    for norm in model.lstm.norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    return model


def inputs(frames):
    return torch.randn(2, frames, 6, generator=torch.Generator().manual_seed(1)).double()


def by_equations(lstm, x):
    """The outputs of one layer, frame by frame."""
    h, c = x.new_zeros(len(x), 8), x.new_zeros(len(x), 8)
    outputs = []
    for frame in x.unbind(1):
        gates = frame @ lstm.weight_ih_l0.t() + lstm.bias_ih_l0
        gates = gates + h @ lstm.weight_hh_l0.t() + lstm.bias_hh_l0
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("grad", [False, True])
def test_each_layer_is_an_lstm_and_a_norm(model, grad):
    x = expected = inputs(9)
    for lstm, norm in zip(model.lstm.layers, model.lstm.norms, strict=True):
        expected = layer_norm(by_equations(lstm, expected), (8,), norm.weight, norm.bias)
    with torch.set_grad_enabled(grad):
        found, _ = model(x)
    torch.testing.assert_close(found, model.output(expected[:, 2:]))


def test_all_weights_get_their_gradient():
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(3, 2, hidden=2, layers=2, lookahead=0, layer_norm=True)).double()
    x = torch.randn(2, 4, 3).double()
    slopes = torch.randn(2, 4, 2).double()
    (model(x)[0] * slopes).sum().backward()
    for name, weight in model.named_parameters():
        place = (0,) * weight.dim()
        step = torch.zeros_like(weight)
        step[place] = 1e-6
        with torch.no_grad():
            above = (model_at(model, name, step)(x)[0] * slopes).sum()
            below = (model_at(model, name, -step)(x)[0] * slopes).sum()
        slope = (above - below) / 2e-6
        torch.testing.assert_close(weight.grad[place], slope, atol=1e-7, rtol=1e-5, msg=name)


def model_at(model, name, step):
    moved = LstmModel(model.config).double()
    weights = dict(model.state_dict())
    moved.load_state_dict({**weights, name: weights[name] + step})
    return moved


def test_pieces_give_what_the_whole_gives(model):
    x = inputs(20)
    whole, whole_state = model(x)
    parts, state = [], None
    for begin, end in ((0, 5), (5, 6), (6, 20)):
        logits, state = model(x[:, begin:end], state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    torch.testing.assert_close(state, whole_state)
    assert state[0].shape == state[1].shape == (3, 2, 8)


def test_dropout_is_between_layers_and_in_training_alone():
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(6, 7, hidden=8, layers=1, dropout=0.5, layer_norm=True))
    x = inputs(9).float()
    torch.testing.assert_close(model.train()(x)[0], model.eval()(x)[0])
    model = LstmModel(LstmConfig(6, 7, hidden=8, layers=2, dropout=0.5, layer_norm=True))
    assert not torch.equal(model.train()(x)[0], model.eval()(x)[0])


def test_it_is_stored_and_loaded(model, tmp_path):
    save_model(tmp_path, model.float())
    again = load_model(tmp_path)
    assert again.config == SMALL
    x = inputs(9).float()
    torch.testing.assert_close(again(x)[0], model(x)[0])


def test_settings_without_it_are_those_of_earlier_runs():
    assert "layer_norm" not in parameters_of(LstmConfig())
    assert parameters_of(SMALL)["layer_norm"] is True
