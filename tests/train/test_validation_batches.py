import torch

from toolkit.features.low_frame_rate import centre, stack
from toolkit.train import batches
from toolkit.train.batches import ValidationBatches, slices_within
from toolkit.train.corpus import Corpus

LENGTHS = [31, 2, 48, 1, 100, 17]


def make(make_stores, lengths=LENGTHS):
    stores = make_stores(lengths)
    return stores, Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)


def test_every_utterance_comes_once_whole_and_padded(make_stores):
    stores, corpus = make(make_stores)
    utterances = []
    for batch in ValidationBatches(corpus, lookahead=2):
        assert batch.frames == int(batch.weights.sum()) == int(batch.lengths.sum())
        for row, name in enumerate(batch.ids):
            raw = stores.features.features[name]
            low = stack(raw.half()).float()
            length = len(low)
            assert int(batch.lengths[row]) == length
            expected = torch.cat([low, low[-1:], low[-1:]])
            assert torch.equal(batch.inputs[row, : length + 2], expected)
            targets = stores.alignments.load(name)[centre(len(raw))]
            assert torch.equal(batch.targets[row, :length], targets.long())
            assert batch.weights[row].tolist() == [1.0] * length + [0.0] * (
                batch.weights.shape[1] - length
            )
            utterances.append(name)
    assert sorted(utterances) == sorted(stores.features.features)


def test_batches_are_bounded_and_can_be_gone_through_again(make_stores, monkeypatch):
    monkeypatch.setattr(batches, "VALIDATION_FRAMES", 34)
    _, corpus = make(make_stores)
    whole = ValidationBatches(corpus, lookahead=2)
    first = [batch.ids for batch in whole]
    assert first == [["utt004"], ["utt002", "utt000"], ["utt005", "utt001", "utt003"]]
    assert [batch.ids for batch in whole] == first


def test_an_empty_corpus_has_no_batches(make_stores):
    stores, _ = make(make_stores)
    nothing = Corpus([(stores.features, stores.alignments)], stores.normaliser, 5, names=[])
    assert list(ValidationBatches(nothing, lookahead=2)) == []


def test_batches_end_where_they_are_full_or_a_longer_row_follows():
    lengths = [9, 4, 4, 2, 2, 2, 5, 1, 12, 3, 3, 3]
    batches = [lengths[rows] for rows in slices_within(lengths, 8)]
    assert batches == [[9], [4, 4], [2, 2, 2], [5], [1], [12], [3, 3], [3]]
    assert slices_within([], 8) == []
