"""A store of a GMM system's features: what it holds, and that networks can be trained on it."""

import json
import shutil

import pytest
import torch

from tests.dummies import dummy_recording
from toolkit.corpus.manifest import make_cut, write_cuts
from toolkit.features.normalise import estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.hmm.gmm_system import write_gmm_features


@pytest.fixture(scope="module")
def write(training, speech, tmp_path_factory):
    def run(jobs):
        out = tmp_path_factory.mktemp("adapted")
        write_gmm_features(training.system("sat"), out, jobs)
        return out

    return run


def test_store_holds_the_adapted_systems_features(write, training):
    features = training.system("sat").features
    store = FeatureStore(write(jobs=1))
    assert store.shards == features.store.shards
    assert store.dimension == 5
    assert features.transforms
    for utterance in store.ids:
        torch.testing.assert_close(
            store.load(utterance), features.load(utterance), rtol=2**-10, atol=1e-5
        )
        assert store.speaker(utterance) == features.speaker(utterance)


def test_without_transforms_store_holds_lda_and_mllt_features(training, speech, tmp_path):
    features = training.system("lda_mllt").features
    write_gmm_features(training.system("lda_mllt"), tmp_path)
    store = FeatureStore(tmp_path)
    assert (store.manifest["frontend"]["kind"], store.dimension) == ("lda_mllt", 5)
    assert store.shards == features.store.shards
    for utterance in store.ids:
        torch.testing.assert_close(
            store.load(utterance), features.load(utterance), rtol=2**-10, atol=1e-5
        )


def test_rate_and_shift_are_those_of_the_cepstra(training, speech, tmp_path):
    cepstra = shutil.copytree(speech.cepstra, tmp_path / "plp")
    manifest = json.loads((cepstra / "features.json").read_text())
    manifest["frontend"] |= {"frame_shift_ms": 12.5, "sampling_rate": 8000}
    (cepstra / "features.json").write_text(json.dumps(manifest))
    write_gmm_features(training.system("lda_mllt", cepstra=cepstra), tmp_path / "out")
    assert FeatureStore(tmp_path / "out").manifest["frontend"] == {
        **{"kind": "lda_mllt", "dimension": 5},
        **{"frame_shift_ms": 12.5, "sampling_rate": 8000},
    }


def test_files_do_not_depend_on_jobs(write):
    serial, parallel = write(jobs=1), write(jobs=2)
    names = sorted(p.relative_to(serial) for p in serial.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(parallel) for p in parallel.rglob("*") if p.is_file())
    assert all((serial / name).read_bytes() == (parallel / name).read_bytes() for name in names)


def test_the_running_mean_is_that_of_the_adapted_features(write, training):
    path = write(jobs=1)
    store, normaliser = FeatureStore(path), estimate_normaliser(FeatureStore(path))
    normalised = [normaliser.apply(store.load(u), store.cmn_state(u)) for u in store.ids]
    frames = torch.cat(normalised)
    torch.testing.assert_close(frames.mean(0), torch.zeros(5), rtol=0, atol=1e-4)
    torch.testing.assert_close(frames.std(0), torch.ones(5), rtol=0, atol=1e-2)


def test_cuts_without_cepstra_are_passed_on(training, speech, tmp_path):
    cepstra = shutil.copytree(speech.cepstra, tmp_path / "plp")
    failed = make_cut("anna-failed", dummy_recording(0), "AX", "anna")
    write_cuts([failed], cepstra / "failed.jsonl")
    write_gmm_features(training.system("lda_mllt", cepstra=cepstra), tmp_path / "out")
    store = FeatureStore(tmp_path / "out")
    assert store.failed_cuts == [failed]
    assert store.manifest["failed"] == 1
