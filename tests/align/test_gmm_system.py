"""GMM systems on disk, in other processes, and as scorers."""

import json
import pickle

import pytest
import torch

from toolkit.align.scorer import GmmScorer
from toolkit.errors import ToolkitError
from toolkit.features.gmm_features import GmmFrontend, save_transforms
from toolkit.features.shards import SHARDS, write_manifest, write_shard
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.kaldi.feature_dir import KaldiFormat
from toolkit.kaldi.features import cuts_without_audio

SYSTEMS = ("mono", "tri", "lda_mllt", "sat")


def assert_same(system, reloaded, utterance="bert-02"):
    x = system.features.load(utterance)
    assert torch.equal(reloaded.features.load(utterance), x)
    assert torch.equal(reloaded.gmm.log_likelihoods(x), system.gmm.log_likelihoods(x))
    assert reloaded.senones.topology == system.senones.topology
    assert torch.equal(reloaded.senones.table, system.senones.table)
    assert reloaded.features.transforms.keys() == system.features.transforms.keys()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_saved_system_loads_unchanged(training, name, tmp_path):
    system = training.system(name)
    system.save(tmp_path)
    loaded = GmmSystem.load(tmp_path, system.features.path)
    assert loaded.features.transforms == {}  # they are the speakers', not the system's
    assert_same(system, loaded.adapted(system.features.transforms))
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (training.root / name / path.name).read_bytes()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_survives_pickling_before_and_after_use(training, name):
    system = training.system(name)
    fresh = pickle.dumps(system)
    assert_same(system, pickle.loads(fresh))
    used = pickle.dumps(system)
    assert_same(system, pickle.loads(used))
    assert len(used) < len(fresh) + 500  # neither the opened store nor the table goes along


def test_features_are_named_in_words(training):
    """Files that other tools can read."""
    folder = training.root / "sat"
    assert json.loads((folder / "features.json").read_text()) == {"splice": 1}
    assert json.loads((folder / "topology.json").read_text())["phones"][:2] == ["SIL", "SPN"]


@pytest.mark.parametrize("adapted", [False, True])
def test_scorer_and_system_give_the_same_scores(training, speech, adapted):
    folder = training.root / "sat"
    scorer = GmmScorer(folder, speech.cepstra, folder / "fmllr.safetensors" if adapted else None)
    system = training.system("sat")
    if not adapted:
        system = system.adapted({})
    for scorer_copy in (scorer, pickle.loads(pickle.dumps(scorer))):
        x = system.features.load("carl-01")
        scores = scorer_copy.log_likelihoods("carl-01")
        assert torch.equal(scores, system.gmm.log_likelihoods(x))
        pdfs = torch.tensor([3, 0, 11])
        torch.testing.assert_close(scorer_copy.scores_of("carl-01", pdfs).dense(), scores[:, pdfs])
        assert scorer_copy.store.ids == list(speech.transcripts)
    assert len(pickle.dumps(scorer)) < 1000
    assert not torch.equal(scores, training.system("lda_mllt").gmm.log_likelihoods(x))


def test_transforms_of_another_system_are_an_error_that_names_them(training, speech, tmp_path):
    path = tmp_path / "fmllr.safetensors"
    save_transforms(path, {"bert": torch.zeros(3, 4)})
    scorer = GmmScorer(training.root / "sat", speech.cepstra, path)
    with pytest.raises(
        ToolkitError, match=r"fmllr\.safetensors: the transform of bert has the shape \[3, 4\]"
    ):
        scorer.log_likelihoods("bert-02")


def test_files_of_different_systems_are_an_error_that_names_them(training, speech, tmp_path):
    training.system("sat").save(tmp_path)
    projection = training.system("sat").features.frontend.projection
    GmmFrontend(1, torch.cat([projection, projection[:1]])).save(tmp_path)
    with pytest.raises(ToolkitError, match=rf"{tmp_path}: projection\.safetensors has \d+ rows"):
        GmmSystem.load(tmp_path, speech.cepstra)


@pytest.mark.parametrize("name", SYSTEMS)
def test_features_of_another_kind_are_an_error_that_names_them(training, name, tmp_path):
    form = KaldiFormat(7)
    (cut,) = cuts_without_audio({"bert-02": 9}, {}, {})
    write_shard(tmp_path / SHARDS, 0, [(cut, "bert-02", torch.rand(9, 7))], form)
    write_manifest(tmp_path, form, [{"utterances": 1, "frames": 9}])
    scorer = GmmScorer(training.root / name, tmp_path)
    with pytest.raises(ToolkitError, match=rf"has 7 values per frame, but .*{name} was trained on"):
        scorer.log_likelihoods("bert-02")
