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
    made = MODELS[request.param]()
    torch.nn.init.normal_(made.output.weight)
    for part in made.modules():
        if isinstance(part, torch.nn.BatchNorm1d):  # as after a training
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return made


@pytest.mark.parametrize("size", [1, 2, 5, 40])
@pytest.mark.parametrize("frames", [1, 2, 3, 17, 40])
def test_the_logits_of_pieces_are_those_of_the_whole(model, size, frames):
    inputs = torch.randn(frames, 12, generator=torch.Generator().manual_seed(frames))
    (whole,) = batch_logits(model, [inputs])
    network = online(model)
    pieces = inputs.split(size)
    found = [network.push(piece) for piece in pieces[:-1]]
    found += [network.push(pieces[-1][:0]), network.finish(pieces[-1])]
    assert torch.allclose(torch.cat(found), whole, atol=1e-5)


def test_an_output_comes_as_soon_as_its_context_is_there(model):
    """Later frames change nothing that was returned, and what waits is no more than must."""
    config, network = model.config, online(model)
    needed = config.lookahead if isinstance(model, LstmModel) else config.context
    inputs = torch.randn(30, 12)
    rows = [len(network.push(frame[None])) for frame in inputs]
    assert sum(rows) == 30 - needed
    assert rows == [0] * needed + [1] * (30 - needed)


def test_nothing_gives_nothing(model):
    network = online(model)
    assert network.push(torch.zeros(0, 12)).shape == (0, 5)
    assert network.finish(torch.zeros(0, 12)).shape == (0, 5)


def test_the_lstm_s_state_is_that_after_the_frames_read():
    torch.manual_seed(2)
    model = MODELS["lstm"]()
    inputs = torch.randn(10, 12)
    network = online(model)
    for piece in inputs.split(4):
        network.push(piece)
    with torch.inference_mode():
        _, expected = model(inputs[None])
    for found, wanted in zip(network.state, expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)


def test_others_need_the_whole_utterance():
    assert online(BlstmModel(BlstmConfig(**SIZES, layers=1))) is None
