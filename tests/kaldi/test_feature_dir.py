"""Data directories with features and without audio."""

import json

import numpy as np
import pytest
import torch

from tests.kaldi.feature_dirs import matrices, write_feature_dir
from toolkit.corpus.check import check
from toolkit.corpus.config import CheckConfig
from toolkit.corpus.manifest import (
    NO_SPEAKER,
    ManifestError,
    audio_of,
    read_cuts,
    speaker_of,
    text_of,
    write_cuts,
)
from toolkit.features.audio import AudioError
from toolkit.features.config import ExtractConfig
from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.extract import extract
from toolkit.features.shards import FeatureStore
from toolkit.kaldi.archive import ArchiveError
from toolkit.kaldi.data_dir import write_kaldi_dir
from toolkit.kaldi.feature_dir import (
    KaldiFormat,
    feature_dimension,
    find_feature_faults,
    read_feature_dir,
    read_features,
)

pytest.importorskip("kaldi_native_io")


IDS = ("a1", "a2", "b1", "b2")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


def faults_of(cuts):
    return {cut.id: cut.custom["fault"] for cut in cuts if "fault" in (cut.custom or {})}


def notes_of(cuts):
    return {cut.id: cut.custom["note_detail"] for cut in cuts if "note" in (cut.custom or {})}


@pytest.mark.parametrize("compress", [False, True])
def test_cuts_hold_text_speaker_duration_and_the_place_of_the_features(folder, compress, tmp_path):
    features = matrices(IDS, dimension=7)
    write_feature_dir(folder, features, compress=compress)
    write_cuts(read_feature_dir(folder), tmp_path / "train.jsonl")
    cuts = read_cuts(tmp_path / "train.jsonl")
    assert [cut.id for cut in cuts] == list(IDS)
    for cut in cuts:
        assert (text_of(cut), speaker_of(cut)) == ("ONE TWO", cut.id[0])
        assert cut.duration == pytest.approx(len(features[cut.id]) / 100)
        assert audio_of(cut) == str(folder / "feats.ark")
        assert feature_dimension(cut) == 7
        np.testing.assert_allclose(read_features(cut), features[cut.id], atol=0.1 * compress)
    assert not faults_of(cuts)
    assert not notes_of(cuts)


def test_faults_are_recorded_by_utterance(folder):
    features = matrices(("a1", "archive", "piped", "mute", "short", "range"))
    features["short"] = np.zeros((0, 0), np.float32)
    write_feature_dir(folder, features)
    lines = dict(line.split(" ", 1) for line in (folder / "feats.scp").read_text().splitlines())
    lines["archive"] = "/nowhere/feats.ark:8"
    lines["piped"] = "copy-feats ark:x.ark ark:- |"
    lines["range"] += "[10:29]"
    (folder / "feats.scp").write_text("".join(f"{id} {place}\n" for id, place in lines.items()))
    texts = [id for id in features if id != "mute"] + ["untold"]
    (folder / "text").write_text("".join(f"{id} ONE\n" for id in texts))
    cuts = read_feature_dir(folder)
    assert faults_of(cuts) == {
        "archive": "unreadable-features",
        "piped": "unreadable-features",
        "mute": "missing-transcript",
        "short": "empty-features",
        "untold": "missing-features",
    }
    (part,) = [cut for cut in cuts if cut.id == "range"]
    np.testing.assert_array_equal(read_features(part), features["range"][10:30])


def test_paths_of_another_machine_are_mapped(folder, tmp_path):
    write_feature_dir(folder, matrices(IDS))
    scp = folder / "feats.scp"
    scp.write_text(scp.read_text().replace(str(tmp_path), "/home/ann"))
    lost = read_feature_dir(folder)
    assert set(faults_of(lost).values()) == {"unreadable-features"}
    assert "--map-path /home/ann/data=NEW" in lost[0].custom["fault_detail"]
    assert not faults_of(read_feature_dir(folder, (f"/home/ann={tmp_path}",)))


