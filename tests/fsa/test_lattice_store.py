"""Stored lattices against what was searched."""

import pickle
import shutil

import pytest
import torch

k2 = pytest.importorskip("k2")

from safetensors.torch import load_file, save_file  # noqa: E402

from toolkit.fsa import lattice_store  # noqa: E402
from toolkit.fsa.arcs import dump_fsa, load_graph  # noqa: E402
from toolkit.fsa.lattice import acoustic_scores  # noqa: E402
from toolkit.fsa.lattice_density import number_arcs, prune_to_density  # noqa: E402
from toolkit.fsa.lattice_store import (  # noqa: E402
    LatticeStore,
    LatticeStoreError,
    ShardHeader,
    graph_digest,
    graph_index,
    shard_path,
    write_shard,
)
from toolkit.fsa.search import Beam, search_lattice  # noqa: E402
from toolkit.storage.digest import digest_bytes  # noqa: E402

WIDE = Beam(1000.0, 1000.0, 1, 10**6)


class Written:
    """Two shards of lattices of one graph, and what they were made of."""

    def __init__(self, graph, folder, density):
        self.graph, self.folder, self.density = graph, folder, density
        fsa = number_arcs(load_graph(graph.path))
        self.scores, self.arcs = {}, {}
        for seed, frames in enumerate((4, 6, 3, 5)):
            scores = torch.randn(frames, 4, generator=torch.Generator().manual_seed(seed))
            lattice = search_lattice(scores, fsa, WIDE)
            self.scores[f"u{seed}"] = scores
            self.arcs[f"u{seed}"] = prune_to_density(lattice, frames, density, 500.0)
        shards = (("u0", "u1"), ("u2", "u3"))
        for number, names in enumerate(shards):
            write_shard(
                shard_path(folder, number),
                {name: self.arcs[name] for name in names},
                graph_index(fsa),
                graph_digest(graph.path),
                retried=number,
                failed=[("bad", "no frames")] if number else [],
            )

    def store(self):
        return LatticeStore(self.folder, self.graph.path)


@pytest.fixture
def written(random_graph, tmp_path):
    return Written(random_graph(3), tmp_path / "lattices", density=100.0)


def test_with_acoustic_scores_a_whole_lattice_is_the_one_searched(written):
    store = written.store()
    assert store.ids == ["u0", "u1", "u2", "u3"]
    for name, scores in written.scores.items():
        lattice = store.load(name)
        paths = {p: written.graph.score(p, scores) for p in written.graph.paths(len(scores))}
        lattice.scores = lattice.scores + acoustic_scores(lattice, scores)
        total = k2.create_fsa_vec([lattice]).get_tot_scores(True, True)
        assert float(total) == pytest.approx(
            float(torch.tensor([*paths.values()]).logsumexp(0)), abs=1e-4
        )
        best = k2.shortest_path(k2.create_fsa_vec([lattice]), True)
        assert float(best.scores.sum()) == pytest.approx(max(paths.values()), abs=1e-4)
        own = written.graph.fsa
        arcs = list(max(paths, key=paths.get))
        assert best.labels.tolist() == own.labels[arcs].tolist()
        assert best.aux_labels.tolist() == [own.aux_labels.tolist()[a] for a in arcs]
        assert best.frame.tolist() == [*range(len(scores)), -1]


