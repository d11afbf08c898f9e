import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.train.ctc.objective import CtcLoss, ctc_losses
from toolkit.train.ctc.readers import CtcBatch


def collapse(path, blank):
    return [s for s, _ in itertools.groupby(path) if s != blank]


def brute_force(log_probs, labels, blank):
    """Minus the log of the summed probability of all C ** T paths that collapse to the labels."""
    frames, size = log_probs.shape
    total = 0.0
    for path in itertools.product(range(size), repeat=frames):
        if collapse(path, blank) == labels:
            total += math.exp(sum(log_probs[t, s].item() for t, s in enumerate(path)))
    return -math.log(total) if total else math.inf


def distributions(rows, frames, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, frames, size, generator=generator, dtype=torch.float64)
    return logits.log_softmax(-1)


def padded(sequences):
    longest = max(1, max(map(len, sequences)))
    return torch.tensor([[*s, *[1] * (longest - len(s))] for s in sequences])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=3),
    st.integers(0, 2),
    st.integers(0, 10_000),
)
def test_the_loss_equals_the_sum_over_all_paths(sequences, blank, seed):
    symbols = [s for s in range(3) if s != blank]
    sequences = [[symbols[i] for i in s] for s in sequences]
    lengths = torch.tensor([4, 5, 2][: len(sequences)])
    log_probs = distributions(len(sequences), 5, 3, seed)
    sizes = torch.tensor(list(map(len, sequences)))
    losses, possible = ctc_losses(log_probs, lengths, padded(sequences), sizes, blank)
    for row, labels in enumerate(sequences):
        expected = brute_force(log_probs[row, : lengths[row]], labels, blank)
        assert bool(possible[row]) == math.isfinite(expected)
        assert losses[row].item() == pytest.approx(expected if possible[row] else 0.0)


class Given(torch.nn.Module):
    """A model whose logits are its parameters."""

    def __init__(self, logits, lengths):
        super().__init__()
        self.logits, self.lengths = torch.nn.Parameter(logits.clone()), lengths

    def forward(self, inputs, lengths):
        return self.logits.log_softmax(-1), self.lengths


def batch(sequences):
    rows = len(sequences)
    return CtcBatch(
        ids=[str(i) for i in range(rows)],
        inputs=torch.zeros(rows, 1, 1),
        input_lengths=torch.ones(rows, dtype=torch.int64),
        labels=padded(sequences),
        label_lengths=torch.tensor(list(map(len, sequences))),
        frames=rows,
    )


def test_too_short_utterances_are_counted_and_change_nothing():
    logits = distributions(4, 6, 4)
    lengths = torch.tensor([6, 2, 3, 0])  # row 1 has 3 labels, row 2 needs a blank, row 3 no frame
    sequences = [[0, 0, 1], [0, 1, 2], [1, 1, 2], []]
    model = Given(logits, lengths)
    loss, stats = CtcLoss(blank=3)(model, batch(sequences))
    loss.backward()
    alone = Given(logits[:1], lengths[:1])
    alone_loss, alone_stats = CtcLoss(blank=3)(alone, batch(sequences[:1]))
    alone_loss.backward()
    assert stats["weight"] == alone_stats["weight"] == 1
    assert (stats["excluded"], alone_stats["excluded"]) == (3, 0)
    torch.testing.assert_close(loss, alone_loss)
    torch.testing.assert_close(model.logits.grad[:1], alone.logits.grad)
    assert (model.logits.grad[1:] == 0).all()


def test_a_batch_without_any_alignment_has_loss_0():
    model = Given(distributions(1, 2, 4), torch.tensor([2]))
    loss, stats = CtcLoss(blank=3)(model, batch([[0, 1, 2]]))
    (loss / stats["weight"]).backward()
    assert loss == 0
    assert (model.logits.grad == 0).all()


def test_a_batch_without_labels_has_the_loss_of_blanks():
    log_probs, lengths = distributions(2, 4, 3), torch.tensor([4, 2])
    none = torch.zeros(2, 0, dtype=torch.int64)
    losses, possible = ctc_losses(log_probs, lengths, none, torch.tensor([0, 0]), 2)
    assert possible.all()
    expected = [-log_probs[row, :frames, 2].sum() for row, frames in enumerate(lengths.tolist())]
    assert torch.allclose(losses, torch.stack(expected))


def test_loss_and_statistics_are_weighted_by_utterances():
    sequences = [[0, 1], [2], [0, 1, 2, 0, 1, 2]]
    model = Given(distributions(3, 5, 4), torch.tensor([5, 5, 5]))
    utterances = CtcLoss(3, "utterances")(model, batch(sequences))
    labels = CtcLoss(3, "labels")(model, batch(sequences))
    assert utterances[1]["weight"] == 2
    assert labels[1]["weight"] == 3
    assert utterances[0] == labels[0]


def test_gradient_against_finite_differences():
    lengths = torch.tensor([5, 4])
    sequences = [[0, 0], [1, 2]]

    def loss(logits):
        sizes = torch.tensor([2, 2])
        return ctc_losses(logits.log_softmax(-1), lengths, padded(sequences), sizes, 3)[0]

    assert torch.autograd.gradcheck(loss, distributions(2, 5, 4).requires_grad_())


def two_views(sequences):
    return CtcBatch.of_views([batch(sequences)] * 2)


def test_views_have_the_loss_of_the_paper():
    logits, lengths = distributions(4, 5, 4), torch.tensor([5, 3, 5, 3])
    sequences = [[0, 1], [2]]
    loss, stats = CtcLoss(blank=3, consistency=0.2)(Given(logits, lengths), two_views(sequences))
    expected = 0.0
    for row in range(4):
        log_probs, other_view = logits[row, : lengths[row]], logits[(row + 2) % 4, : lengths[row]]
        divergence = (other_view.exp() * (other_view - log_probs)).sum().item()
        expected += brute_force(log_probs, sequences[row % 2], 3) + 0.2 * divergence
    assert loss.item() == pytest.approx(expected)
    assert stats["weight"] == stats["utterances"] == 4


def test_one_view_has_no_divergence():
    model = Given(distributions(1, 5, 4), torch.tensor([5]))
    without_consistency, stats = CtcLoss(blank=3)(model, batch([[0]]))
    regularised, _ = CtcLoss(blank=3, consistency=0.2)(model, batch([[0]]))
    assert torch.equal(without_consistency, regularised)
    assert "divergence" not in stats
