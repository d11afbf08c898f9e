import math

import pytest
import torch

from toolkit.models.config import CtcConfig
from toolkit.models.ctc import CtcModel, ctc_log_probs, output_lengths
from toolkit.models.store import load_model, save_model

SMALL = CtcConfig(5, 6, channels=(7,), kernels=(3,), strides=(2,), lstm_layers=2, hidden=8)
DEEP = CtcConfig(
    5, 6, channels=(4, 7, 6), kernels=(3, 4, 2), strides=(2, 1, 2), lstm_layers=1, hidden=8
)
BOTH = CtcConfig(5, 6, (7,), (3,), (2,), lstm_layers=2, hidden=8, bidirectional=True)


def build(config, seed=0):
    """A model in float64 whose running statistics are not trivial."""
    torch.manual_seed(seed)
    model = CtcModel(config).double().train()
    for _ in range(3):
        model(2 * torch.randn(3, 40, config.input_dim, dtype=torch.float64) + 1)
    return model.eval()


def noise(rows, frames, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, frames, 5, generator=generator, dtype=torch.float64)


def test_the_papers_model_has_25_6_million_parameters():
    # A12, A13: 11 x 93 x 600, five LSTMs of 800 with torch's two biases per gate, 800 x 30
    config = CtcConfig()
    count = sum(p.numel() for p in CtcModel(config).parameters())
    weights = 11 * 93 * 600 + 4 * 800 * (600 + 800) + 4 * (4 * 800 * 1600) + 800 * 30
    biases = 600 + 5 * 2 * 4 * 800 + 30
    normalisations = 2 * (600 + 5 * 800)
    assert count == weights + biases + normalisations
    assert round(count / 1e6, 1) == 25.6


def test_output_lengths_are_those_of_valid_convolutions():
    # A12: 1,670 frames give 830; TensorFlow: VALID is ceil((x - cw + 1) / cs)
    config = CtcConfig()
    assert config.frames_needed == 11
    assert config.subsampling == 2
    assert output_lengths(config, torch.tensor([1670, 1669, 1671, 10, 11, 12, 13, 0])).tolist() == [
        *(830, 830, 831, 0, 1, 1, 2, 0)
    ]
    for x in range(11, 60):
        assert output_lengths(config, torch.tensor(x)) == math.ceil((x - 11 + 1) / 2)


@pytest.mark.parametrize("config", [SMALL, DEEP, BOTH])
def test_lengths_are_the_numbers_of_output_frames(config):
    model = build(config)
    for frames in range(config.frames_needed, config.frames_needed + 9):
        log_probs, lengths = model(noise(1, frames))
        assert log_probs.shape == (1, int(lengths[0]), 6)
        assert lengths.tolist() == output_lengths(config, torch.tensor([frames])).tolist()
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones_like(log_probs[..., 0]))
    log_probs, lengths = model(noise(2, config.frames_needed - 1))
    assert lengths.tolist() == [0, 0]
    assert log_probs.shape == (2, 1, 6)


@pytest.mark.parametrize("config", [SMALL, DEEP, BOTH])
@pytest.mark.parametrize("padding", [0.0, 1e6, float("nan")])
def test_padding_changes_no_output(config, padding):
    lengths = torch.tensor([31, 12, 20, 4])
    results = []
    for frames, value in ((31, padding), (50, 7.0)):
        torch.manual_seed(0)
        model = CtcModel(config).double().train()
        model.config = type(config)(**{**vars(config), "dropout": 0.0})
        x = torch.full((4, frames, 5), value, dtype=torch.float64)
        x[:, :31] = noise(4, 31)
        x[torch.arange(frames) >= lengths[:, None]] = value
        x.requires_grad_()
        log_probs, out = model(x, lengths)
        mask = torch.arange(int(out.max())) < out[:, None]
        real = log_probs[:, : int(out.max())][mask]
        (real * torch.linspace(-1, 1, 6, dtype=torch.float64)).sum().backward()
        assert (x.grad[torch.arange(frames) >= lengths[:, None]] == 0).all()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append((real, gradients, dict(model.named_buffers()), x.grad[:, :31]))
    first, second = results
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)
    assert all(torch.isfinite(g).all() for g in first[1].values())