def test_numbers_of_frames_that_other_files_contradict_are_noted(folder):
    features = matrices(IDS)
    write_feature_dir(folder, features)
    (folder / "utt2num_frames").write_text("a1 120\na2 99\n")
    # b1 has 140 frames: 1.4 s, to which a window and rounding may add.
    (folder / "segments").write_text("a1 r 1 2.215\nb1 r 3 4.44\nb2 r 5 7.5\n")
    notes = notes_of(read_feature_dir(folder))
    assert set(notes) == {"a2", "b2"}
    assert notes["a2"].endswith("but 99 in utt2num_frames")
    assert "150 frames" in notes["b2"]
    assert notes["b2"].endswith("but 2.50 s in segments")


@pytest.mark.parametrize(
    ("name", "line", "accepted"),
    [
        ("frame_shift", "0.01", True),
        ("frame_shift", "0.0125", False),
        ("frame_shift", "ten", False),
        ("utt2dur", "a1 1.215", True),
        ("utt2dur", "a1 1.8", False),
        ("utt2dur", "unknown 9", True),
    ],
)
def test_another_frame_shift_is_refused(folder, name, line, accepted):
    write_feature_dir(folder, matrices(IDS))
    (folder / name).write_text(f"{line}\n")
    if accepted:
        assert len(read_feature_dir(folder)) == len(IDS)
    else:
        with pytest.raises(ManifestError, match=rf"{name}: the features have a frame every"):
            read_feature_dir(folder)


def test_without_speakers_the_recording_of_a_segment_counts_as_one(folder):
    write_feature_dir(folder, matrices(IDS))
    (folder / "utt2spk").unlink()
    (folder / "segments").write_text("a1 call 0 1.2\na2 call 2 3.3\n")
    cuts = read_feature_dir(folder)
    assert [speaker_of(cut) for cut in cuts] == ["call", "call", "b1", "b2"]
    assert all(NO_SPEAKER in cut.custom for cut in cuts)


@pytest.mark.parametrize("name", ["feats.scp", "text"])
def test_a_folder_without_features_or_text_is_refused(folder, name):
    write_feature_dir(folder, matrices(IDS))
    (folder / name).unlink()
    with pytest.raises(ManifestError, match=name):
        read_feature_dir(folder)


def test_reading_audio_of_imported_features_is_an_error(folder, tmp_path):
    cuts = read_feature_dir(write_feature_dir(folder, matrices(IDS)))
    with pytest.raises(AudioError, match="a1: its corpus has features instead of audio"):
        load_cut_audio(cuts[0])
    with pytest.raises(ManifestError, match="a1 has Kaldi features and no audio"):
        write_kaldi_dir(cuts, tmp_path / "out")


def test_a_manifest_cannot_name_a_command(folder):
    (cut, *_) = read_feature_dir(write_feature_dir(folder, matrices(IDS)))
    cut.custom["feature_matrix"]["range"] = "|"
    with pytest.raises(ArchiveError, match="prepare the data again"):
        read_features(cut)


def import_cuts(cuts, out, **options):
    config = ExtractConfig(hours_per_shard=0.0005)
    return extract(cuts, config, out, imported=KaldiFormat(feature_dimension(cuts[0])), **options)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_store_has_the_features_and_the_means_of_speakers(folder, tmp_path, jobs):
    features = matrices(IDS, dimension=6)
    cuts = read_feature_dir(write_feature_dir(folder, features))
    headline = import_cuts(cuts, tmp_path / "plp", jobs=jobs)
    assert (headline["utterances"], headline["failed"]) == (4, 0)
    store = FeatureStore(tmp_path / "plp")
    assert (store.dimension, store.kind, store.manifest["engine"]) == (6, "kaldi", "Kaldi")
    for id, matrix in features.items():
        expected = torch.from_numpy(matrix)
        torch.testing.assert_close(store.load(id), expected.half().float(), atol=0, rtol=0)
    for speaker in "ab":  # compute-cmvn-stats and apply-cmvn --utt2spk of Kaldi
        frames = np.concatenate([features[id] for id in IDS if id[0] == speaker])
        mean = store.speaker_mean(speaker).numpy()
        np.testing.assert_allclose(mean, frames.mean(axis=0, dtype=np.float64), atol=1e-3)


