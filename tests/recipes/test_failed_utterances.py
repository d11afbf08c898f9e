"""Steps on features of which the extraction has left an utterance out."""

import json
from types import SimpleNamespace

import pytest

from tests.dummies import dummy_recording
from toolkit.align.gmm.monophone import MonophoneConfig
from toolkit.align.gmm.training import EmConfig
from toolkit.corpus.check.exclusions import write_exclusions
from toolkit.corpus.manifest import make_cut, read_cuts, write_cuts
from toolkit.decode.ctc.posteriors import POSTERIORS


class Prepared:
    """A run with features of drawn speech; its manifest has one utterance more, without them."""

    jobs, progress = 1, staticmethod(lambda done, total: None)

    def __init__(self, speech, root):
        names = {"plp/train": speech.cepstra, "plp/copies": speech.cepstra, "lang": speech.lang}
        self.root, self.names = root, names
        em = EmConfig(iterations=2, realign=(1,), gaussians=40, grow_until=1)
        self.config = SimpleNamespace(mono=MonophoneConfig(em))
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

    def make(self, name):
        path = self.root / name
        folder = path.parent if path.suffix else path
        folder.mkdir(parents=True, exist_ok=True)
        return path


@pytest.fixture
def run(speech, tmp_path):
    return Prepared(speech, tmp_path)


def test_gmms_are_trained_without_it(run):
    from recipes.steps.gmm import train_mono

    assert train_mono(run)["pdfs"] > 0
    assert (run.root / "mono" / "history.json").exists()


def test_copies_are_adapted_without_it(run, speech, monkeypatch):
    from recipes.steps import gmm_features

    adapted = {}

    def estimate(run, system, first, split, words, out):
        adapted.update(words)

    monkeypatch.setattr(gmm_features, "estimate_transforms", estimate)
    monkeypatch.setattr(gmm_features, "has_copies", lambda run: True)
    monkeypatch.setattr(gmm_features, "copies", lambda run: read_cuts(run.need("data/train.jsonl")))
    monkeypatch.setattr(gmm_features, "_write_features", lambda *arguments, **options: None)
    monkeypatch.setattr(gmm_features, "write_normaliser", lambda *arguments: None)
    gmm_features.write_adapted(run, "sat", "lda_mllt")
    assert adapted == speech.transcripts


def test_ctc_scores_what_has_posteriors(run, speech):
    from recipes.steps.ctc import split_data

    folder, names = run.root / "posteriors", list(speech.transcripts)
    folder.mkdir()
    (folder / POSTERIORS).write_text(json.dumps(dict.fromkeys(names, 0)))
    data = split_data(run, "train", folder)
    assert [*data.references] == [*data.speakers] == names
    assert data.seconds == len(names)
