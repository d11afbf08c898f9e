"""A folder of Kaldi features, without audio, from one command to word error rates."""

import json

import pytest

pytest.importorskip("kaldi_native_io")

from tests.guide.conftest import make_project, typed
from toolkit.corpus.manifest import text_of
from toolkit.features.config import ExtractConfig, FrontendConfig
from toolkit.features.extract import extract
from toolkit.kaldi.data_dir import read_kaldi_dir
from toolkit.kaldi.features import export_features

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SETTINGS = (
    "lstm=false",
    "chain_features=both",
    "lfmmi.epochs=12",
    "lfmmi.model.strides=1,0,3,3",
    "lfmmi.model.hidden=64",
    "lfmmi.model.bottleneck=16",
    "lfmmi.model.final=24",
    "lfmmi.initial_rate=4e-3",
    "lfmmi.chunks.batch_frames=400",
)
FRONTEND = FrontendConfig("fbank_mfcc", num_mel_bins=23, num_ceps=7)
"""30 values per frame, which are those of no front end of the recipe."""


@pytest.fixture(scope="module")
def project(tmp_path_factory, speech):
    """A copy of the project, with features of two minutes of speech in it."""
    root = make_project(tmp_path_factory.mktemp("features") / "project")
    recordings = speech(root / "speech")
    recordings.english(utterances=60)
    cuts = read_kaldi_dir(root / "speech/data")
    extract(cuts, ExtractConfig(FRONTEND), root / "store")
    export_features(root / "store", root / "shared", compress=True)
    lines = sorted(f"{cut.id} {text_of(cut)}\n" for cut in cuts)
    (root / "shared/text").write_text("".join(lines))
    for place in ("speech", "store"):
        (root / place).rename(root.parent / f"private-{place}")
    return root


def test_from_features_alone_to_error_rates_of_gmms_and_a_tdnnf(project):
    printed = typed(".venv/bin/toolkit new-corpus shared --from-kaldi shared", project)
    assert "features: from feats.scp, with 30 values per frame" in printed
    settings = " ".join(f"--set {setting}" for setting in SETTINGS)
    printed = typed(f"recipes/shared/run.py --jobs 2 {settings}", project)
    assert "no bundle is written: the models need features that Kaldi" in printed
    exp = project / "recipes/shared/exp/base"
    assert not (exp / "final").exists()
    assert (exp / "report.html").is_file()
    for features in ("plp", "fbank"):
        manifest = json.loads((exp / features / "train/features.json").read_text())
        assert (manifest["dimension"], manifest["engine"]) == (30, "Kaldi")
    wer = {
        row["system"]: row["wer"]
        for row in json.loads((exp / "results.json").read_text())
        if row["split"] == "test"
    }
    # What has learnt nothing gets most of the words wrong.
    assert all(wer[system] < 30 for system in ("mono", "tri", "lda_mllt", "sat")), wer
    assert max(wer["chain"], wer["chain_fbank"]) < 60, wer
    printed = typed(f"recipes/shared/run.py --jobs 2 {settings} --list", project)
    assert "stale" not in printed
