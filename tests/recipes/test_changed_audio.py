"""Audio that is replaced in place is noticed, and nothing is done that need not be."""

import json
import os
import shutil

import pytest

from tests.opened_files import opened_files
from tests.recipes.small_recipe import ALL, SPLITS, noise
from toolkit.features.shards import SHARDS, FeatureStore, features_path


@pytest.fixture
def extracted(small):
    """Return the speakers whose shards have been extracted since the last call; others are linked.

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

    before = files()

    def changed():
        nonlocal before
        now = files()
        speakers = sorted(speaker for speaker, file in now.items() if file != before[speaker])
        before = now
        return speakers

    assert [*before] == ["ann", "ben", "cleo", "dora", "emil"]
    return changed


def marker(small, stage):
    return json.loads((small.exp / "stages" / f"{stage:02d}.json").read_text())


def test_of_a_replaced_file_the_shard_alone_is_extracted_again(small, extracted):
    store = FeatureStore(small.exp / "fbank" / "train")
    before = {id: store.load(id) for id in store.ids}
    path = small.corpus / "wav" / "ben" / "1.wav"
    size = path.stat().st_size
    noise(path, seed=99)
    assert path.stat().st_size == size
    states = small.states()
    changed = "stale: input audio that `data/train.jsonl` names changed"
    assert changed in states[3]
    assert changed in states[6]
    assert " done " in states[4]
    result = small.run()
    # The texts are as they were, so stage 4 is not run; what is trained on the features is.
    assert result.ran == [2, 3, 6, 7]
    assert extracted() == ["ben"]
    store = FeatureStore(small.exp / "fbank" / "train")
    same = {id: store.load(id).equal(before[id]) for id in store.ids}
    assert len(same) == 6
    assert len([id for id, equal in same.items() if not equal]) == 1
    made = small.made()
    assert small.run().ran == []
    assert extracted() == []
    assert small.run("--force", 6).ran == [6]
    assert extracted() == ["ann", "ben", "cleo", "dora", "emil"]
    assert small.made() == made


def test_what_reads_another_split_is_not_run(small, extracted):
    noise(small.corpus / "wav" / "emil" / "0.wav", seed=99)
    assert small.run().ran == [2, 3, 6]
    assert extracted() == ["emil"]


@pytest.mark.parametrize("touch", [os.utime, lambda path: copied(path)])
def test_touched_or_copied_audio_is_the_same(small, touch):
    for path in small.corpus.glob("wav/*/*.wav"):
        touch(path)
    states = small.states()
    assert [*states] == ALL
    assert all(" done " in row for row in states.values()), states
    assert small.run().ran == []


def copied(path):
    """Put a copy in the place of a file, with times and inode of its own."""
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
    """Features are of audio that libsndfile opens itself."""
    with opened_files() as opened:
        assert small.run().ran == []
        small.run("--force", 6)
    assert any(path.endswith(".json") for path in opened)
    assert not [path for path in opened if path.endswith(".wav")]


def test_shards_of_other_code_are_not_taken_over(small, extracted):
    path = small.exp / "stages" / "06.json"
    plain = json.loads(path.read_text())
    plain["attempts"][0]["code"]["versions"]["numpy"] = "0.1"
    path.write_text(json.dumps(plain))
    noise(small.corpus / "wav" / "ben" / "1.wav", seed=99)
    small.run()
    assert extracted() == ["ann", "ben", "cleo", "dora", "emil"]
    assert len(marker(small, 6)["attempts"]) == 1


def test_damaged_shards_are_not_taken_over(small, extracted):
    tar = small.exp / "fbank" / "train" / "shards" / "features.000000.tar"
    content = bytearray(tar.read_bytes())
    content[1000] ^= 1
    tar.write_bytes(content)
    assert extracted() == ["ann"]  # the damage
    assert small.run().ran == [6]
    assert extracted() == ["ann", "ben", "cleo", "dora", "emil"]


def test_the_marker_names_the_attempts_that_made_the_shards_taken_over(small):
    plain = marker(small, 6)
    plain["attempts"][0]["started"] = "2001-02-03T04:05:06+00:00"  # not within the same second
    (small.exp / "stages" / "06.json").write_text(json.dumps(plain))
    noise(small.corpus / "wav" / "ben" / "1.wav", seed=99)
    small.run()
    attempts = marker(small, 6)["attempts"]
    assert attempts[:1] == plain["attempts"]
    assert len(attempts) == 2
    assert len(marker(small, 7)["attempts"]) == 1


def test_after_a_move_replaced_audio_is_noticed(small, extracted):
    shutil.move(small.corpus, small.folder / "moved")
    small.corpus = small.folder / "moved"
    assert small.run().ran == []
    noise(small.corpus / "wav" / "ben" / "1.wav", seed=99)
    assert small.run().ran == [2, 3, 6, 7]
    assert extracted() == ["ben"]
