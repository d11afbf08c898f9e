import pytest
import torch

from toolkit.train.corpus import Corpus, write_excluded
from toolkit.train.errors import TrainingDataError


def test_utterances_without_a_fitting_alignment_are_listed(make_stores, tmp_path):
    stores = make_stores([30, 20, 10, 25])
    del stores.alignments.targets["utt001"]
    stores.alignments.targets["utt002"] = torch.zeros(8, dtype=torch.int32)
    corpus = Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)
    assert [u.name for u in corpus.utterances] == ["utt000", "utt003"]
    write_excluded(tmp_path / "excluded.tsv", corpus.excluded)
    assert (tmp_path / "excluded.tsv").read_text() == (
        "utt001\tno alignment\nutt002\talignment of 8 frames, features of 10\n"
    )
    corpus.require(max_excluded=0.5)
    with pytest.raises(TrainingDataError, match=r"2 of 4 utterances.*utt001 \(no alignment\)"):
        corpus.require(max_excluded=0.4)


def test_nothing_left_is_refused_at_any_limit(make_stores):
    stores = make_stores([30])
    stores.alignments.targets.clear()
    corpus = Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)
    with pytest.raises(TrainingDataError, match="1 of 1"):
        corpus.require(max_excluded=1.0)


def test_targets_of_another_tree_are_refused(make_stores):
    stores = make_stores([30, 30], num_targets=5)
    stores.alignments.targets["utt001"][7] = 5
    with pytest.raises(TrainingDataError, match=r"utt001.*target 5, but there are only 5"):
        Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)
    stores.alignments.targets["utt001"][7] = -1
    with pytest.raises(TrainingDataError, match=r"utt001.*target -1, but there are only 5"):
        Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)


def test_counts_are_of_the_selected_utterances_in_all_stores(make_stores):
    first, second = make_stores([30, 20]), make_stores([10, 12], seed=1)
    sources = [(first.features, first.alignments), (second.features, second.alignments)]
    corpus = Corpus(sources, first.normaliser, 5, names=["utt001"])
    assert [(u.source, u.frames) for u in corpus.utterances] == [(0, 20), (1, 12)]
    targets = torch.cat([first.alignments.load("utt001"), second.alignments.load("utt001")])
    assert corpus.counts.tolist() == [int((targets == c).sum()) for c in range(5)]


def test_loading_normalises_with_the_state_before_the_utterance(make_stores):
    stores = make_stores([30])
    stores.features.cmn_state = lambda name: 2.0
    corpus = Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)
    features, targets = corpus.load(corpus.utterances[0])
    torch.testing.assert_close(features, (stores.features.features["utt000"] + 2).half())
    assert torch.equal(targets, stores.alignments.load("utt000"))
