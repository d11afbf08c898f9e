import resource

import numpy as np
import pytest
import torch

from toolkit.errors import ToolkitError
from toolkit.features.shards import FeatureStore, write_shard
from toolkit.kaldi import features
from toolkit.kaldi.archive import ArchiveError, entries, read_matrix
from toolkit.kaldi.features import (
    count_frames,
    cuts_without_audio,
    export_features,
    import_features,
)
from toolkit.kaldi.validate import data_dir_faults

kaldi = pytest.importorskip("kaldi_native_io")


def cuts_of(store):
    return [store.cut(id).to_dict() for id in store.ids]


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("name", ["feats.scp", "feats.000000.ark"])
def test_features_round_trip_bit_for_bit(small_store, tmp_path, name, text):
    written = export_features(small_store.path, tmp_path / "kaldi", text=text)
    assert written == len(small_store.store)
    head = (tmp_path / "kaldi/feats.000000.ark").read_bytes()[:200]
    assert (b"\0B" in head) != text
    report = import_features(
        tmp_path / "kaldi" / name, cuts_of(small_store.store), tmp_path / "back"
    )
    assert report.rounding <= (1e-5 if text else 0)  # six digits
    imported = FeatureStore(tmp_path / "back")
    assert set(imported.ids) | set(report.without) == set(small_store.store.ids)
    assert (len(report.without) == 0) == (name == "feats.scp")
    for id in imported.ids:
        assert torch.equal(imported.load(id), small_store.store.load(id))
        assert imported.cmn_state(id).frames == small_store.store.cmn_state(id).frames
        assert torch.equal(imported.cmn_state(id).sum, small_store.store.cmn_state(id).sum)
        assert imported.speaker(id) == small_store.store.speaker(id)


def test_paths_of_another_machine_are_mapped(small_store, tmp_path):
    export_features(small_store.path, tmp_path / "kaldi")
    scp = tmp_path / "kaldi" / "feats.scp"
    scp.write_text(scp.read_text().replace(str(tmp_path), "/home/ann"))
    with pytest.raises(ToolkitError, match="--map-path /home/ann/kaldi=NEW"):
        count_frames(scp)
    mappings = (f"/home/ann={tmp_path}",)
    assert len(count_frames(scp, path_map=mappings)) == len(small_store.store)
    cuts = cuts_of(small_store.store)
    report = import_features(scp, cuts, tmp_path / "back", path_map=mappings)
    assert report.utterances == len(small_store.store)


def test_text_archives_cannot_be_compressed(small_store, tmp_path):
    with pytest.raises(ToolkitError, match="choose text or compression"):
        export_features(small_store.path, tmp_path, compress=True, text=True)


@pytest.mark.parametrize("text", [False, True])
def test_a_full_disk_is_an_error_and_leaves_no_archive(small_store, tmp_path, text):
    export_features(small_store.path, tmp_path / "out", text=text)
    size = (tmp_path / "out/feats.000000.ark").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
    try:
        with pytest.raises(ArchiveError, match=r"feats.000000.ark cannot be written"):
            export_features(small_store.path, tmp_path / "out", text=text)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert not left & {"feats.000000.ark", ".feats.000000.scp", "feats.scp"}


def test_kaldi_reads_exported_features(small_store, tmp_path):
    export_features(small_store.path, tmp_path)
    with kaldi.SequentialFloatMatrixReader(f"scp:{tmp_path}/feats.scp") as reader:
        matrices = {key: matrix.copy() for key, matrix in reader}
    assert list(matrices) == sorted(small_store.store.ids, key=str.encode)
    for id, matrix in matrices.items():
        np.testing.assert_array_equal(matrix, small_store.store.load(id).numpy())
    text = "".join(f"{id} X\n" for id in matrices)
    wavs = "".join(f"{id} x.wav\n" for id in matrices)
    (tmp_path / "text").write_text(text)
    (tmp_path / "wav.scp").write_text(wavs)
    faults = data_dir_faults(tmp_path)
    assert all("order of the speakers" in fault for fault in faults)
    assert not list(tmp_path.glob(".*"))


def test_compressed_features_are_near_and_smaller(small_store, tmp_path):
    export_features(small_store.path, tmp_path / "whole")
    export_features(small_store.path, tmp_path / "small", compress=True)
    small = entries(tmp_path / "small/feats.scp")
    for id in small_store.store.ids:
        original = small_store.store.load(id).numpy()
        difference = np.abs(read_matrix(small[id]) - original).max()
        assert difference < 0.02 * np.ptp(original)
    sizes = [
        sum(p.stat().st_size for p in (tmp_path / n).glob("*.ark")) for n in ("small", "whole")
    ]
    assert sizes[0] < 0.5 * sizes[1]
    report = import_features(
        tmp_path / "small/feats.scp", cuts_of(small_store.store), tmp_path / "back"
    )
    assert 0 < report.rounding < 0.01


