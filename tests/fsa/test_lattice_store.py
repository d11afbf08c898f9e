"""Stored lattices equal the searched ones."""

import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.fsa.enumeration import words_of
from toolkit.fsa import lattice_store
from toolkit.fsa.config import Beam
from toolkit.fsa.forward_backward import pack, total_scores
from toolkit.fsa.fst import FINAL, dump_fst, load_fst
from toolkit.fsa.lattice import acoustic_scores, best_arcs, prune_to_density
from toolkit.fsa.lattice_store import (
    GraphCodec,
    GraphInfo,
    LatticeStore,
    LatticeStoreError,
    graph_digest,
    write_lattices,
)
from toolkit.fsa.search import search_lattice
from toolkit.storage.digests import digest_bytes

WIDE = Beam(1000.0, 1000.0, 1, 10**6)


class Written:
    """Two shards of lattices of one graph, and their scores and arcs."""

    def __init__(self, graph, folder, density):
        self.graph, self.folder, self.density = graph, folder, density
        fsa, self.codec = load_fst(graph.path), GraphCodec(graph.path)
        self.scores, self.arcs = {}, {}
        for seed, frames in enumerate((4, 6, 3, 5)):
            scores = torch.randn(frames, 4, generator=torch.Generator().manual_seed(seed))
            lattice = search_lattice(scores, fsa, WIDE)
            self.scores[f"u{seed}"] = scores
            self.arcs[f"u{seed}"] = prune_to_density(lattice, frames, density, 500.0)
        shards = (("u0", "u1"), ("u2", "u3"))
        for number, names in enumerate(shards):
            write_lattices(
                self.path(number),
                {name: self.arcs[name] for name in names},
                self.codec,
                GraphInfo(number, (("bad", "no frames"),) if number else ()),
            )

    def path(self, number):
        return self.codec.path(self.folder, number)

    def store(self):
        return LatticeStore(self.folder, GraphCodec(self.graph.path))


@pytest.fixture
def written(random_graph, tmp_path):
    return Written(random_graph(3), tmp_path / "lattices", density=100.0)


def test_an_unpruned_lattice_with_acoustic_scores_equals_the_searched_one(written):
    store = written.store()
    assert store.ids == ["u0", "u1", "u2", "u3"]
    for name, scores in written.scores.items():
        lattice = store.load(name)
        paths = {p: written.graph.score(p, scores) for p in written.graph.paths(len(scores))}
        scored = replace(lattice, scores=lattice.scores + acoustic_scores(lattice, scores))
        packed = pack([scored], torch.device("cpu"))
        assert float(total_scores(packed, packed.scores)) == pytest.approx(
            float(torch.tensor([*paths.values()]).logsumexp(0)), abs=1e-4
        )
        best = scored.select_arcs(
            best_arcs(scored.source, scored.target, scored.scores, scored.num_states)
        )
        assert float(best.scores.sum()) == pytest.approx(max(paths.values()), abs=1e-4)
        graph = written.graph.fst
        arcs = list(max(paths, key=paths.get))
        assert best.labels.tolist() == graph.labels[arcs].tolist()
        assert words_of(best) == [words_of(graph)[a] for a in arcs]
        assert best.frame.tolist() == [*range(len(scores)), len(scores)]
        assert best.graph_arc.tolist() == arcs


@pytest.mark.parametrize("density", [2.0, 4.0])
def test_arcs_have_the_labels_words_and_scores_of_the_graph(random_graph, tmp_path, density):
    written = Written(random_graph(4), tmp_path / "lattices", density)
    store, graph = written.store(), written.graph.fst
    for name, arcs in written.arcs.items():
        lattice = store.load(name)
        assert lattice.graph_arc.tolist() == arcs.arc.tolist()
        assert np.array_equal(lattice.labels, graph.labels[arcs.arc])
        assert np.array_equal(lattice.scores, graph.scores[arcs.arc])
        assert np.array_equal(lattice.lm_scores, graph.lm_scores[arcs.arc])
        words = words_of(graph)
        assert words_of(lattice) == [words[a] for a in arcs.arc]
        final = lattice.labels == FINAL
        assert (lattice.frame[final] == arcs.frames).all()
        assert lattice.frame.tolist() == arcs.frame.tolist()
        for column in (lattice.source, lattice.target, lattice.labels, lattice.frame, arcs.arc):
            assert column.dtype == np.int32
        # Lattice states are graph states in a frame: connected, one end, none twice.
        assert (np.diff(lattice.source) >= 0).all()
        assert (lattice.source < lattice.target).all()
        last = lattice.num_states - 1
        assert set(lattice.target[final].tolist()) == {last}
        assert set(lattice.source.tolist()) == set(range(last))
        assert set(lattice.target.tolist()) == set(range(1, last + 1))
        frames = arcs.frame.tolist()
        states = list(zip(frames, graph.source[arcs.arc].tolist(), strict=True))
        sources = lattice.source.tolist()
        assert len(set(zip(sources, states, strict=True))) == len(set(sources)) == len(set(states))
        entered = [(f + 1, t) for f, t in zip(frames, graph.target[arcs.arc].tolist(), strict=True)]
        by_state = dict(zip(sources, states, strict=True))
        targets = lattice.target[~final].tolist()
        reached = [place for place, ends in zip(entered, final, strict=True) if not ends]
        assert [by_state[t] for t in targets] == reached


