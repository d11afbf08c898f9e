"""Lattices of a feature store of drawn speech: resuming, failures, processes."""

from dataclasses import replace

import pytest
import torch

from toolkit.align.scorer import GmmScorer
from toolkit.decode.config import LatticeConfig
from toolkit.decode.denominators import LatticeFailuresError, make_lattices
from toolkit.features.gmm_features import GmmFeatures, GmmFrontend
from toolkit.features.shards import FeatureStore
from toolkit.fsa import search as fsa_search
from toolkit.fsa.config import Beam
from toolkit.fsa.decoding_graph import make_decoding_graph
from toolkit.fsa.fst import load_fst
from toolkit.fsa.lattice import acoustic_scores, best_path
from toolkit.fsa.lattice_store import (
    GraphCodec,
    LatticeStore,
    LatticeStoreError,
    graph_digest,
)
from toolkit.fsa.search import search_lattice
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.hmm.senones import Senones
from toolkit.lang.tables import SymbolTable
from toolkit.storage.files import write_atomically

ARPA = """\\data\\
ngram 1=6

\\1-grams:
-99\t<s>
-0.8\t</s>
-0.6\tAX
-0.7\tAY
-0.8\tBX
-0.5\tBY

\\end\\
"""
CONFIG = LatticeConfig(acoustic_scale=0.3, beam=Beam(20.0, 8.0, 30, 2000), max_failed=0.1)


class Task:
    """Drawn speech, a monophone system with the right densities, and a graph of the words."""

    def __init__(self, speech, folder):
        self.speech, self.graph = speech, folder / "graph.safetensors"
        topology = speech.topology
        self.senones = Senones.monophone(topology)
        self.scorer = GmmScorer(folder / "system", speech.cepstra)
        store = FeatureStore(speech.cepstra)
        shift = torch.stack([store.speaker_mean(s) for s in store.speakers]).mean(0).float()
        means, states = [], []
        for phone in topology.phone_ids():
            name = topology.phones[phone - 1]
            for state in range(topology.num_states(phone)):
                for left in ("A", "B"):  # X and Y sound the same without context
                    means.append(torch.tensor(speech.mean(left, name, state)) - shift)
                    states.append(topology.state_id(phone, state))
        owner = self.senones.pdfs(torch.tensor(states))
        order = owner.argsort(stable=True)
        gmm = Gmm(
            owner[order],
            torch.full((len(owner),), 0.5),
            torch.stack(means)[order],
            torch.ones(len(owner), speech.dimension),
        )
        frontend = GmmFrontend(projection=torch.eye(speech.dimension, 3 * speech.dimension))
        GmmSystem(GmmFeatures(speech.cepstra, frontend), self.senones, gmm).save(folder / "system")
        write_atomically(folder / "lm.arpa", ARPA)
        make_decoding_graph(speech.lang, folder / "lm.arpa", self.senones, self.graph)

    def make(self, out, config=CONFIG, jobs=1, **more):
        out.mkdir(exist_ok=True)
        return make_lattices(self.scorer, self.graph, config, out, jobs, **more)


@pytest.fixture(scope="module")
def task(draw, tmp_path_factory):
    speech = draw(utterances=4, truncated=("carl-03",))
    return Task(speech, tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def denominators(task, tmp_path_factory):
    out = tmp_path_factory.mktemp("lattices")
    return out, task.make(out)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stamps(folder):
    """Inode and time of each file: they change when it is rewritten."""
    status = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (file.st_ino, file.st_mtime_ns) for name, file in status.items()}


def test_every_utterance_has_a_lattice_or_a_reason(task, denominators):
    out, headline = denominators
    assert (headline["utterances"], headline["failed"], headline["retried"]) == (11, 1, 0)
    assert (out / "failed.tsv").read_text() == "carl-03\tno path within beam 80\n"
    store = LatticeStore(out, GraphCodec(task.graph))
    assert store.ids == [u for u in task.scorer.store.ids if u != "carl-03"]
    frames = sum(task.scorer.store.num_frames(u) for u in store.ids)
    arcs = sum(int((store.load(u).labels > 0).sum()) for u in store.ids)
    assert headline["density"] == pytest.approx(arcs / frames, abs=0.01)
    assert 5 < headline["density"] <= 10
    size = sum(path.stat().st_size for path in out.glob("lattices.*"))
    hours = sum(task.scorer.store.cut(u).duration for u in task.scorer.store.ids) / 3600
    assert headline["MB_per_hour"] == pytest.approx(size / 1e6 / hours, rel=0.01)
    assert headline["RTF"] > 0