def test_features_without_audio(small_store, tmp_path):
    export_features(small_store.path, tmp_path)
    frames = count_frames(tmp_path / "feats.scp")
    assert frames == {id: small_store.store.num_frames(id) for id in small_store.store.ids}
    first = sorted(frames)[0]
    cuts = cuts_without_audio(frames, {first: "zoe"}, {first: "A B"}, frame_shift_ms=10.0)
    import_features(tmp_path / "feats.scp", cuts, tmp_path / "back", hours_per_shard=1e-4)
    imported = FeatureStore(tmp_path / "back")
    assert len(imported.shards) > 1
    cut = imported.cut(first)
    assert (cut.supervisions[0].text, imported.speaker(first)) == ("A B", "zoe")
    assert cut.duration == pytest.approx(frames[first] / 100)
    assert imported.speaker(sorted(frames)[1]) == sorted(frames)[1]
    assert torch.equal(imported.load(first), small_store.store.load(first))


@pytest.fixture
def table(tmp_path):
    def write(**matrices):
        with kaldi.FloatMatrixWriter(f"ark,scp:{tmp_path}/x.ark,{tmp_path}/x.scp") as writer:
            for key, matrix in matrices.items():
                writer.write(key, np.asarray(matrix, dtype=np.float32))
        return tmp_path / "x.scp"

    return write


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0, 2.0, 3.0]], "b has 1 x 3 values, but the first utterance has 2"),
        (np.zeros((0, 0)), "b has 0 x 0 values"),
        ([[np.nan, 0.0]], "b has values that are not finite"),
        ([[7e4, 0.0]], "b has values that are not finite or larger than 65504"),
    ],
)
def test_features_that_a_store_cannot_hold_are_named(table, tmp_path, matrix, message):
    path = table(a=[[1.0, 2.0]], b=matrix)
    cuts = cuts_without_audio({"a": 1, "b": 1}, {}, {})
    with pytest.raises(ToolkitError, match=message):
        import_features(path, cuts, tmp_path / "out")
    with pytest.raises(ToolkitError, match="features"):
        FeatureStore(tmp_path / "out")


def test_a_first_utterance_without_frames_is_not_compared_with_itself(table, tmp_path):
    path = table(a=np.zeros((0, 0)), b=[[1.0, 2.0]])
    with pytest.raises(ToolkitError, match="a has 0 x 0 values: remove this entry from the table"):
        import_features(path, cuts_without_audio({"a": 0, "b": 1}, {}, {}), tmp_path / "out")


def test_utterances_with_an_empty_speaker_have_different_speakers():
    cuts = cuts_without_audio({"a": 1, "b": 1, "c": 1}, {"a": "", "b": "", "c": "zoe"}, {})
    assert [cut["supervisions"][0]["speaker"] for cut in cuts] == ["a", "b", "zoe"]


def test_a_killed_import_leaves_no_store_and_the_next_no_stray_files(table, tmp_path, monkeypatch):
    out, ids = tmp_path / "out", ("a", "b", "c")
    cuts = cuts_without_audio(dict.fromkeys(ids, 360), {}, {})
    import_features(table(**{id: np.ones((360, 2)) for id in ids}), cuts, out, hours_per_shard=1e-3)
    assert len(FeatureStore(out).shards) == 3
    path = table(a=np.zeros((360, 2)), b=np.zeros((360, 2)))

    def killed(folder, number, *fields):
        if number:
            raise KeyboardInterrupt
        return write_shard(folder, number, *fields)

    monkeypatch.setattr(features, "write_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        import_features(path, cuts, out, hours_per_shard=1e-3)
    with pytest.raises(ToolkitError, match="features"):
        FeatureStore(out)
    monkeypatch.undo()
    import_features(path, cuts, out, hours_per_shard=1e-3)
    assert {id: x.sum() for id, x in FeatureStore(out).iter()} == {"a": 0, "b": 0}
    assert len(list((out / "shards").iterdir())) == 4


def test_features_get_the_new_ids_of_a_data_directory(small_store, tmp_path):
    first, second, *_ = ids = small_store.store.ids
    (tmp_path / "utt_map").write_text(f"x-{first} {first}\nx-{second} {second}\n")
    export_features(small_store.path, tmp_path)
    named = {id: f"{small_store.store.speaker(id)}-{id}" for id in ids}
    named |= {id: f"x-{id}" for id in (first, second)}
    for table in ("feats.scp", "utt2spk", "utt2num_frames"):
        lines = (tmp_path / table).read_text().splitlines()
        assert {line.split()[0] for line in lines} == {*named.values()}
    index = entries(tmp_path / "feats.scp")
    original = small_store.store.load(first).numpy()
    np.testing.assert_array_equal(read_matrix(index[named[first]]), original)
    (tmp_path / "utt_map").write_text("new old\n")
    with pytest.raises(ToolkitError, match="contains none of the utterances"):
        export_features(small_store.path, tmp_path)


def test_a_table_of_other_utterances_is_an_error(table, tmp_path):
    path = table(a=[[1.0]])
    with pytest.raises(
        ToolkitError, match=r"of the 1 utterances of .*; the first utterance in this table is 'a'"
    ):
        import_features(path, cuts_without_audio({"q": 1}, {}, {}), tmp_path / "out")