def test_changing_a_loaded_lattice_changes_no_other(written):
    store = written.store()
    first = store.load("u1")
    columns = ("source", "target", "labels", "scores", "splits", "words", "lm_scores", "frame")
    original_columns = [getattr(store.load("u1"), name).copy() for name in columns]
    for name in columns:
        getattr(first, name)[:] = 7
    first.graph_arc[:] = 7
    for name, column in zip(columns, original_columns, strict=True):
        assert np.array_equal(getattr(store.load("u1"), name), column)
        assert np.array_equal(getattr(written.store().load("u1"), name), column)


def test_another_graph_is_refused_and_named(written, random_graph, tmp_path):
    other_graph = random_graph(8)
    with pytest.raises(LatticeStoreError, match=r"another graph .*graph8\.safetensors"):
        LatticeStore(written.folder, GraphCodec(other_graph.path))
    # The same graph with one score changed a little is another one.
    changed_graph = replace(written.graph.fst, scores=written.graph.fst.scores + np.float32(1e-6))
    written.graph.path.write_bytes(dump_fst(changed_graph))
    with pytest.raises(LatticeStoreError, match="make the lattices again"):
        written.store()


def test_the_digest_is_that_of_the_content(written, tmp_path):
    content = written.graph.path.read_bytes()
    assert graph_digest(written.graph.path) == digest_bytes(content)


def test_headers_count_the_lattices_of_their_shards(written):
    header = written.codec.read_header(written.path(1))
    assert (header.ids, header.failed, header.lengths) == (("u2", "u3"), ("bad",), (3, 5))
    arcs = sum(written.arcs[name].num_emitting for name in header.ids)
    assert header.info == GraphInfo(1, (("bad", "no frames"),), arcs)
    assert written.store().failed == ["bad"]


def test_frames_are_counted_without_reading_lattices(written):
    for number in range(2):
        path = written.path(number)
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")  # of the header
        path.write_bytes(content[:end] + bytes(len(content) - end))
    store = written.store()
    with pytest.raises(LatticeStoreError, match="damaged"):
        store.load("u0")
    assert [store.num_frames(name) for name in store.ids] == [4, 6, 3, 5]
    with pytest.raises(LatticeStoreError, match=r"bad has no lattice .*failed\.tsv"):
        store.num_frames("bad")


def with_header(path, **changes):
    """Rewrite a shard with other fields in its header."""
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["lattices"])
    save_file(load_file(path), path, {"lattices": json.dumps(header | changes)})


def test_counts_that_do_not_fit_are_damage(written):
    with_header(written.path(0), lengths=[4, 7])
    with pytest.raises(LatticeStoreError, match="lengths do not fit"):
        written.store()


def test_shards_of_another_format_are_refused(written):
    with_header(written.path(0), format=1)
    with pytest.raises(
        LatticeStoreError, match=r"lattices\.000000.*format 1, but this version reads format 3"
    ):
        written.store()


def test_missing_damaged_and_foreign_files(written, tmp_path):
    with pytest.raises(LatticeStoreError, match=r"bad has no lattice .*failed\.tsv"):
        written.store().load("bad")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LatticeStoreError, match="no lattices"):
        LatticeStore(tmp_path / "empty", written.codec)
    path = written.path(0)
    content = path.read_bytes()
    store = written.store()
    path.write_bytes(content[:-40] + bytes(40))
    with pytest.raises(LatticeStoreError, match=r"lattices\.000000.* damaged"):
        store.load("u0")
    path.write_bytes(content[:50])
    with pytest.raises(LatticeStoreError, match="damaged"):
        written.store()
    save_file(load_file(written.path(1)), path)  # no header
    with pytest.raises(LatticeStoreError, match="damaged"):
        written.store()


def test_a_store_is_pickled_for_other_processes(written):
    store = written.store()
    expected = store.load("u3").scores
    copy = pickle.loads(pickle.dumps(store))
    assert np.array_equal(copy.load("u3").scores, expected)
    assert len(pickle.dumps(store)) < 2000 + written.graph.path.stat().st_size / 4


def test_few_shards_stay_unpacked(written, monkeypatch):
    for number in range(2, 5):
        shutil.copy(written.path(1), written.path(number))
    monkeypatch.setattr(lattice_store, "BLOCKS", 1)
    store = written.store()
    for name in ("u0", "u2", "u0", "u1", "u2"):
        assert store.load(name).graph_arc.tolist() == written.arcs[name].arc.tolist()
    for path in written.folder.glob("lattices.*"):
        path.unlink()
    assert store.load("u2").graph_arc.tolist() == written.arcs["u2"].arc.tolist()
    with pytest.raises(LatticeStoreError, match="damaged"):  # it has to be unpacked again
        store.load("u0")