@pytest.mark.parametrize("density", [2.0, 4.0])
def test_every_arc_has_what_the_graph_has(random_graph, tmp_path, density):
    written = Written(random_graph(4), tmp_path / "lattices", density)
    store, own = written.store(), written.graph.fsa
    for name, arcs in written.arcs.items():
        lattice = store.load(name)
        assert store.arcs(name).arc.tolist() == arcs.arc.tolist()
        assert store.arcs(name).frame.tolist() == arcs.frame.tolist()
        number = torch.from_numpy(arcs.arc).long()
        assert torch.equal(lattice.labels, own.labels[number])
        assert torch.equal(lattice.scores, own.scores[number])
        assert torch.equal(lattice.lm_scores, own.lm_scores[number])
        words = own.aux_labels.tolist()
        assert lattice.aux_labels.tolist() == [words[a] for a in arcs.arc]
        final = lattice.labels == -1
        assert (lattice.frame[final] == -1).all()
        assert lattice.frame[~final].tolist() == arcs.frame[~final.numpy()].tolist()
        # Lattice states are graph states in a frame: connected, one end, none twice.
        assert k2.connect(lattice).num_arcs == lattice.num_arcs
        frames = arcs.frame.tolist()
        graph_arcs = own.arcs.values()[number]
        states = dict(enumerate(zip(frames, graph_arcs[:, 0].tolist(), strict=True)))
        sources = lattice.arcs.values()[:, 0].tolist()
        assert len(set(zip(sources, states.values(), strict=True))) == len(set(sources))


def test_lattices_have_memory_of_their_own(written):
    store = written.store()
    first = store.load("u1")
    before = store.load("u1").scores.clone()
    first.scores = first.scores * 0 - 7
    assert torch.equal(store.load("u1").scores, before)
    assert torch.equal(store.load("u1").scores, written.store().load("u1").scores)


def test_another_graph_is_refused_and_named(written, random_graph, tmp_path):
    other = random_graph(8)
    with pytest.raises(LatticeStoreError, match=r"another graph .*graph8\.safetensors"):
        LatticeStore(written.folder, other.path)
    # The same graph with one score changed a little is another one.
    written.graph.fsa.scores = written.graph.fsa.scores + 1e-6
    written.graph.path.write_bytes(dump_fsa(written.graph.fsa))
    with pytest.raises(LatticeStoreError, match="make the lattices again"):
        written.store()


def test_the_digest_is_that_of_the_content(written, tmp_path):
    content = written.graph.path.read_bytes()
    assert graph_digest(written.graph.path) == digest_bytes(content)


def test_headers_tell_what_shards_hold(written):
    facts = ShardHeader.read(shard_path(written.folder, 1))
    assert facts.ids == ("u2", "u3")
    assert facts.frames == 8
    assert facts.arcs == sum(written.arcs[name].num_emitting for name in facts.ids)
    assert (facts.retried, facts.failed) == (1, (("bad", "no frames"),))


def test_missing_damaged_and_foreign_files(written, tmp_path):
    with pytest.raises(LatticeStoreError, match=r"bad has no lattice .*failed\.tsv"):
        written.store().load("bad")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LatticeStoreError, match="no lattices"):
        LatticeStore(tmp_path / "empty", written.graph.path)
    path = shard_path(written.folder, 0)
    content = path.read_bytes()
    store = written.store()
    path.write_bytes(content[:-40] + bytes(40))
    with pytest.raises(LatticeStoreError, match=r"lattices\.000000.* damaged"):
        store.load("u0")
    path.write_bytes(content[:50])
    with pytest.raises(LatticeStoreError, match="damaged"):
        written.store()
    save_file(load_file(shard_path(written.folder, 1)), path)  # no header
    with pytest.raises(LatticeStoreError, match="damaged"):
        written.store()


def test_a_store_travels_to_other_processes(written):
    store = written.store()
    expected = store.load("u3").scores
    copy = pickle.loads(pickle.dumps(store))
    assert torch.equal(copy.load("u3").scores, expected)
    assert len(pickle.dumps(store)) < 2000 + written.graph.path.stat().st_size / 4


def test_few_shards_stay_unpacked(written, monkeypatch):
    for number in range(2, 5):
        shutil.copy(shard_path(written.folder, 1), shard_path(written.folder, number))
    monkeypatch.setattr(lattice_store, "BLOCKS", 1)
    store = written.store()
    for name in ("u0", "u2", "u0", "u1"):
        assert store.arcs(name).arc.tolist() == written.arcs[name].arc.tolist()
    assert len(store._blocks) == 1
