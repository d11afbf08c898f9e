import pickle

import pytest
import torch

from toolkit.features.store import FeatureStore, StoreError


def test_gives_back_every_utterance(small_store):
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
        own = [name for name in store.ids if name.startswith(speaker)]
        for position, name in enumerate(own):
            earlier = [small_store.features[n].double() for n in own[:position]]
            state = store.state(name)
            assert state.frames == sum(map(len, earlier))
            expected = torch.cat(earlier).sum(0) if earlier else torch.zeros(4).double()
            torch.testing.assert_close(state.sum, expected, rtol=1e-14, atol=0)
        mean = torch.cat([small_store.features[n].double() for n in own]).mean(0)
        torch.testing.assert_close(store.speaker_mean(speaker), mean)
    assert store.speakers == ["anna", "bert", "carl"]


def test_lhotse_reads_it_without_us(small_store):
    from lhotse import CutSet

    cuts = list(CutSet.from_shar(in_dir=small_store.path / "shards"))
    assert [cut.id for cut in cuts] == small_store.store.ids
    for cut in cuts:
        x = torch.from_numpy(cut.load_features()).float()
        assert torch.equal(x, small_store.features[cut.id])
        assert cut.cmn_frames == small_store.store.state(cut.id).frames
        assert cut.load_audio().shape == (1, cut.num_samples)


def test_lhotse_reads_a_segment_of_a_recording(tmp_path, make_cut):
    from lhotse import CutSet

    from toolkit.features.frontend import FrontendConfig
    from toolkit.features.shards import write_shard

    cut = make_cut("long", seconds=3.0, start=1.25, end=2.0)
    x = torch.randn(75, 4).half().float()
    write_shard(tmp_path / "s", 0, [(cut, "a", x)], FrontendConfig(num_mel_bins=4))
    (read,) = CutSet.from_shar(in_dir=tmp_path / "s")
    assert torch.equal(torch.from_numpy(read.load_features()).float(), x)
    assert (read.load_audio() == cut.load_audio()).all()


def test_survives_pickling(small_store):
    again = pickle.loads(pickle.dumps(small_store.store))
    name = again.ids[-1]
    assert torch.equal(again.load(name), small_store.features[name])


def test_names_what_is_missing_or_damaged(small_store, tmp_path):
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
