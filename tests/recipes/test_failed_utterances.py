"""Steps on features that lack an utterance whose extraction failed."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.dummies import dummy_recording
from toolkit.align.adapt import adapt_speakers
from toolkit.align.config import EmConfig, MonophoneConfig
from toolkit.corpus.findings import write_exclusions
from toolkit.corpus.manifest import make_cut, read_cuts, write_cuts
from toolkit.decode.config import DecodeConfig
from toolkit.decode.ctc.system import POSTERIORS
from toolkit.features.gmm_features import load_transforms, save_transforms
from toolkit.features.shards import FeatureStore, field_file, shard_writer
from toolkit.hmm.gmm_system import GmmSystem


class Prepared:
    """A run on drawn speech; its manifest has one more utterance, which has no features."""

    jobs, progress = 1, staticmethod(lambda done, total: None)

    def __init__(self, speech, root):
        names = {"plp/train": speech.cepstra, "plp/copies": speech.cepstra, "lang": speech.lang}
        self.root, self.names = root, names
        em = EmConfig(iterations=2, realign=(1,), gaussians=40, grow_until=1)
        self.config = SimpleNamespace(mono=MonophoneConfig(em), prior_frames=100)
        self.settings = {"sat.em": em}
        texts = {**speech.transcripts, "carl-failed": ["AX"]}
        write_cuts(
            [
                make_cut(id, dummy_recording(0), " ".join(words), id[:4])
                for id, words in texts.items()
            ],
            root / "data/train.jsonl",
        )
        write_exclusions([], root / "check/excluded.tsv")

    def need(self, name):
        return self.names.get(name, self.root / name)

    def setting(self, name):
        return self.settings[name]

    def make(self, name):
        path = self.root / name
        folder = path.parent if path.suffix else path
        folder.mkdir(parents=True, exist_ok=True)
        return path


@pytest.fixture
def run(speech, tmp_path):
    return Prepared(speech, tmp_path)


def test_gmms_are_trained_without_a_failed_utterance(run):
    from recipes.steps.gmm import train_mono

    assert train_mono(run)["pdfs"] > 0
    assert (run.root / "mono" / "history.json").exists()


def test_copies_are_adapted_without_a_failed_utterance(run, speech, monkeypatch):
    from recipes.steps import gmm

    gmm.train_mono(run)
    save_transforms(run.root / "mono/fmllr.safetensors", {})
    run.names |= {"sat": run.root / "mono", "lda_mllt": run.root / "mono"}
    monkeypatch.setattr(gmm, "has_copies", lambda run: True)
    monkeypatch.setattr(gmm, "copies", lambda run: read_cuts(run.need("data/train.jsonl")))
    gmm.write_adapted(run, "sat", "lda_mllt")
    transforms = load_transforms(run.root / "fmllr_features/copies.safetensors")
    assert transforms.keys() == {"anna", "bert", "carl"}
    assert not any(torch.equal(x, torch.eye(*x.shape)) for x in transforms.values())
    system, expected = GmmSystem.load(run.root / "mono", speech.cepstra), run.root / "expected"
    em = run.setting("sat.em")
    adapt_speakers(system, system, speech.transcripts, speech.lang, em, expected, jobs=1)
    assert (run.root / "fmllr_features/copies.safetensors").read_bytes() == expected.read_bytes()
    for part in ("train", "copies"):
        assert sorted(FeatureStore(run.root / "fmllr_features" / part).ids) == sorted(
            speech.transcripts
        )


def test_speakers_are_adapted_without_a_failed_utterance(run, speech, monkeypatch):
    """Its hypothesis is empty, so there is nothing to align."""
    from recipes.steps import gmm

    run.names |= {"plp/test": speech.cepstra}
    run.config.gmm_decode = DecodeConfig(acoustic_scale=0.1)
    text = run.root / "decode/lda_mllt/test/text"
    text.parent.mkdir(parents=True)
    lines = [f"{u} {' '.join(words)}\n" for u, words in speech.transcripts.items()]
    text.write_text("".join([*lines, "carl-failed\n"]))
    adapted = {}

    def estimate(run, system, first, split, words, out):
        adapted.update(words)

    monkeypatch.setattr(gmm, "estimate_transforms", estimate)
    monkeypatch.setattr(gmm, "splits", lambda run: SimpleNamespace(decoded=("test",)))
    for name in ("compose_graph", "refine_on_lattices", "load_transforms"):
        monkeypatch.setattr(gmm, name, lambda *arguments: None)
    monkeypatch.setattr(gmm.Senones, "load", lambda path: None)
    monkeypatch.setattr(gmm.GmmSystem, "load", lambda *paths: SimpleNamespace(adapted=lambda x: x))
    gmm.adapt(run, "sat", "lda_mllt")
    assert adapted == {u: list(words) for u, words in speech.transcripts.items()}


def test_ctc_references_include_utterances_without_posteriors(run, speech):
    from recipes.steps.ctc import split_data

    folder, names = run.root / "posteriors", list(speech.transcripts)
    folder.mkdir()
    with shard_writer(folder / field_file("posteriors", 0)) as writer:
        for name in names:
            writer.add_array(name, np.zeros((1, 2), np.float32))
    (folder / POSTERIORS).write_text(json.dumps({"utterances": len(names)}))
    data = split_data(run, "train", folder)
    assert [*data.posteriors] == names
    assert [*data.references] == [*data.speakers] == [*names, "carl-failed"]
    assert data.references["carl-failed"] == "AX"
    assert data.seconds == len(names) + 1
