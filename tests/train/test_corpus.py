import pytest
import torch

from toolkit.train.corpus import Corpus, held_out, split_held_out, write_excluded
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
    with pytest.raises(TrainingDataError, match=r"utt001.*target 5 but there are 5"):
        Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)


def test_counts_are_of_the_selected_utterances_in_all_stores(make_stores):
    one, two = make_stores([30, 20]), make_stores([10, 12], seed=1)
    sources = [(one.features, one.alignments), (two.features, two.alignments)]
    corpus = Corpus(sources, one.normaliser, 5, names=["utt001"])
    assert [(u.source, u.frames) for u in corpus.utterances] == [(0, 20), (1, 12)]
    both = torch.cat([one.alignments.load("utt001"), two.alignments.load("utt001")])
    assert corpus.counts.tolist() == [int((both == c).sum()) for c in range(5)]


def test_loading_normalises_with_the_state_before_the_utterance(make_stores):
    stores = make_stores([30])
    stores.features.state = lambda name: 2.0
    corpus = Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)
    features, targets = corpus.load(corpus.utterances[0])
    torch.testing.assert_close(features, (stores.features.features["utt000"] + 2).half())
    assert torch.equal(targets, stores.alignments.load("utt000"))


def test_held_out_does_not_depend_on_order_and_takes_at_most_a_tenth():
    names = [f"speaker{i:02d}-{j}" for i in range(10) for j in range(5)]
    chosen = held_out(names, 3)
    assert len(chosen) == 3
    assert held_out(reversed(names), 3) == chosen
    assert held_out(names, 100) > chosen
    assert len(held_out(names, 100)) == 5
    assert held_out(names[:9], 100) == set()
    assert held_out(names, 0) == set()
    assert held_out([n for n in names if n not in chosen], 3).isdisjoint(chosen)
    fewer = [n for n in names if n in chosen or n < "speaker05"]
    assert held_out(fewer, 2) < chosen


def test_copies_of_held_out_utterances_are_not_trained_on():
    names = [f"u{i}{suffix}" for i in range(60) for suffix in ("", "_sp0.9", "_sp1.1_aug")]
    training, aside = split_held_out(names, 4)
    assert aside == held_out([f"u{i}" for i in range(60)], 4)
    assert training == {n for n in names if n.split("_")[0] not in aside}
    assert len(training) == 3 * 56


def test_copies_without_their_original_are_held_out_as_one():
    names = [f"u{i}_sp{speed}" for i in range(20) for speed in (0.9, 1.1)]
    training, aside = split_held_out(names, 2)
    assert {n.split("_")[1] for n in aside} == {"sp0.9"}
    assert len(training) == 36
    assert not {n.split("_")[0] for n in aside} & {n.split("_")[0] for n in training}
