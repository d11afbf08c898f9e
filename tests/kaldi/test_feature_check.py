import json

import pytest

pytest.importorskip("kaldi_native_io")

import numpy as np

from tests.kaldi.feature_dirs import matrices, write_feature_dir
from toolkit.corpus.check.check import check
from toolkit.corpus.config import CheckConfig
from toolkit.corpus.manifest import read_cuts, write_cuts
from toolkit.kaldi.feature_check import find_feature_faults
from toolkit.kaldi.feature_dir import read_feature_dir


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
    kinds = {(split, id): found[0][0] for (split, id, _), found in faults.items()}
    assert kinds == {
        ("train", "nan"): "unreadable-features",
        ("train", "large"): "unreadable-features",
        ("train", "wide"): "other-dimension",
        ("test", "copy"): "same-audio-and-text",
    }
    details = {id: found[0][1] for (_, id, _), found in faults.items()}
    archive = tmp_path / "train/feats.ark"
    assert details["nan"].startswith(f"{archive}: values that are no numbers")
    assert details["nan"].endswith("in 1 frames, first 7")
    assert details["wide"] == f"{archive}: 6 values per frame, where most have 5"
    assert details["copy"] == "the features are those of a1 in train"
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
