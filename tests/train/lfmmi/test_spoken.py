"""Held-out utterances of transcribed and recognised speech."""

from types import SimpleNamespace

import pytest

from toolkit.train.errors import TrainingDataError
from toolkit.train.lfmmi import split_transcribed


def store(kind, speakers, each):
    names = [f"{kind}-{n}-{m}" for n in speakers for m in range(each)]
    return SimpleNamespace(shards=[names], speaker=lambda name: f"s{name.split('-')[1]}")


def phones(ids, transcribed):
    return SimpleNamespace(ids=ids, transcribed=transcribed)


def split_speech(speakers, number):
    transcribed, lake = store("told", range(speakers), 5), store("lake", range(200), 5)
    (transcribed_names,), (lake_names,) = transcribed.shards, lake.shards
    # Nothing was recognised in the last utterance of the lake.
    spoken = [phones(transcribed_names, True), phones(lake_names[:-1], False)]
    split = split_transcribed([transcribed, lake], spoken, number)
    assert split.valid_names <= set(transcribed_names)
    return split, set(transcribed_names), set(lake_names[:-1])


def test_only_transcribed_speech_is_held_out_with_its_speakers():
    split, transcribed_names, lake_names = split_speech(96, 20)
    assert 20 <= len(split.valid_names) < 60
    assert len(split.speakers) >= 4
    names_of_valid_speakers = {
        name for name in lake_names if f"s{name.split('-')[1]}" in split.speakers
    }
    assert names_of_valid_speakers
    train_names = (transcribed_names - split.valid_names) | (lake_names - names_of_valid_speakers)
    assert split.train == train_names


def test_with_few_speakers_utterances_are_held_out():
    split, transcribed_names, lake_names = split_speech(4, 2)
    assert len(split.valid_names) == 2
    assert split.train == (transcribed_names - split.valid_names) | lake_names


def test_nothing_is_held_out_by_default():
    split, transcribed_names, lake_names = split_speech(20, 0)
    assert split.train == transcribed_names | lake_names


def test_an_id_of_two_utterances_is_refused():
    """Both would be trained on the phones of one."""
    stores = [store("told", range(3), 2), store("told", range(2, 4), 2)]
    spoken = [
        phones(store.shards[0], is_transcribed)
        for store, is_transcribed in zip(stores, (1, 0), strict=True)
    ]
    with pytest.raises(TrainingDataError, match="2 utterance ids, such as told-2-0, are in two"):
        split_transcribed(stores, spoken, 0)
