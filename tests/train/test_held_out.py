from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.features.augment import original_id
from toolkit.train.corpus import (
    MAX_SHARE,
    MIN_SPEAKERS,
    select_held_out,
    split_by_speaker,
    split_held_out,
)


def test_held_out_does_not_depend_on_order_and_takes_at_most_a_tenth():
    names = [f"speaker{i:02d}-{j}" for i in range(10) for j in range(5)]
    chosen = select_held_out(names, 3)
    assert len(chosen) == 3
    assert select_held_out(reversed(names), 3) == chosen
    assert select_held_out(names, 100) > chosen
    assert len(select_held_out(names, 100)) == 5
    assert select_held_out(names[:9], 100) == set()
    assert select_held_out(names, 0) == set()
    assert select_held_out([n for n in names if n not in chosen], 3).isdisjoint(chosen)
    fewer = [n for n in names if n in chosen or n < "speaker05"]
    assert select_held_out(fewer, 2) < chosen


def test_copies_of_held_out_utterances_are_not_trained_on():
    names = [f"u{i}{suffix}" for i in range(60) for suffix in ("", "_sp0.9", "_sp1.1_aug")]
    training, aside = split_held_out(names, 4)
    assert aside == select_held_out([f"u{i}" for i in range(60)], 4)
    assert training == {n for n in names if n.split("_")[0] not in aside}
    assert len(training) == 3 * 56


def test_copies_without_their_original_are_held_out_as_one():
    names = [f"u{i}_sp{speed}" for i in range(20) for speed in (0.9, 1.1)]
    training, aside = split_held_out(names, 2)
    assert {n.split("_")[1] for n in aside} == {"sp0.9"}
    assert len(training) == 36
    assert not {n.split("_")[0] for n in aside} & {n.split("_")[0] for n in training}


def corpus(speakers, utterances, suffixes=("", "_sp0.9", "_sp1.1_aug")):
    """Speaker by utterance; the speaker of a copy has its suffix, as `augmented` makes it."""
    return {
        f"s{s:03d}-{u}{suffix}": f"s{s:03d}{suffix}"
        for s in range(speakers)
        for u in range(utterances)
        for suffix in suffixes
    }


@pytest.mark.parametrize(
    ("speakers", "utterances", "number", "num_held_out"),
    [
        (8, 10, 100, 1),
        (12, 50, 100, 1),
        (57, 13, 100, 7),
        (32, 40, 100, 4),
        (200, 5, 100, 20),
        (2000, 100, 100, 10),
        (MIN_SPEAKERS, 1, 100, 1),
    ],
)
def test_about_ten_speakers_or_an_eighth_are_held_out(speakers, utterances, number, num_held_out):
    split = split_by_speaker(corpus(speakers, utterances), number)
    assert len(split.speakers) == num_held_out
    assert len(split.valid_names) == num_held_out * utterances
    assert split.num_speakers == speakers


@given(st.lists(st.integers(1, 12), min_size=MIN_SPEAKERS, max_size=40), st.integers(0, 3))
def test_no_speaker_of_held_out_utterances_is_trained_on_in_any_copy(sizes, seed):
    suffixes = ("", "_sp0.9", "_sp1.1_aug")
    speakers = {
        f"{s}-{u}{suffix}": f"{s}{suffix}"
        for s, size in enumerate(sizes)
        for u in range(size)
        for suffix in suffixes
    }
    split = split_by_speaker(speakers, 20, seed)
    held_out_speakers = {speakers[name] for name in split.valid_names}
    assert held_out_speakers == set(split.speakers) != set()
    assert not {original_id(speakers[name]) for name in split.train} & held_out_speakers
    assert split.valid_names == {n for n, s in speakers.items() if s in held_out_speakers}
    train_names = {n for n, s in speakers.items() if original_id(s) not in held_out_speakers}
    assert split.train == train_names
    assert len(split.valid_names) <= MAX_SHARE * sum(sizes)
    assert split_by_speaker(dict(reversed(speakers.items())), 20, seed) == split
    originals = {n: s for n, s in speakers.items() if n == original_id(n)}
    assert split_by_speaker(originals, 20, seed).speakers == split.speakers


def test_another_seed_holds_out_other_speakers():
    speakers = corpus(100, 10)
    chosen = {split_by_speaker(speakers, 100, seed).speakers for seed in range(5)}
    assert len(chosen) == 5
    few = corpus(3, 40)
    assert split_by_speaker(few, 10).valid_names == split_held_out(few, 10)[1]
    assert split_by_speaker(few, 10, seed=1).valid_names == split_held_out(few, 10, seed=1)[1]
    assert split_by_speaker(few, 10, seed=1).valid_names != split_by_speaker(few, 10).valid_names


def test_names_of_one_length_are_split_differently_by_each_seed():
    """A seed that only shifts the checksum changes all of them by the same bits."""
    names = [f"speaker-{number:03d}" for number in range(200)]
    chosen = [split_held_out(names, 20, seed)[1] for seed in range(40)]
    shared = [len(first & second) for first, second in combinations(chosen, 2)]
    assert max(shared) < 12
    assert 1.5 < sum(shared) / len(shared) < 2.5  # a tenth of 20


def test_with_few_speakers_utterances_are_held_out_and_it_is_reported():
    split = split_by_speaker(corpus(MIN_SPEAKERS - 1, 20), 10)
    assert (split.speakers, split.num_speakers, len(split.valid_names)) == ((), 7, 10)
    assert "10 utterances held out, of speakers who are trained on (7 speakers" in split.describe()
    enough = split_by_speaker(corpus(MIN_SPEAKERS, 20), 10)
    (speaker,) = enough.speakers
    assert enough.describe() == f"20 utterances held out, of whole speakers (1 of 8): {speaker}"


def test_nothing_is_held_out_without_a_number():
    speakers = corpus(20, 5)
    split = split_by_speaker(speakers, 0)
    assert (split.train, split.valid_names, split.speakers) == (set(speakers), set(), ())
    assert split.describe() == "no utterances are held out"


def test_without_originals_speakers_are_counted_by_copies():
    speakers = corpus(16, 4, suffixes=("_sp0.9", "_sp1.1"))
    split = split_by_speaker(speakers, 100)
    assert len(split.speakers) == 2
    assert all(name.endswith("_sp0.9") for name in split.valid_names)
    assert len(split.valid_names) == 8
    assert len(split.train) == 2 * 14 * 4
