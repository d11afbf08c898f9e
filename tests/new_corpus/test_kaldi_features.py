"""Kaldi data directories that have features but no audio."""

import runpy

import pytest

pytest.importorskip("kaldi_native_io")

from local import kaldi
from tests.kaldi.feature_dirs import matrices, write_feature_dir
from toolkit.corpus.manifest import ManifestError
from toolkit.features.config import AugmentConfig
from toolkit.new_corpus.make import create_recipe

WORDS = "der Kater sagt es hier"


def write_part(folder, speakers):
    ids = [f"{speaker}{number}" for speaker in speakers for number in range(4)]
    return write_feature_dir(folder, matrices(ids), text=WORDS)


def config_of(root):
    (profile,) = runpy.run_path(str(root / "recipes/shared/config.py"))["PROFILES"].values()
    return profile()


@pytest.mark.parametrize("wav_scp", [None, "a0 /nowhere/a0.wav\n"])
def test_features_are_used_if_there_is_no_audio(root, tmp_path, wav_scp):
    data = write_part(tmp_path / "data", "abcdefgh")
    if wav_scp is not None:
        (data / "wav.scp").write_text(wav_scp)
    (data / "cmvn.scp").write_text("")
    new_corpus = create_recipe(root, "shared", data, "kaldi")
    (remark,) = [line for line in new_corpus.remarks if line.startswith("features: ")]
    assert "from feats.scp, with 5 values per frame, a frame shift of 10 ms (assumed)" in remark
    assert ("none of the files in wav.scp exists" in remark) == (wav_scp is not None)
    assert "cmvn.scp is not needed" in remark
    config = config_of(root)
    assert (config.corpus.features, config.augment) == ("kaldi", AugmentConfig())
    config.refuse_contradictions()
    splits = kaldi.manifests(config.corpus, data)
    assert {split: len(cuts) for split, cuts in splits.items()} == {
        "train": 24,
        "dev": 4,
        "test": 4,
    }


def test_audio_is_used_if_some_exists_or_commands_make_it(root, tmp_path, recordings):
    data = write_part(tmp_path / "data", "abcdefgh")
    (data / "wav.scp").write_text(f"a0 {recordings}/00.wav\nb0 sox b0.wav -t wav - |\n")
    new_corpus = create_recipe(root, "shared", data, "kaldi")
    assert config_of(root).corpus.features == "audio"
    assert not any(line.startswith("features: ") for line in new_corpus.remarks)


def test_several_directories_of_features(root, tmp_path):
    for part, speakers in {"train": "abcde", "dev": "f", "eval": "g", "train_sp": "h"}.items():
        write_part(tmp_path / "data" / part, speakers)
        (tmp_path / "data" / part / "utt2dur").write_text("a0 1.2\n")
    new_corpus = create_recipe(root, "shared", tmp_path / "data", "kaldi")
    assert "not used: train_sp" in new_corpus.remarks
    assert any("a frame shift of 10 ms (from utt2dur)" in line for line in new_corpus.remarks)
    splits = kaldi.manifests(config_of(root).corpus, tmp_path / "data")
    assert {split: len(cuts) for split, cuts in splits.items()} == {
        "train": 20,
        "dev": 4,
        "eval": 4,
    }


def test_parts_with_audio_beside_parts_with_features_are_refused(root, tmp_path):
    write_part(tmp_path / "data/train", "abcde")
    test = write_part(tmp_path / "data/test", "f")
    (test / "feats.scp").rename(test / "wav.scp")
    with pytest.raises(ManifestError, match=r"train has features but no audio, and test has no"):
        create_recipe(root, "shared", tmp_path / "data", "kaldi")


def test_without_readable_features_there_is_no_recipe(root, tmp_path):
    data = write_part(tmp_path / "data", "abcdefgh")
    (data / "feats.ark").unlink()
    with pytest.raises(ManifestError, match="no utterance has audio or features that can be read"):
        create_recipe(root, "shared", data, "kaldi")