@pytest.mark.parametrize("config", [SMALL, DEEP, BOTH])
def test_an_utterance_alone_and_in_a_batch_have_the_same_outputs(config):
    model = build(config)
    utterances = [noise(1, frames, seed=frames)[0] for frames in (21, 9, 14, 2)]
    for x, batched in zip(utterances, ctc_log_probs(model, utterances), strict=True):
        length = int(output_lengths(config, torch.tensor(len(x))))
        assert batched.shape == (length, 6)
        torch.testing.assert_close(batched, model(x[None])[0][0, :length])


@pytest.mark.parametrize("config", [SMALL, DEEP])
@pytest.mark.parametrize("pieces", [[1] * 40, [40], [13, 1, 0, 5, 21], [2, 38]])
def test_a_stream_gives_the_outputs_of_the_whole_utterance(config, pieces):
    model, x = build(config), noise(2, 40)
    whole, _ = model(x)
    parts, state = [], None
    for piece in x.split(pieces, dim=1):
        log_probs, state = model.stream(piece, state)
        parts.append(log_probs)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-14)


def test_the_latency_of_a_stream_is_that_of_the_convolution():
    model, x = build(SMALL), noise(1, 9)
    assert [model.stream(x[:, :t])[0].shape[1] for t in range(1, 10)] == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_stream_refuses_bidirectional_models_and_training_mode():
    with pytest.raises(ValueError, match="unidirectional"):
        build(BOTH).stream(noise(1, 9))
    with pytest.raises(ValueError, match="evaluation mode"):
        build(SMALL).train().stream(noise(1, 9))


def test_training_equals_evaluation_with_the_same_statistics():
    # one batch without padding: batch statistics put in as running ones give the same outputs
    for config in (SMALL, BOTH):
        model = CtcModel(type(config)(**{**vars(config), "dropout": 0.0})).double()
        for norm in model.norms:
            norm.momentum = 1.0
        x = noise(3, 21)
        trained, lengths = model.train()(x)
        frames = 3 * int(lengths[0])
        for norm in model.norms:
            norm.running_var *= (frames - 1) / frames
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(x)[0], trained)


def test_weights_lie_within_xaviers_bounds():
    model = CtcModel(CtcConfig(20, 6, (30,), (5,), (2,), lstm_layers=1, hidden=40))
    bounds = {
        "convolutions.0.weight": (6 / (20 * 5 + 30 * 5)) ** 0.5,
        "lstms.0.weight_ih_l0": (6 / (30 + 40 + 160)) ** 0.5,
        "lstms.0.weight_hh_l0": (6 / (30 + 40 + 160)) ** 0.5,
        "output.weight": (6 / (40 + 6)) ** 0.5,
    }
    parameters = dict(model.named_parameters())
    for name, bound in bounds.items():
        assert 0.95 * bound < parameters[name].abs().max() <= bound, name
    assert parameters["lstms.0.bias_ih_l0"].sum() == 40  # the forget gates'


def test_dropout_is_active_in_training_only():
    config = CtcConfig(5, 6, (7,), (3,), (2,), lstm_layers=1, hidden=8, dropout=0.5)
    model, x = build(config), noise(2, 21)
    assert torch.equal(model(x)[0], model(x)[0])
    model.train()
    assert not torch.equal(model(x)[0], model(x)[0])


def test_bfloat16_gives_float32_log_probabilities():
    model = CtcModel(SMALL).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs, _ = model(noise(2, 21).float(), torch.tensor([21, 12]))
    assert log_probs.dtype == torch.float32
    log_probs.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_save_and_load_round_trip(tmp_path):
    model = build(DEEP).float()
    save_model(tmp_path, model)
    loaded = load_model(tmp_path)
    assert loaded.config == DEEP
    x = noise(1, 30).float()
    assert torch.equal(loaded(x)[0], model(x)[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"channels": ()},
        {"kernels": (0,)},
        {"strides": (12,)},
        {"channels": (3, 4)},
        {"hidden": 0},
        {"lstm_layers": 0},
        {"output_dim": 1},
        {"activation": "tanh"},
        {"dropout": 1.0},
    ],
)
def test_impossible_sizes_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        CtcConfig(**changes)
