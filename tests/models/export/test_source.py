"""The features of a model are those that the marker of its stage names."""

import json

import pytest
import torch

from toolkit.features.normalise import Cmvn, GlobalStats
from toolkit.models.config import BlstmConfig, CtcConfig, LstmConfig, TdnnfConfig
from toolkit.models.export import find_export_source
from toolkit.models.store import make_model, save_model

MEL, ADAPTED, BOTH = 4, 2, 3
"""Dimensions."""
OF_LSTM = {"output_dim": 5, "hidden": 3, "layers": 1}
LSTM, ON_GMM = LstmConfig(3 * MEL, **OF_LSTM), LstmConfig(3 * ADAPTED, **OF_LSTM)
BLSTM = BlstmConfig(3 * ADAPTED, **OF_LSTM)
TDNNF = {"output_dim": 5, "hidden": 3, "bottleneck": 2, "strides": (1, 3), "final": 2}
CTC = CtcConfig(BOTH, output_dim=5, hidden=3, channels=(2,), kernels=(3,), strides=(2,))
FMLLR, LDA_MLLT = "fmllr_features", "lda_mllt_features"
FOLDERS = {
    "fbank": ("fbank", MEL),
    FMLLR: ("fmllr", ADAPTED),
    LDA_MLLT: ("lda_mllt", ADAPTED),
    "features": ("fbank_mfcc", BOTH),
    "unlabelled": ("fbank", MEL),
}
STAGES = {
    "lstm_ce": (LSTM, ["ali", "fbank", "lang"], [], "fbank"),
    "lstm_smbr": (LSTM, ["denominators", "fbank", "lstm_ce"], [], "fbank"),
    "lstm_fmllr": (ON_GMM, ["lda_mllt", "plp/train", "sat"], [FMLLR], FMLLR),
    "blstm": (
        BLSTM,
        ["plp/train", "sat/topology.json"],
        [LDA_MLLT],
        LDA_MLLT,
    ),
    "chain": (
        TdnnfConfig(3 * ADAPTED, **TDNNF),
        [FMLLR, "plp/train"],
        [],
        FMLLR,
    ),
    "chain_mel": (TdnnfConfig(3 * MEL, **TDNNF), ["fbank", "plp/train"], [], "fbank"),
    "ctc": (CTC, ["features/normaliser.json", "records/train", "units"], [], "features"),
    "student_ce": (LSTM, ["fbank/train", "unlabelled/normaliser.json"], [], "unlabelled"),
}
"""By network: its settings, inputs of its stage, its outputs but the network, its features."""


@pytest.fixture
def run(tmp_path):
    run = tmp_path / "exp"
    for name, (kind, dimension) in FOLDERS.items():
        manifest = run / name / ("" if name == "unlabelled" else "train") / "features.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"frontend": {"kind": kind}, "dimension": dimension}))
        stats = GlobalStats.of(torch.randn(9, dimension))
        Cmvn(torch.zeros(dimension).double(), stats).save(run / name / "normaliser.json")
    (run / "stages").mkdir()
    for number, (name, (config, inputs, outputs, _)) in enumerate(STAGES.items()):
        save_model(run / name, make_model(config))
        named = {"inputs": inputs, "outputs": [name, *outputs]}
        marker = {key: {each: {} for each in names} for key, names in named.items()}
        (run / f"stages/{number:02}.json").write_text(json.dumps(marker))
    return run


@pytest.mark.parametrize("name", STAGES)
def test_a_network_has_the_normaliser_of_the_features_of_its_stage(run, name):
    source, features = find_export_source(run / name), STAGES[name][-1]
    kind = FOLDERS[features][0]
    assert source.normaliser == run / features / "normaliser.json"
    if kind in ("fmllr", "lda_mllt"):
        assert source.frontend is None
        assert source.note == f"the features in {run / features} ({kind}) have no front end"
    else:
        assert (source.frontend, source.note) == ({"kind": kind}, "")


def test_only_markers_of_finished_stages_count(run):
    marker = {"inputs": {"unlabelled/normaliser.json": {}}, "outputs": {"lstm_ce": {}}}
    (run / "stages/00.publishing.json").write_text(json.dumps(marker))
    (run / "stages/00 (copy).json").write_text("")
    source = find_export_source(run / "lstm_ce")
    assert (source.normaliser, source.note) == (run / "fbank/normaliser.json", "")


@pytest.mark.parametrize(("name", "alone"), [("ctc", True), ("lstm_ce", False), ("blstm", False)])
def test_without_markers_features_are_used_if_only_one_folder_fits(run, name, alone):
    for marker in run.glob("stages/*.json"):
        marker.unlink()
    source = find_export_source(run / name)
    assert (source.normaliser is not None, source.frontend is not None) == (alone, alone)
    assert ("several folders of features" in source.note) == (not alone)


def test_features_of_another_dimension_are_not_used(run):
    save_model(run / "lstm_ce", make_model(LstmConfig(3 * MEL + 3, **OF_LSTM)))
    source = find_export_source(run / "lstm_ce")
    assert (source.normaliser, source.frontend) == (None, None)
    assert f"no folder of features fits lstm_ce in {run}" in source.note
