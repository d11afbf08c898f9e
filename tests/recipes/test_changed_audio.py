"""Replaced audio is noticed, and only the affected shards and stages run again."""

import json
import os
import shutil

import pytest

from tests.opened_files import opened_files
from tests.recipes.small_recipe import ALL, SPLITS, noise
from toolkit.features.shards import SHARDS, FeatureStore, features_path


@pytest.fixture
def extracted(small):
    """Return the speakers whose shards were extracted since the last call; others are linked.

    A shard has one speaker.
    """

    def files():
        stamps = {}
        for split in SPLITS:
            store = FeatureStore(small.exp / "fbank" / split)
            for number, ids in enumerate(store.shards):
                status = features_path(small.exp / "fbank" / split / SHARDS, number).stat()
                stamps[store.speaker(ids[0])] = (status.st_ino, status.st_mtime_ns)
        return stamps

    last_files = files()

    def changed():
        nonlocal last_files
        now = files()
        speakers = sorted(speaker for speaker, file in now.items() if file != last_files[speaker])
        last_files = now
        return speakers

    assert [*last_files] == ["ann", "ben", "cleo", "dora", "emil"]
    return changed


def marker(small, stage):
    return json.loads((small.exp / "stages" / f"{stage:02d}.json").read_text())


def test_replacing_a_file_reextracts_only_its_shard(small, extracted):
    store = FeatureStore(small.exp / "fbank" / "train")
    features_before = {id: store.load(id) for id in store.ids}
    path = small.corpus / "wav" / "ben" / "1.wav"
    size = path.stat().st_size
    noise(path, seed=99)
    assert path.stat().st_size == size
    states = small.states()
    changed = "stale: input audio files listed in `data/train.jsonl` changed"
    assert changed in states[3]
    assert changed in states[6]
    assert " done " in states[4]
    result = small.run()
    # The texts are as they were, so stage 4 is not run; what is trained on the features is.
    assert result.ran == [2, 3, 6, 7]
    assert extracted() == ["ben"]
    store = FeatureStore(small.exp / "fbank" / "train")
    same = {id: store.load(id).equal(features_before[id]) for id in store.ids}
    assert len(same) == 6
    assert len([id for id, equal in same.items() if not equal]) == 1
    contents = small.contents()
    assert small.run().ran == []
    assert extracted() == []
    assert small.run("--force", 6).ran == [6]
    assert extracted() == ["ann", "ben", "cleo", "dora", "emil"]
    assert small.contents() == contents


def test_a_stage_that_reads_another_split_does_not_run(small, extracted):
    noise(small.corpus / "wav" / "emil" / "0.wav", seed=99)
    assert small.run().ran == [2, 3, 6]
    assert extracted() == ["emil"]


@pytest.mark.parametrize("touch", [os.utime, lambda path: copy_in_place(path)])
def test_touched_or_copied_audio_is_the_same(small, touch):
    for path in small.corpus.glob("wav/*/*.wav"):
        touch(path)
    states = small.states()
    assert [*states] == ALL
    assert all(" done " in row for row in states.values()), states
    assert small.run().ran == []


def copy_in_place(path):
    """Replace a file by a copy with a new inode and new times."""
    shutil.copyfile(path, path.with_suffix(".copy"))
    os.replace(path.with_suffix(".copy"), path)
    os.utime(path, (1, 1))


def test_an_edit_that_keeps_size_and_time_is_noticed(small):
    path = small.corpus / "wav" / "ben" / "1.wav"
    status = path.stat()
    noise(path, seed=99)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert small.run().ran == [2, 3, 6, 7]
    assert small.run().ran == []


def test_audio_is_read_for_its_digest_once(small):
    """libsndfile opens the audio for features itself, so those reads are not counted."""
    with opened_files() as opened:
        assert small.run().ran == []
        small.run("--force", 6)
    assert any(path.endswith(".json") for path in opened)
    assert not [path for path in opened if path.endswith(".wav")]


def test_shards_of_other_code_are_not_reused(small, extracted):
    path = small.exp / "stages" / "06.json"
    stage_marker = json.loads(path.read_text())
    stage_marker["attempts"][0]["code"]["versions"]["numpy"] = "0.1"
    path.write_text(json.dumps(stage_marker))
    noise(small.corpus / "wav" / "ben" / "1.wav", seed=99)
    small.run()
    assert extracted() == ["ann", "ben", "cleo", "dora", "emil"]
    assert len(marker(small, 6)["attempts"]) == 1


def test_damaged_shards_are_not_reused(small, extracted):
    tar = small.exp / "fbank" / "train" / "shards" / "features.000000.tar"
    content = bytearray(tar.read_bytes())
    content[1000] ^= 1
    tar.write_bytes(content)
    assert extracted() == ["ann"]  # the damage
    assert small.run().ran == [6]
    assert extracted() == ["ann", "ben", "cleo", "dora", "emil"]


def test_the_marker_lists_the_attempts_that_wrote_the_reused_shards(small):
    stage_marker = marker(small, 6)
    # Not within the same second as the attempt below.
    stage_marker["attempts"][0]["started"] = "2001-02-03T04:05:06+00:00"
    (small.exp / "stages" / "06.json").write_text(json.dumps(stage_marker))
    noise(small.corpus / "wav" / "ben" / "1.wav", seed=99)
    small.run()
    attempts = marker(small, 6)["attempts"]
    assert attempts[:1] == stage_marker["attempts"]
    assert len(attempts) == 2
    assert len(marker(small, 7)["attempts"]) == 1


def test_after_a_move_replaced_audio_is_noticed(small, extracted):
    shutil.move(small.corpus, small.folder / "moved")
    small.corpus = small.folder / "moved"
    assert small.run().ran == []
    noise(small.corpus / "wav" / "ben" / "1.wav", seed=99)
    assert small.run().ran == [2, 3, 6, 7]
    assert extracted() == ["ben"]
