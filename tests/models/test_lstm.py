import pytest
import torch

from toolkit.models.config import BlstmConfig, LstmConfig, TdnnfConfig
from toolkit.models.lstm import BlstmModel, LstmModel, with_lookahead
from toolkit.models.scorer import log_posteriors
from toolkit.models.tdnnf import TdnnfModel

SMALL = LstmConfig(input_dim=6, output_dim=7, hidden=8, layers=2, lookahead=3)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return LstmModel(SMALL).double().eval()


def inputs(rows, frames, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, frames, SMALL.input_dim, generator=generator, dtype=torch.float64)


def test_paper_size():
    # C6: about 24 million weights; 5 layers of 768 with 192 inputs and 3,183 senones
    model = LstmModel(LstmConfig())
    weights = 4 * 768 * (192 + 768 + 4 * (768 + 768)) + 768 * 3183
    biases = 5 * 8 * 768 + 3183
    assert sum(p.numel() for p in model.parameters()) == weights + biases
    assert 24e6 < weights < 25e6


def test_output_n_is_read_at_input_n_plus_lookahead(model):
    x = inputs(2, 13)
    logits, _ = model(x)
    assert logits.shape == (2, 10, 7)
    hidden, _ = model.lstm(x)
    for n in range(10):
        torch.testing.assert_close(logits[:, n], model.output(hidden[:, n + 3]))


def test_output_n_depends_on_inputs_up_to_n_plus_3_and_no_further(model):
    x = inputs(1, 13).requires_grad_()
    logits, _ = model(x)
    for n in range(10):
        (gradient,) = torch.autograd.grad(logits[0, n].sum(), x, retain_graph=True)
        reached = gradient[0].abs().sum(dim=1) > 0
        assert reached[: n + 4].all()
        assert not reached[n + 4 :].any()


def test_pieces_give_the_outputs_of_the_whole_utterance(model):
    x = inputs(2, 20)
    whole, whole_state = model(x)
    parts, state = [], None
    for begin, end in ((0, 5), (5, 6), (6, 14), (14, 20)):
        logits, state = model(x[:, begin:end], state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    torch.testing.assert_close(state, whole_state)


def test_padding_changes_nothing(model):
    x = inputs(2, 20)
    padded = x.clone()
    padded[1, 12:] = 1e6
    whole, _ = model(padded)
    alone, _ = model(x[1:, :12])
    torch.testing.assert_close(whole[1:, :9], alone)


@pytest.mark.parametrize("lookahead", [0, 3])
def test_log_posteriors_of_a_ragged_batch_are_those_of_each_utterance(lookahead):
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(6, 7, hidden=8, layers=2, lookahead=lookahead, dropout=0.5))
    utterances = [inputs(1, frames, seed=frames)[0].float() for frames in (9, 1, 14)]
    batch = log_posteriors(model.train(), utterances)
    for features, batched in zip(utterances, batch, strict=True):
        assert batched.shape == (len(features), 7)
        extended = torch.cat([features, *[features[-1:]] * lookahead])
        expected = model(extended[None])[0][0].log_softmax(-1)
        torch.testing.assert_close(batched, expected)
        torch.testing.assert_close(batched.exp().sum(1), torch.ones(len(features)))


def test_utterances_without_frames_have_no_outputs():
    networks = (
        LstmModel(LstmConfig(6, 5, hidden=8, layers=1, lookahead=2)),
        BlstmModel(BlstmConfig(6, 5, hidden=8, layers=1)),
        TdnnfModel(TdnnfConfig(6, 5, hidden=8, bottleneck=4, strides=(1, 3), final=4)),
    )
    empty, x = torch.zeros(0, 6), torch.randn(4, 6)
    for model in networks:
        for batch in ([empty], [empty, empty], [empty, x]):
            outputs = log_posteriors(model, batch)
            assert [row.shape for row in outputs] == [(len(row), 5) for row in batch]


def test_with_lookahead_repeats_the_last_frame():
    x = torch.tensor([[1.0], [2.0]])
    assert with_lookahead(x, 3).flatten().tolist() == [1, 2, 2, 2, 2]
    assert with_lookahead(x, 0) is x


@pytest.mark.parametrize(
    "changes",
    [{"hidden": 0}, {"layers": 0}, {"lookahead": -1}, {"dropout": 1.0}, {"output_dim": 0}],
)
def test_impossible_sizes_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        LstmConfig(**changes)