def test_only_shards_of_changed_archives_are_copied_again(folder, tmp_path):
    features = matrices(IDS)
    cuts = read_feature_dir(write_feature_dir(folder, features))
    digests = {audio_of(cuts[0]): "first"}
    import_cuts(cuts, tmp_path / "plp", audio=digests)
    modified_ns = (tmp_path / "plp/done/000000.json").stat().st_mtime_ns
    import_cuts(cuts, tmp_path / "plp", audio=digests)
    assert (tmp_path / "plp/done/000000.json").stat().st_mtime_ns == modified_ns
    write_feature_dir(folder, {id: matrix + 1 for id, matrix in features.items()})
    import_cuts(cuts, tmp_path / "plp", audio={audio_of(cuts[0]): "second"})
    loaded = FeatureStore(tmp_path / "plp").load("a1")
    np.testing.assert_allclose(loaded.numpy(), features["a1"] + 1, atol=2e-3)


def test_an_archive_with_other_sizes_is_another_archive(folder):
    cuts = read_feature_dir(write_feature_dir(folder, matrices(IDS)))
    write_feature_dir(folder, matrices(IDS, dimension=3))
    with pytest.raises(ArchiveError, match=r"\(120, 3\) values for this id, not \(120, 5\)"):
        read_features(cuts[0])


pytest.importorskip("kaldi_native_io")


@pytest.fixture
def splits(tmp_path):
    """Training and test data with a fault of each kind."""
    train = matrices(("a1", "a2", "b1", "b2", "nan", "large", "wide"))
    train["nan"][7] = np.nan
    train["large"][3, 2] = 1e6
    train["wide"] = matrices(("wide",), dimension=6)["wide"]
    test = matrices(("c1", "copy"), seed=1)
    test["copy"] = train["a1"]
    parts = {"train": train, "test": test}
    return {
        split: read_feature_dir(write_feature_dir(tmp_path / split, features))
        for split, features in parts.items()
    }


def test_values_dimensions_and_copies_are_found(splits, tmp_path):
    faults = find_feature_faults(splits)
    kinds = {(split, id): records[0][0] for (split, id, _), records in faults.items()}
    assert kinds == {
        ("train", "nan"): "unreadable-features",
        ("train", "large"): "unreadable-features",
        ("train", "wide"): "other-dimension",
        ("test", "copy"): "same-audio-and-text",
    }
    details = {id: records[0][1] for (_, id, _), records in faults.items()}
    archive = tmp_path / "train/feats.ark"
    assert details["nan"].startswith(f"{archive}: values that are not finite")
    assert details["nan"].endswith("in 1 frames, first 7")
    assert details["wide"] == f"{archive}: 6 values per frame; most utterances have 5"
    assert details["copy"] == "same features as utterance a1 in train"
    assert find_feature_faults(splits, jobs=2) == faults


def test_the_report_lists_them_and_training_leaves_them_out(splits, tmp_path):
    paths = {split: tmp_path / f"{split}.jsonl" for split in splits}
    for split, cuts in splits.items():
        write_cuts(cuts, paths[split])
    lexicon, out = {"ONE": 3, "TWO": 2}, tmp_path / "check"
    faults = find_feature_faults(splits)
    headline = check(paths, lexicon, out, CheckConfig(), feature_faults=faults)
    assert headline["excluded"] == 3
    findings = json.loads((out / "report.json").read_text())["findings"]
    assert ("wide", "other-dimension") in {(item["id"], item["kind"]) for item in findings}
    usable = [cut.id for cut in read_cuts(paths["train"], out / "excluded.tsv")]
    assert usable == ["a1", "a2", "b1", "b2"]
    report = (out / "report.txt").read_text()
    assert "Fix: compute all features with the same configuration." in report
    assert "Hz" not in report
