"""Splits and their names."""

import random

import pytest

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError, empty_recording, make_cut, speaker_of, text_of
from toolkit.corpus.split import Splits, assemble, cap_hours, hold_out, hold_out_utterances, matches


def utterances(speakers, each=3, seconds=60.0):
    cuts = []
    for speaker in speakers:
        for number in range(each):
            id = f"{speaker}-{number}"
            cut = make_cut(id, empty_recording(f"/{id}.wav", id), "a word", speaker)
            cut.duration = seconds
            cuts.append(cut)
    return cuts


SPEAKERS = [f"s{number}" for number in range(12)]


def test_patterns_are_alternatives():
    assert matches("train-clean-100", "dev*, train-*")
    assert not matches("test-clean", "dev*,train*")


def test_hold_out_is_by_speaker_and_ignores_the_order_of_the_corpus():
    cuts = utterances(SPEAKERS)
    shuffled = random.Random(3).sample(cuts, len(cuts))
    results = []
    for order in (cuts, shuffled):
        train, held_out = hold_out(order, {"dev": 2, "test": 3})
        groups = [
            {speaker_of(cut) for cut in part} for part in (train, held_out["dev"], held_out["test"])
        ]
        assert [len(group) for group in groups] == [7, 2, 3]
        assert set.union(*groups) == set(SPEAKERS)
        assert len(train) + len(held_out["dev"]) + len(held_out["test"]) == len(cuts)
        results.append(groups)
    assert results[0] == results[1]


def test_rotations_hold_every_speaker_out_once():
    cuts = utterances(SPEAKERS)
    held_out_speakers = [
        speaker
        for rotation in range(4)
        for speaker in {speaker_of(c) for c in hold_out(cuts, {"test": 3}, rotation)[1]["test"]}
    ]
    assert sorted(held_out_speakers) == sorted(SPEAKERS)
    assert hold_out(cuts, {"test": 3}, 4)[1] == hold_out(cuts, {"test": 3}, 0)[1]


def test_holding_out_everybody_is_refused():
    with pytest.raises(ManifestError, match="cannot hold out 3 speakers of 3"):
        hold_out(utterances(SPEAKERS[:3]), {"dev": 1, "test": 2})


def test_utterances_are_held_out_by_their_ids():
    cuts = utterances(["only"], each=40)
    duplicated = [*cuts, cuts[7], *reversed(cuts)]
    train, held_out = hold_out_utterances(duplicated, ("dev", "test"), 0.1)
    ids = [{cut.id for cut in part} for part in (train, held_out["dev"], held_out["test"])]
    assert [len(part) for part in ids] == [32, 4, 4]
    assert set.union(*ids) == {cut.id for cut in cuts}
    assert len(train) + len(held_out["dev"]) + len(held_out["test"]) == len(duplicated)
    rotations = [hold_out_utterances(cuts, ("dev", "test"), 0.1, n)[1] for n in (0, 1, 5)]
    dev = [{cut.id for cut in splits["dev"]} for splits in rotations]
    assert dev[0] == ids[1]
    assert not dev[0] & dev[1]
    assert dev[2] == dev[0]


def test_one_speaker_is_divided_when_asked():
    parts = {"train": utterances(["only"], each=30)}
    with pytest.raises(ManifestError, match=r"corpus\.hold_out=utterances"):
        assemble(parts, CorpusConfig(), hold_out_test=True)
    splits = assemble(parts, CorpusConfig(hold_out="utterances"), hold_out_test=True)
    assert {name: len(cuts) for name, cuts in splits.items()} == {"train": 24, "dev": 3, "test": 3}
    with pytest.raises(ManifestError, match="cannot hold out 2 of 2 utterances"):
        hold_out_utterances(utterances(["only"], each=2), ("dev", "test"), 0.1)


def test_training_parts_are_merged_and_others_keep_their_names():
    parts = {
        "train-b": utterances(["b"]),
        "train-a": utterances(["a"]),
        "dev-clean": utterances(["c"]),
        "test-clean": utterances(["d"]),
        "notes": utterances(["e"]),
    }
    splits = assemble(parts, CorpusConfig())
    assert list(splits) == ["train", "dev-clean", "test-clean"]
    assert [cut.id for cut in splits["train"]] == ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"]
    assert text_of(splits["train"][0]) == "a word"


def test_missing_dev_and_test_are_held_out():
    parts = {"train": utterances(SPEAKERS)}
    assert list(assemble(parts, CorpusConfig())) == ["train", "dev"]
    splits = assemble(parts, CorpusConfig(dev_speakers=1, test_speakers=2), hold_out_test=True)
    assert [len(splits[name]) for name in ("train", "dev", "test")] == [27, 3, 6]


def test_no_training_part_is_named_with_what_there_is():
    with pytest.raises(ManifestError, match="found: dev, other"):
        assemble({"dev": utterances(["a"]), "other": []}, CorpusConfig())


def test_hours_cap_whole_utterances_and_nest():
    cuts = utterances(SPEAKERS)
    small = {cut.id for cut in cap_hours(cuts, 0.1)}
    large = {cut.id for cut in cap_hours(reversed(cuts), 0.2)}
    assert (len(small), len(large)) == (6, 12)
    assert small < large
    assert len(cap_hours(cuts, 100.0)) == len(cuts)


def test_purposes_follow_the_patterns_and_survive_the_disk(tmp_path):
    names = ["train", "dev-clean", "dev-other", "test-clean"]
    splits = Splits.of(names, CorpusConfig())
    assert splits == Splits("train", ("dev-clean", "dev-other"), ("test-clean",))
    assert splits.all == tuple(names)
    assert splits.decoded == tuple(names[1:])
    splits.save(tmp_path / "splits.json")
    assert Splits.load(tmp_path / "splits.json") == splits


def test_a_held_out_dev_is_tuned_on_whatever_the_pattern():
    assert Splits.of(["train", "dev", "test"], CorpusConfig(dev="valid*")).tune == ("dev",)
