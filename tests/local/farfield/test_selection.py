from types import SimpleNamespace

import pytest

from local.farfield.config import FarfieldConfig, Placement
from local.farfield.rooms import FarfieldError
from local.farfield.selection import DAY, FIRST_DAY, creation_times, select_utterances
from toolkit.corpus.manifest import make_cut, speaker_of

SECONDS = 3600


def cut(id, speaker, seconds=36.0, **more):
    from lhotse import Recording
    from lhotse.audio import AudioSource

    source = AudioSource(type="file", channels=[0], source=f"{id}.flac")
    recording = Recording(id, [source], 16000, int(16000 * seconds), seconds)
    return make_cut(id, recording, f"TEXT OF {id}", speaker, **more)


def speakers(prefix, count, utterances=10):
    return [
        cut(f"{prefix}{s}-{u:02d}", f"{prefix}{s}") for s in range(count) for u in range(utterances)
    ]


@pytest.fixture
def parts():
    """A tenth of an hour per speaker."""
    return {
        "train": speakers("t", 10),
        "dev-clean": speakers("d", 2),
        "test-clean": speakers("e", 2),
    }


CONFIG = FarfieldConfig(
    labelled_hours=0.2, unlabelled_hours=0.5, val_hours=0.1, test_hours=0.04, array_hours=0.01
)


def by_split(selection):
    sets = {}
    for utterance in selection.utterances:
        sets.setdefault(utterance.split, []).append(utterance)
    return sets


def speakers_of(utterances):
    return {speaker_of(u.source) for u in utterances}


def test_sets_have_different_speakers_and_the_requested_hours(parts):
    sets = by_split(select_utterances(parts, CONFIG))
    assert set(sets) == {"train", "unlabelled", "val", "DP1", "DP2", "DP3", "DP4", "DP5"}
    assert not speakers_of(sets["train"]) & speakers_of(sets["unlabelled"])
    assert len(speakers_of(sets["train"])) == 4
    assert speakers_of(sets["val"]) <= {"d0", "d1"}
    for number in range(1, 6):
        assert speakers_of(sets[f"DP{number}"]) <= {"e0", "e1"}
        assert len(sets[f"DP{number}"]) == 4
        assert sum(u.array for u in sets[f"DP{number}"]) == 1
    hours = {
        name: sum(u.source.duration for u in utterances) / SECONDS
        for name, utterances in sets.items()
    }
    assert hours["train"] == pytest.approx(0.2)
    assert hours["unlabelled"] == pytest.approx(0.5)
    assert hours["val"] == pytest.approx(0.1)
    pools = {u.split: u.pool for u in select_utterances(parts, CONFIG).utterances}
    assert pools == dict.fromkeys(("train", "unlabelled"), "train") | {"val": "val"} | {
        f"DP{number}": "test" for number in range(1, 6)
    }


def test_the_order_of_the_corpus_does_not_matter(parts):
    shuffled = {name: cuts[::-1] for name, cuts in reversed(parts.items())}
    assert (
        select_utterances(shuffled, CONFIG).utterances
        == select_utterances(parts, CONFIG).utterances
    )


def test_test_utterances_are_at_the_requested_number_of_placements(parts):
    utterances = [u for u in select_utterances(parts, CONFIG).utterances if u.pool == "test"]
    assert (
        len({u.source.id for u in utterances}) == len({u.id for u in utterances}) == len(utterances)
    )
    config = FarfieldConfig(test_hours=0.04, test_placements=5)
    sets = by_split(select_utterances(parts, config))
    source_ids = [{u.source.id for u in sets[name]} for name in config.placements]
    assert all(ids == source_ids[0] for ids in source_ids)
    assert len(source_ids[0]) == 4
    assert all(u.id == f"{u.source.id}-{u.split}" for u in sets["DP3"])


def test_shared_speakers_share_no_utterance(parts):
    config = FarfieldConfig(labelled_hours=0.2, unlabelled_hours=9.0, shared_speakers=True)
    sets = by_split(select_utterances(parts, config))
    assert speakers_of(sets["unlabelled"]) == {f"t{s}" for s in range(10)}
    ids = [{u.id for u in sets[name]} for name in ("train", "unlabelled")]
    assert not ids[0] & ids[1]
    assert len(ids[0] | ids[1]) == 100


def test_missing_parts_are_held_out_by_speaker():
    selection = select_utterances({"train": speakers("t", 10)}, FarfieldConfig(val_speakers=1))
    sets = by_split(selection)
    tested = speakers_of(u for u in selection.utterances if u.pool == "test")
    assert len(tested) == 3
    assert len(speakers_of(sets["val"])) == 1
    groups = [
        speakers_of(sets["train"]),
        speakers_of(sets["unlabelled"]),
        speakers_of(sets["val"]),
        tested,
    ]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 10


