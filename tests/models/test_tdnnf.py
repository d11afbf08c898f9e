import pytest
import torch
from torch.nn import functional

from toolkit.models.config import TdnnfConfig
from toolkit.models.scorer import log_posteriors
from toolkit.models.store import load_model, save_model
from toolkit.models.tdnnf import FactorisedLayer, TdnnfModel

SMALL = {"input_dim": 6, "output_dim": 7, "hidden": 12, "bottleneck": 4, "final": 5}
STRIDES = [(1, 1, 0, 3, 3), (3, 0, 6), (1,), (0,), (1, 1, 1, 0, 3)]


def make(strides=(1, 1, 0, 3, 3), **changes):
    torch.manual_seed(0)
    model = TdnnfModel(TdnnfConfig(**SMALL, strides=strides, **changes)).double()
    torch.nn.init.normal_(model.output.weight)
    return model.eval()


def inputs(rows, frames, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, frames, 6, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("strides", STRIDES)
def test_an_output_depends_on_the_raw_frames_within_its_context(strides):
    model = make(strides)
    x = inputs(2, 24).requires_grad_()
    lengths = [24, 17]
    logits, state = model(x, lengths=torch.tensor(lengths))
    assert state is None
    assert logits.shape == (2, 24, 7)
    reach = model.config.raw_context
    for row, length in enumerate(lengths):
        for n in range(length):
            (gradient,) = torch.autograd.grad(logits[row, n].sum(), x, retain_graph=True)
            dependencies = gradient.view(2, 72, 2).abs().sum(dim=2).gt(0).nonzero().tolist()
            middle = 3 * n + 1
            first, last = max(0, middle - reach), min(3 * length - 1, middle + reach)
            assert dependencies == [[row, t] for t in range(first, last + 1)]


@pytest.mark.parametrize("strides", STRIDES)
def test_a_chunk_with_context_gives_the_outputs_of_the_whole_utterance(strides):
    model, x = make(strides), inputs(1, 40)
    context = model.config.context
    whole, _ = model(x)
    chunk, _ = model(x[:, 15 - context : 20 + context])
    torch.testing.assert_close(chunk[:, context : context + 5], whole[:, 15:20])
    if context:
        cut, _ = model(x[:, 15 - context + 1 : 20 + context])
        assert not torch.allclose(cut[:, context - 1], whole[:, 15])


def layer_by_hand(layer, x, stride, step):
    """Compute a layer frame by frame from its equations: x [T, H]."""
    linear, affine = layer.linear.weight, layer.affine.weight
    outputs = []
    for t in range(stride, len(x) - stride, step):
        if stride:
            narrow = [linear[:, :, 0] @ x[t - stride] + linear[:, :, 1] @ x[t]]
            narrow.append(linear[:, :, 0] @ x[t] + linear[:, :, 1] @ x[t + stride])
            wide = affine[:, :, 0] @ narrow[0] + affine[:, :, 1] @ narrow[1]
        else:
            wide = affine[:, :, 0] @ (linear[:, :, 0] @ x[t])
        wide = (wide + layer.affine.bias).relu()
        norm = layer.norm
        wide = (wide - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
        outputs.append(wide * norm.weight + norm.bias + 0.66 * x[t])
    return torch.stack(outputs)


@pytest.mark.parametrize(("stride", "step"), [(0, 1), (1, 1), (2, 1), (1, 3)])
def test_a_layer_is_factorised_with_a_bypass(stride, step):
    torch.manual_seed(0)
    layer = FactorisedLayer(TdnnfConfig(**SMALL), stride, step).double().eval()
    layer.norm.running_mean.normal_()
    layer.norm.running_var.uniform_(0.5, 2)
    x = torch.randn(1, 12, 13, dtype=torch.float64)
    expected = layer_by_hand(layer, x[0].t(), stride, step)
    torch.testing.assert_close(layer(x)[0].t(), expected)


def test_dropout_factors_are_shared_by_the_frames_of_a_row():
    torch.manual_seed(0)
    without_dropout = FactorisedLayer(TdnnfConfig(**SMALL, bypass=0.0), 0).double()
    with_dropout = FactorisedLayer(TdnnfConfig(**SMALL, bypass=0.0, dropout=0.3), 0).double()
    with_dropout.load_state_dict(without_dropout.state_dict())
    x = torch.randn(50, 12, 20, dtype=torch.float64)
    factors = with_dropout(x) / without_dropout(x)
    assert factors.std(dim=2).max() < 1e-6
    assert 0.7 < factors.min() < 0.72
    assert 1.28 < factors.max() < 1.3
    torch.testing.assert_close(with_dropout.eval()(x), without_dropout.eval()(x))


def test_log_posteriors_of_a_ragged_batch_are_those_of_each_utterance():
    model = make().float()
    utterances = [inputs(1, frames, seed=frames)[0].float() for frames in (9, 1, 14)]
    batch = log_posteriors(model.train(), [*utterances, torch.zeros(0, 6)])
    assert batch.pop().shape == (0, 7)
    for features, batched in zip(utterances, batch, strict=True):
        alone = model(features[None])[0][0].log_softmax(-1)
        torch.testing.assert_close(batched, alone, rtol=1e-4, atol=1e-5)


def test_a_batch_of_one_frame_can_be_trained_on():
    model = make().float().train()
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    logits, _ = model(inputs(1, 1).float(), lengths=torch.tensor([1]))
    logits.sum().backward()
    assert logits.shape == (1, 1, 7)
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert torch.equal(model.last_norm.running_var, buffers["last_norm.running_var"])
    model(inputs(1, 2).float())
    assert not torch.equal(model.last_norm.running_var, buffers["last_norm.running_var"])


def test_listed_matrices_are_those_of_the_bottlenecks():
    model = make((1, 3))
    shapes = [tuple(weight.shape) for weight in model.semi_orthogonal]
    assert shapes == [(4, 12, 2), (4, 12, 2), (5, 12, 1), (5, 12, 1)]


def test_it_learns_and_save_and_load_keep_every_bit(tmp_path):
    model = make().float().train()
    x, targets = inputs(8, 20).float(), torch.randint(7, (8, 20))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        loss = functional.cross_entropy(model(x)[0].flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]
    save_model(tmp_path, model)
    loaded = load_model(tmp_path)
    assert type(loaded) is TdnnfModel
    assert loaded.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


@pytest.mark.parametrize(
    "changes",
    [
        {"strides": ()},
        {"strides": (3, 1)},
        {"strides": (1, 2)},
        {"strides": (-3,)},
        {"bottleneck": 13},
        {"input_dim": 7},
        {"dropout": 1.0},
        {"bypass": -0.1},
        {"hidden": 0},
    ],
)
def test_impossible_configurations_are_refused(changes):
    with pytest.raises(ValueError, match="stride|hidden|" + next(iter(changes))):
        TdnnfConfig(**{**SMALL, **changes})