def test_lattices_hold_the_reference_and_competing_words(task, denominators):
    store = LatticeStore(denominators[0], GraphCodec(task.graph))
    words = SymbolTable.read(task.speech.lang / "words.txt")
    for utterance in store.ids:
        lattice = store.load(utterance)
        scores = task.scorer.log_likelihoods(utterance) * CONFIG.acoustic_scale
        scored = lattice.scores + acoustic_scores(lattice, scores)
        best = best_path(replace(lattice, scores=scored))
        searched = best_path(search_lattice(scores, load_fst(task.graph), CONFIG.beam))
        assert best.words == searched.words
        assert best.score == pytest.approx(searched.score, abs=1e-3)
        # A and B sound different, X and Y do not: one of two words at each place is a toss-up.
        spoken = [word[0] for word in task.speech.transcripts[utterance]]
        assert [words.symbol(word)[0] for word in best.words] == spoken
        assert len(set(lattice.words.tolist())) == 4


def test_files_do_not_depend_on_jobs(task, denominators, tmp_path):
    assert task.make(tmp_path / "two", jobs=2)["density"] == denominators[1]["density"]
    assert files(tmp_path / "two") == files(denominators[0])


def test_finished_shards_are_kept_and_missing_ones_recreated(task, denominators, tmp_path):
    expected = files(denominators[0])
    finished, torn = sorted(name for name in expected if name.startswith("lattices"))
    (tmp_path / finished).write_bytes(expected[finished])
    (tmp_path / torn).write_bytes(expected[torn][:100])
    (tmp_path / "lattices.000007.safetensors").write_bytes(expected[torn])  # of another plan
    old_stamps = stamps(tmp_path)
    progress = []
    headline = task.make(tmp_path, progress=lambda *counts: progress.append(counts))
    assert files(tmp_path) == expected
    assert stamps(tmp_path)[finished] == old_stamps[finished]
    assert stamps(tmp_path)[torn] != old_stamps[torn]
    assert progress == [(1, 2), (2, 2)]
    assert {**headline, "RTF": 0} == {**denominators[1], "RTF": 0}
    assert "RTF" not in task.make(tmp_path)  # nothing was left to do


def test_shards_of_another_graph_are_recreated(task, denominators, tmp_path):
    for name, content in files(denominators[0]).items():
        (tmp_path / name).write_bytes(content.replace(graph_digest(task.graph).encode(), b"0" * 32))
    with pytest.raises(LatticeStoreError, match="another graph"):
        LatticeStore(tmp_path, GraphCodec(task.graph))
    task.make(tmp_path)
    assert files(tmp_path) == files(denominators[0])


def test_a_beam_too_narrow_is_widened(task, denominators, tmp_path, monkeypatch):
    def fail_below(min_beam):
        def search(scores, graph, beam):
            return search_lattice(scores, graph, beam) if beam.search >= min_beam else None

        monkeypatch.setattr(fsa_search, "search_lattice", search)

    config = replace(CONFIG, beam=replace(CONFIG.beam, search=10.0), retries=(2.0,))
    fail_below(20.0)
    headline = task.make(tmp_path / "all", config)
    assert (headline["utterances"], headline["retried"], headline["failed"]) == (11, 11, 1)
    assert (tmp_path / "all/failed.tsv").read_text() == "carl-03\tno path within beam 20\n"
    assert headline["density"] == denominators[1]["density"]
    fail_below(21.0)
    headline = task.make(tmp_path / "none", replace(config, max_failed=1.0))
    assert (headline["utterances"], headline["retried"], headline["failed"]) == (0, 0, 12)


def test_too_many_failures_are_an_error(task, tmp_path):
    with pytest.raises(LatticeFailuresError, match=r"1 of 12 .*carl-03 \(no path.*failed\.tsv"):
        task.make(tmp_path, replace(CONFIG, max_failed=0.05))


def test_bad_settings_are_refused():
    for bad in (
        {"density": 0.5},
        {"acoustic_scale": 0.0},
        {"retries": (1.0,)},
        {"max_failed": 2.0},
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            LatticeConfig(**bad)
