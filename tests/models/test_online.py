"""Networks on pieces of an utterance against the whole."""

import pytest
import torch

from toolkit.models.config import BlstmConfig, LstmConfig, TdnnfConfig
from toolkit.models.lstm import BlstmModel, LstmModel
from toolkit.models.scorer import batch_logits, online
from toolkit.models.tdnnf import TdnnfModel

SIZES = {"input_dim": 12, "output_dim": 5, "hidden": 16}
MODELS = {
    "lstm": lambda: LstmModel(LstmConfig(**SIZES, layers=2, lookahead=3)),
    "lstm without look-ahead": lambda: LstmModel(LstmConfig(**SIZES, layers=1, lookahead=0)),
    "tdnnf": lambda: TdnnfModel(TdnnfConfig(**SIZES, bottleneck=4, strides=(1, 1, 0, 3, 6))),
    "tdnnf at the low rate": lambda: TdnnfModel(TdnnfConfig(**SIZES, bottleneck=4, strides=(3,))),
    "tdnnf without context": lambda: TdnnfModel(TdnnfConfig(**SIZES, bottleneck=4, strides=(0,))),
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(1)
    model = MODELS[request.param]()
    torch.nn.init.normal_(model.output.weight)
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm1d):  # as after a training
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return model


@pytest.mark.parametrize("size", [1, 2, 5, 40])
@pytest.mark.parametrize("frames", [1, 2, 3, 17, 40])
def test_the_logits_of_pieces_are_those_of_the_whole(model, size, frames):
    inputs = torch.randn(frames, 12, generator=torch.Generator().manual_seed(frames))
    (whole,) = batch_logits(model, [inputs])
    network = online(model)
    pieces = inputs.split(size)
    logits = [network.push(piece) for piece in pieces[:-1]]
    logits += [network.push(pieces[-1][:0]), network.finish(pieces[-1])]
    assert torch.allclose(torch.cat(logits), whole, atol=1e-5)


def test_an_output_is_returned_as_soon_as_its_context_is_complete(model):
    """Each frame gives the output whose right context it completes."""
    config, network = model.config, online(model)
    right_context = config.lookahead if isinstance(model, LstmModel) else config.context
    inputs = torch.randn(30, 12)
    rows = [len(network.push(frame[None])) for frame in inputs]
    assert sum(rows) == 30 - right_context
    assert rows == [0] * right_context + [1] * (30 - right_context)


def test_an_empty_utterance_gives_no_output(model):
    network = online(model)
    assert network.push(torch.zeros(0, 12)).shape == (0, 5)
    assert network.finish(torch.zeros(0, 12)).shape == (0, 5)


def test_the_state_of_the_lstm_is_that_after_the_frames_read():
    torch.manual_seed(2)
    model = MODELS["lstm"]()
    inputs = torch.randn(10, 12)
    network = online(model)
    for piece in inputs.split(4):
        network.push(piece)
    with torch.inference_mode():
        _, expected = model(inputs[None])
    for state, expected_state in zip(network.state, expected, strict=True):
        assert torch.allclose(state, expected_state, atol=1e-6)


def test_bidirectional_models_cannot_run_online():
    assert online(BlstmModel(BlstmConfig(**SIZES, layers=1))) is None
