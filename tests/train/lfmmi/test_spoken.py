"""Which utterances are held out of transcribed and recognised speech."""

from types import SimpleNamespace

import pytest

from toolkit.train.errors import TrainingDataError
from toolkit.train.lfmmi import split_transcribed


def store(kind, speakers, each):
    names = [f"{kind}-{n}-{m}" for n in speakers for m in range(each)]
    return SimpleNamespace(shards=[names], speaker=lambda name: f"s{name.split('-')[1]}")


def phones(ids, transcribed):
    return SimpleNamespace(ids=ids, transcribed=transcribed)


def divided(speakers, number):
    told, lake = store("told", range(speakers), 5), store("lake", range(200), 5)
    (known,), (heard,) = told.shards, lake.shards
    spoken = [phones(known, True), phones(heard[:-1], False)]  # in the last nothing was recognised
    split = split_transcribed([told, lake], spoken, number)
    assert split.valid_names <= set(known)
    return split, set(known), set(heard[:-1])


def test_only_transcribed_speech_is_valid_names_with_its_speakers():
    split, known, heard = divided(96, 20)
    assert 20 <= len(split.valid_names) < 60
    assert len(split.speakers) >= 4
    theirs = {name for name in heard if f"s{name.split('-')[1]}" in split.speakers}
    assert theirs
    assert split.train == (known - split.valid_names) | (heard - theirs)


def test_of_few_speakers_utterances_are_valid_names():
    split, known, heard = divided(4, 2)
    assert len(split.valid_names) == 2
    assert split.train == (known - split.valid_names) | heard


def test_nothing_is_valid_names_unless_asked_for():
    split, known, heard = divided(20, 0)
    assert split.train == known | heard


def test_an_id_of_two_utterances_is_refused():
    """Either would be trained on the phones of one."""
    stores = [store("told", range(3), 2), store("told", range(2, 4), 2)]
    spoken = [phones(store.shards[0], told) for store, told in zip(stores, (1, 0), strict=True)]
    with pytest.raises(TrainingDataError, match="2 utterance ids, such as told-2-0, are in two"):
        split_transcribed(stores, spoken, 0)
