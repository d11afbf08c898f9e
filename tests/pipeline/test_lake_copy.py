"""A copy of a lake has the same bytes."""

import json

import pytest

from local.farfield.sets import write_lake
from tests.recipes.test_unlabelled import cut
from toolkit.pipeline.lake import LakeError, copy_lake, open_lake
from toolkit.pipeline.objects import ObjectStore


@pytest.fixture
def lake(tmp_path):
    (tmp_path / "lake/audio").mkdir(parents=True)
    for number in range(20):
        (tmp_path / f"lake/audio/{number}.flac").write_bytes(b"%d" % number)
    return write_lake([cut(n, 2.0) for n in range(20)], ObjectStore(), str(tmp_path / "lake"))


def test_a_copy_has_the_same_metadata_and_audio(lake, tmp_path):
    store, url = ObjectStore(), f"memory://{tmp_path.name}"
    copied = copy_lake(store, lake.url, url)
    assert open_lake(store, url) == copied
    assert copied.buckets == lake.buckets
    for ref, copy in zip(lake.objects, copied.objects, strict=True):
        assert (ref.size, ref.digest, ref.about) == (copy.size, copy.digest, copy.about)
    assert store.get(f"{url}/audio/7.flac") == b"7"
    assert store.get(f"{url}/lake.json") == store.get(f"{lake.url}/lake.json")
    bytes_written = store.counts.bytes_written
    copy_lake(store, lake.url, url)
    metadata = sum(ref.size for ref in lake.objects) + len(store.get(f"{url}/lake.json"))
    assert store.counts.bytes_written == bytes_written + metadata  # no audio


def test_unreadable_metadata_and_audio_are_left_to_the_steps(lake, tmp_path, caplog):
    store, ref = ObjectStore(), lake.objects[0]
    content = b"nonsense\n" + store.get(ref)
    damaged_ref = store.put(ref.path, content, ref.about)
    type(lake)(lake.url, (damaged_ref, *lake.objects[1:]), lake.buckets).save(store)
    (tmp_path / "lake/audio/7.flac").unlink()
    url = f"memory://{tmp_path.name}-some"
    copied = copy_lake(store, lake.url, url)
    assert store.get(copied.objects[0]) == content
    assert "audio/7.flac: no such audio file" in caplog.text
    assert store.get(f"{url}/audio/8.flac") == b"8"
    assert store.size(f"{url}/audio/7.flac") is None


@pytest.mark.parametrize("audio", ["/etc/hostname", "../audio/7.flac", "s3://other/7.flac"])
def test_audio_outside_the_lake_is_refused(lake, audio, tmp_path):
    store, ref = ObjectStore(), lake.objects[0]
    first, *remaining_lines = store.get(ref).splitlines(keepends=True)
    changed = json.dumps(json.loads(first) | {"audio": audio}).encode() + b"\n"
    changed_ref = store.put(ref.path, b"".join([changed, *remaining_lines]), ref.about)
    type(lake)(lake.url, (changed_ref, *lake.objects[1:]), lake.buckets).save(store)
    with pytest.raises(LakeError, match="lies outside the lake"):
        copy_lake(store, lake.url, f"memory://{tmp_path.name}")
