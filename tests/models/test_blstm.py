import pytest
import torch

from toolkit.models import lstm
from toolkit.models.config import BlstmConfig
from toolkit.models.lstm import BlstmModel
from toolkit.models.scorer import log_posteriors
from toolkit.models.store import load_model, save_model

SMALL = BlstmConfig(input_dim=6, output_dim=7, hidden=8, layers=2)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return BlstmModel(SMALL).double().eval()


def inputs(rows, frames, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, frames, SMALL.input_dim, generator=generator, dtype=torch.float64)


def test_paper_size(monkeypatch):
    # C9: 5 layers of 768 per direction; 67,475,055 parameters with 192 inputs and 3,183 targets
    monkeypatch.setattr(lstm, "initialise", lambda *_: None)  # takes seconds
    model = BlstmModel(BlstmConfig())
    assert sum(p.numel() for p in model.parameters()) == 67_475_055


def direction(model, layer, x, suffix):
    """One LSTM layer in one direction over [T, D], gate by gate."""
    parameters = {
        name: getattr(model.lstm, f"{name}_l{layer}{suffix}")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    bias = parameters["bias_ih"] + parameters["bias_hh"]
    h = c = torch.zeros(SMALL.hidden, dtype=x.dtype)
    outputs = []
    for frame in x.flip(0) if suffix else x:
        gates = parameters["weight_ih"] @ frame + parameters["weight_hh"] @ h + bias
        i, f, g, o = gates.split(SMALL.hidden)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs[::-1] if suffix else outputs)


@pytest.mark.parametrize("padding", [0, 5])
def test_logits_are_those_of_two_lstms_from_both_ends(model, padding):
    x = inputs(2, 9 + padding)
    x[0, 9:] = 1e6
    logits, state = model(x, lengths=torch.tensor([9, 9 + padding]))
    assert state is None
    assert logits.shape == (2, 9 + padding, 7)
    for row, length in ((0, 9), (1, 9 + padding)):
        hidden = x[row, :length]
        for layer in range(2):
            directions = [direction(model, layer, hidden, suffix) for suffix in ("", "_reverse")]
            hidden = torch.cat(directions, dim=1)
        torch.testing.assert_close(logits[row, :length], model.output(hidden))


def test_every_output_depends_on_every_real_input_and_on_no_other(model):
    x = inputs(2, 12).requires_grad_()
    logits, _ = model(x, lengths=torch.tensor([12, 8]))
    for n in range(8):
        (gradient,) = torch.autograd.grad(logits[:, n].sum(), x, retain_graph=True)
        reached = gradient.abs().sum(dim=2) > 0
        assert reached[0].all()
        assert reached[1].tolist() == [True] * 8 + [False] * 4


def test_log_posteriors_of_a_ragged_batch_are_those_of_each_utterance(model):
    model = model.float()
    utterances = [inputs(1, frames, seed=frames)[0].float() for frames in (9, 1, 14)]
    batch = log_posteriors(model.train(), [*utterances, torch.zeros(0, 6)])
    assert batch.pop().shape == (0, 7)
    for features, batched in zip(utterances, batch, strict=True):
        torch.testing.assert_close(batched, model(features[None])[0][0].log_softmax(-1))


def test_save_and_load_keep_every_bit(model, tmp_path):
    save_model(tmp_path, model.float())
    loaded = load_model(tmp_path)
    assert type(loaded) is BlstmModel
    assert loaded.config == SMALL
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


@pytest.mark.parametrize("changes", [{"layers": 0}, {"dropout": 1.0}])
def test_impossible_configurations_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        BlstmConfig(**changes)
