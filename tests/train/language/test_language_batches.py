import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.train.language_model import SentenceBatches, Sentences

ROWS = [[3 + n, *[3] * (n % 7)] for n in range(60)]


def rows_of(batch):
    """Return the sentences of a batch after checking its layout."""
    sentences = []
    for row in range(len(batch.inputs)):
        inputs, targets = batch.inputs[row].tolist(), batch.targets[row].tolist()
        length = int(batch.lengths[row])
        assert batch.weights[row].tolist() == [1.0] * length + [0.0] * (len(inputs) - length)
        assert inputs[0] == 0
        assert targets[: length - 1] == inputs[1:length]
        assert targets[length - 1] == 1
        sentences.append(inputs[1:length])
    assert batch.frames == batch.weights.sum()
    return sentences


@given(
    st.lists(st.lists(st.integers(3, 9), max_size=12), min_size=1, max_size=40),
    st.integers(1, 40),
    st.integers(0, 3),
)
def test_every_sentence_once_in_every_epoch(rows, words, epoch):
    data = SentenceBatches(Sentences.of(rows), words, seed=5)
    batches = list(data.batches(epoch))
    assert len(batches) == data.num_steps(epoch)
    assert sorted(row for batch in batches for row in rows_of(batch)) == sorted(rows)
    assert sorted(row for batch in data for row in rows_of(batch)) == sorted(rows)
    for batch in batches:
        assert batch.inputs.numel() <= words or len(batch.inputs) == 1


def ids(batches):
    return [batch.ids for batch in batches]


def test_the_order_follows_from_seed_and_epoch_and_can_be_resumed():
    data = SentenceBatches(Sentences.of(ROWS), 24, seed=5)
    whole = ids(data.batches(1))
    assert ids(data.batches(1, start=3)) == whole[3:]
    assert ids(data.batches(0)) != whole
    assert ids(SentenceBatches(Sentences.of(ROWS), 24, seed=6).batches(1)) != whole
    # sentences of one length meet others in other epochs
    assert {tuple(x) for x in ids(data.batches(0))} != {tuple(x) for x in whole}


def test_ranks_share_an_epoch():
    data = SentenceBatches(Sentences.of(ROWS), 24, seed=5)
    whole = ids(data.batches(2))
    for rank in range(2):
        assert ids(data.batches(2, 1, rank, 2)) == whole[: len(whole) // 2 * 2][rank::2][1:]


def test_lengths_in_a_batch_are_alike():
    data = SentenceBatches(Sentences.of(ROWS), 24, seed=5)
    padding = sum(batch.inputs.numel() - batch.frames for batch in data.batches(0))
    assert padding < 0.1 * sum(len(row) + 1 for row in ROWS)
    assert np.sum(data.num_steps(0)) == pytest.approx(
        sum(len(row) + 1 for row in ROWS) / 24, rel=0.4
    )