def test_unused_parts_are_left_out_and_not_trained_on(parts):
    config = FarfieldConfig(labelled_hours=9, unlabelled_hours=9, val="val*", test="dev*")
    selection = select_utterances(parts | {"train_dev": speakers("x", 1)}, config)
    assert speakers_of(selection.utterances) == {f"t{s}" for s in range(10)} | {"d0", "d1"}
    assert {speaker_of(cut) for cuts in selection.background.values() for cut in cuts} <= {
        f"t{s}" for s in range(10)
    }
    reason = "the part {} matches neither rooms.val nor rooms.test"
    expected = [(cut.id, reason.format("test-clean")) for cut in parts["test-clean"]]
    expected += [(cut.id, reason.format("train_dev")) for cut in speakers("x", 1)]
    assert selection.left_out == expected


def test_babble_has_other_speakers_than_the_utterances(parts):
    selection = select_utterances(parts, CONFIG)
    for pool in ("val", "test"):
        speakers = speakers_of(u for u in selection.utterances if u.pool == pool)
        assert not speakers & {speaker_of(cut) for cut in selection.background[pool]}


def test_unusable_utterances_are_listed(parts):
    parts["train"][3].duration = 0.0
    parts["train"].append(cut("t0-99", "t0", fault=("bad-audio", "no such file")))
    parts["test-clean"].append(cut("t1-00", "e0"))
    selection = select_utterances(parts, FarfieldConfig(labelled_hours=9, unlabelled_hours=9))
    listed = dict(selection.left_out)
    assert listed == {
        "t0-03": "no audio",
        "t0-99": "no such file",
        "t1-00": "another utterance has this id",
    }
    remaining_speakers = [
        speaker_of(u.source) for u in selection.utterances if u.source.id in listed
    ]
    assert remaining_speakers == ["e0"]  # parts are read in the order of their names


def test_creation_times_rise_with_each_speakers_ids():
    cuts = speakers("t", 3)
    times = creation_times(cuts[::-1], days=10, seed=1)
    for speaker in ("t0", "t1", "t2"):
        speaker_times = [times[c.id] for c in cuts if speaker_of(c) == speaker]
        assert speaker_times == sorted(speaker_times)
        assert len(set(speaker_times)) == 10
        assert speaker_times[0] >= FIRST_DAY
        assert speaker_times[-1] < FIRST_DAY + 10 * DAY
    assert times != creation_times(cuts, days=10, seed=2)


def test_speakers_in_two_sets_are_an_error(parts):
    parts["test-clean"].append(cut("x", "t3"))
    with pytest.raises(FarfieldError, match=r"speaker t3 .* train and in test: .*rooms\.test"):
        select_utterances(parts, CONFIG)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "`rooms.val_speakers=2` and `rooms.test_speakers=3`: .* `rooms.val` and `rooms.test`"),
        ({"dev": speakers("d", 1)}, "out `rooms.test_speakers=3`: .* with `rooms.test`$"),
    ],
)
def test_too_few_speakers_to_hold_out_are_an_error(more, message):
    few = 3 if more else 5
    with pytest.raises(FarfieldError, match=f"has {few} speakers, too few .*{message}"):
        select_utterances({"train": speakers("t", few)} | more, FarfieldConfig())
    select_utterances({"train": speakers("t", few + 2)} | more, FarfieldConfig())


def test_one_training_speaker_is_enough_if_speakers_are_shared():
    parts = {"train": speakers("t", 1, 60), "dev": speakers("d", 1), "test": speakers("e", 1)}
    hours = {"labelled_hours": 0.1, "unlabelled_hours": 0.3}
    sets = by_split(select_utterances(parts, FarfieldConfig(shared_speakers=True, **hours)))
    assert (len(sets["train"]), len(sets["unlabelled"])) == (10, 30)
    with pytest.raises(FarfieldError, match=r"for train: .*rooms\.shared_speakers=true"):
        select_utterances(parts, FarfieldConfig(**hours))


def test_an_empty_set_is_an_error(parts):
    with pytest.raises(FarfieldError, match="no utterance was selected for train, unlabelled"):
        select_utterances(parts | {"train": []}, CONFIG)
    with pytest.raises(FarfieldError, match="no utterance was selected for val"):
        select_utterances(parts, FarfieldConfig(val_hours=0.001))


GOOD = SimpleNamespace(
    spot="wall",
    t60_seconds=(0.3, 0.5),
    talker_metres=(1.0, 2.0),
    noise_metres=(1.0, 2.0),
    snr_db=(5.0, 10.0),
    playback_share=0.5,
    echo_db=(0.0, 5.0),
)


@pytest.mark.parametrize(
    "changes",
    [{"spot": "roof"}, {"snr_db": (9.0, 3.0)}, {"playback_share": 1.5}, {"t60_seconds": (0, 1)}],
)
def test_invalid_placements_are_refused(changes):
    Placement(**vars(GOOD))
    with pytest.raises(ValueError, match=next(iter(changes)).split("_")[0] + "|reverberation"):
        Placement(**vars(GOOD) | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"val_hours": 0.0},
        {"array_hours": -1.0},
        {"labelled_speakers": 1.0},
        {"test_placements": 6},
        {"train_rooms": 0},
        {"arrays": ("line-4",)},
        {"room_metres": ((5.0, 5.0, 3.0), (4.0, 6.0, 3.0))},
    ],
)
def test_invalid_settings_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        FarfieldConfig(**changes)
