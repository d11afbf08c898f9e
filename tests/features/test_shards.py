"""The feature store, its tar files, and the division into shards."""

import io
import json
import pickle
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.features.shards import (
    FeatureStore,
    StoreError,
    TarWriter,
    number_of_shards,
    partition_by_size,
    read_members,
)


def test_a_store_returns_every_utterance(small_store):
    store = small_store.store
    assert store.ids == list(small_store.features)
    assert [len(shard) for shard in store.shards] == [6, 3]
    assert len(store) == 9
    assert store.ids[0] in store
    for name in reversed(store.ids):
        assert torch.equal(store.load(name), small_store.features[name])
        assert store.num_frames(name) == len(small_store.features[name])
        assert store.speaker(name) == name[:4]
        assert store.cut(name).supervisions == small_store.cuts[name].supervisions
        assert store.cut(name).start == small_store.cuts[name].start
    for name, x in store.iter():
        assert torch.equal(x, small_store.features[name])


def test_the_state_is_the_sum_of_the_speakers_earlier_frames(small_store):
    store = small_store.store
    for speaker in ("anna", "bert", "carl"):
        utterances = [name for name in store.ids if name.startswith(speaker)]
        for position, name in enumerate(utterances):
            earlier = [small_store.features[n].double() for n in utterances[:position]]
            state = store.cmn_state(name)
            assert state.frames == sum(map(len, earlier))
            expected = torch.cat(earlier).sum(0) if earlier else torch.zeros(4).double()
            torch.testing.assert_close(state.sum, expected, rtol=1e-14, atol=0)
        mean = torch.cat([small_store.features[n].double() for n in utterances]).mean(0)
        torch.testing.assert_close(store.speaker_mean(speaker), mean)
    assert store.speakers == ["anna", "bert", "carl"]


def test_lhotse_alone_reads_a_store(small_store):
    from lhotse import CutSet

    cuts = list(CutSet.from_shar(in_dir=small_store.path / "shards"))
    assert [cut.id for cut in cuts] == small_store.store.ids
    for cut in cuts:
        x = torch.from_numpy(cut.load_features()).float()
        assert torch.equal(x, small_store.features[cut.id])
        assert cut.cmn_frames == small_store.store.cmn_state(cut.id).frames
        assert cut.load_audio().shape == (1, cut.num_samples)


def test_lhotse_reads_a_segment_of_a_recording(tmp_path, make_cut):
    from lhotse import CutSet

    from toolkit.features.config import FrontendConfig
    from toolkit.features.shards import write_shard

    cut = make_cut("long", seconds=3.0, start=1.25, end=2.0)
    x = torch.randn(75, 4).half().float()
    write_shard(tmp_path / "s", 0, [(cut, "a", x)], FrontendConfig(num_mel_bins=4))
    (read,) = CutSet.from_shar(in_dir=tmp_path / "s")
    assert torch.equal(torch.from_numpy(read.load_features()).float(), x)
    assert (read.load_audio() == cut.load_audio()).all()


def test_survives_pickling(small_store):
    unpickled = pickle.loads(pickle.dumps(small_store.store))
    name = unpickled.ids[-1]
    assert torch.equal(unpickled.load(name), small_store.features[name])


def test_errors_name_missing_or_damaged_utterances(small_store, tmp_path):
    with pytest.raises(StoreError, match="nobody"):
        small_store.store.load("nobody")
    with pytest.raises(StoreError, match="nobody"):
        small_store.store.speaker_mean("nobody")
    with pytest.raises(StoreError, match="not a folder of finished features"):
        FeatureStore(tmp_path)
    tar = small_store.path / "shards" / "features.000001.tar"
    tar.write_bytes(tar.read_bytes()[:3000])
    with pytest.raises(StoreError, match=r"carl.*extract"):
        FeatureStore(small_store.path).load("carl.x/2")
    cuts = small_store.path / "shards" / "cuts.000001.jsonl"
    cuts.write_text(cuts.read_text()[:-20])
    with pytest.raises(StoreError, match=r"cuts\.000001\.jsonl"):
        FeatureStore(small_store.path)


NAMES = ["a", "b/c.d", "é", "x" * 95, "x" * 96, "x" * 99, "ü" * 80, "y" * 150]


def written_by_tarfile(items):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for id, array, manifest in items:
            content = io.BytesIO()
            np.save(content, array)
            for name, data in (
                (f"{id}.npy", content.getvalue()),
                (f"{id}.json", json.dumps(manifest).encode()),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def random_items(count=20):
    rng = np.random.default_rng(0)
    for number in range(count):
        shape = (int(rng.integers(0, 300)), int(rng.integers(1, 65)))
        array = rng.normal(size=shape).astype(rng.choice(["float16", "float32"]))
        yield NAMES[number % len(NAMES)], array, {"x": "y" * int(rng.integers(0, 900))}


@pytest.mark.parametrize("buffer_bytes", [1, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_writes_what_tarfile_and_numpy_write(count, buffer_bytes, monkeypatch):
    monkeypatch.setattr("toolkit.features.shards.BUFFER_BYTES", buffer_bytes)
    items = list(random_items(count))
    stream = io.BytesIO()
    writer = TarWriter(stream)
    for item in items:
        writer.add_array(*item)
    writer.close()
    assert stream.getvalue() == written_by_tarfile(items)


def test_finds_the_members_that_tarfile_finds():
    content = written_by_tarfile(random_items())
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        expected = [(m.name, m.offset, m.offset_data, m.size) for m in tar]
    assert list(read_members(io.BytesIO(content))) == expected


@pytest.mark.parametrize("cut", [100, 700, 5000])
def test_a_tar_that_is_cut_short_is_an_error(cut):
    content = written_by_tarfile(random_items(3))
    with pytest.raises(tarfile.TarError):
        list(read_members(io.BytesIO(content[:cut])))
    with pytest.raises(tarfile.TarError, match="not a tar"):
        list(read_members(io.BytesIO(b"nonsense" * 200)))


SIZES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(0.1, 50), min_size=1)


@given(SIZES, st.integers(1, 6))
def test_every_group_is_in_one_part_and_none_is_empty(sizes, count):
    parts = partition_by_size(sizes, count)
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    assert len(parts) == min(count, len(sizes))
    assert all(parts)


@given(SIZES, st.integers(1, 6))
def test_parts_differ_by_no_more_than_the_largest_group(sizes, count):
    loads = [sum(sizes[name] for name in part) for part in partition_by_size(sizes, count)]
    assert max(loads) - min(loads) <= max(sizes.values()) + 1e-9


@given(SIZES, st.integers(1, 6), st.randoms())
def test_the_order_of_the_groups_does_not_matter(sizes, count, random):
    items = list(sizes.items())
    random.shuffle(items)
    assert partition_by_size(dict(items), count) == partition_by_size(sizes, count)


@pytest.mark.parametrize(
    ("seconds", "hours", "shards"),
    [
        *[(0, 1, 1), (59, 1, 1), (60, 1, 1), (119, 1, 1), (120, 1, 2), (240, 1, 4), (7200, 1, 4)],
        *[(7200, 0.1, 20), (90, 0.005, 5), (36_000, 1, 10)],
    ],
)
def test_a_few_minutes_are_split_into_several_shards(seconds, hours, shards):
    assert number_of_shards(seconds, hours) == shards
