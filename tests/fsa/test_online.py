"""The search that goes on while scores arrive, against k2's of all scores at once."""

import pytest
import torch

k2 = pytest.importorskip("k2")
pytest.importorskip("kaldilm")

from toolkit.bench.instruments.synthetic_sentences import SyntheticSentences  # noqa: E402
from toolkit.fsa.arcs import fsa_from_arcs, load_graph  # noqa: E402
from toolkit.fsa.lattice_density import number_arcs  # noqa: E402
from toolkit.fsa.online import OnlineSearch  # noqa: E402
from toolkit.fsa.search import Beam, GraphMismatchError, best_path, search_lattice  # noqa: E402

SCALE = 0.3


@pytest.fixture(scope="module")
def language():
    return SyntheticSentences.make(words=80)


@pytest.fixture(scope="module")
def graph(language, tmp_path_factory):
    return number_arcs(load_graph(language.graph(tmp_path_factory.mktemp("graph"), sentences=200)))


def ragged(splits, values):
    shape = k2.ragged.create_ragged_shape2(torch.tensor(splits, dtype=torch.int32))
    return k2.RaggedTensor(shape, torch.tensor(values, dtype=torch.int32))


def arcs(lattice):
    """(frame, arc of the graph) -> score."""
    places = zip(lattice.frame.tolist(), lattice.graph_arc.tolist(), strict=True)
    return dict(zip(places, lattice.scores.tolist(), strict=True))


def advanced(graph, beam, scores, piece):
    search = OnlineSearch(graph, beam)
    for begin in range(0, len(scores), piece):
        search.advance(scores[begin : begin + piece])
    return search


# Ones that meet the bound on the fewest states too, and a lattice wider than the search.
BEAMS = [Beam(12.0, 5.0), Beam(6.0, 8.0), Beam(2.0, 2.0, min_active=200, max_active=4000)]


def both(language, graph, beam, seconds, piece):
    scores = language.sentence(int(10 * seconds), seconds).scores * SCALE
    return search_lattice(scores, graph, beam), advanced(graph, beam, scores, piece).finish()


@pytest.mark.parametrize("beam", BEAMS, ids=str)
@pytest.mark.parametrize(("seconds", "piece"), [(0.2, 1), (1.0, 7), (4.0, 1), (9.0, 33)])
def test_the_lattice_is_that_of_all_scores_at_once(language, graph, beam, seconds, piece):
    expected, found = both(language, graph, beam, seconds, piece)
    assert arcs(found).keys() == arcs(expected).keys()
    assert arcs(found) == pytest.approx(arcs(expected), abs=1e-4)
    assert best_path(found).pdfs.tolist() == best_path(expected).pdfs.tolist()
    assert best_path(found).words == best_path(expected).words
    assert found.lm_scores.sum() == pytest.approx(float(expected.lm_scores.sum()), rel=1e-4)


@pytest.mark.parametrize("most", [60, 200])
def test_a_beam_that_meets_the_most_states_gives_no_less(language, graph, most):
    beam = Beam(15.0, 6.0, min_active=30, max_active=most)
    for seconds in (0.2, 0.6, 1.0, 4.0):
        expected, found = both(language, graph, beam, seconds, 5)
        assert arcs(found).keys() >= arcs(expected).keys()
        assert len(arcs(found)) < 1.1 * len(arcs(expected))
        assert best_path(found).words == best_path(expected).words


def test_the_best_words_so_far_are_those_of_the_best_beginning(language, graph):
    """Against k2 on the same graph with every state final."""
    arcs = graph.arcs.values()
    inner = arcs[:, 2] > 0
    last = int(arcs[:, :2].max())
    ends = torch.arange(last, dtype=torch.int32)
    table = torch.cat(
        [arcs[inner], torch.stack([ends, ends * 0 + last, ends * 0 - 1, ends * 0], 1)]
    )
    order = table[:, 0].argsort(stable=True)
    words, _ = graph.aux_labels.index(torch.nonzero(inner)[:, 0].int(), axis=0)
    none = ragged([0] * (last + 1), [])
    open_ended = k2.Fsa(table[order].contiguous())
    open_ended.aux_labels = k2.ragged.cat([words, none], axis=0).index(order.int(), axis=0)[0]
    beam = Beam(20.0, 3.0)
    scores = language.sentence(3, 1.5).scores * SCALE
    search, checked = OnlineSearch(graph, beam), 0
    for end in range(1, len(scores) + 1):
        search.advance(scores[end - 1 : end])
        if end % 12 == 0:
            path = best_path(search_lattice(scores[:end], k2.create_fsa_vec([open_ended]), beam))
            assert search.best_words() == path.words
            checked += len(path.words)
    assert checked > 8


def test_nothing_comes_of_nothing(graph):
    search = OnlineSearch(graph, BEAMS[0])
    assert search.best_words() == []
    assert search.finish() is None


def test_no_path_to_the_end_is_none_as_for_all_at_once():
    """One word of three frames: two do not suffice."""
    chain = fsa_from_arcs([(0, 1, 1, 7, 0.0), (1, 2, 2, 0, 0.0), (2, 3, 1, 0, 0.0)], [3])
    chain.aux_labels = ragged([0, 1, 1, 1, 1], [7])
    graph = k2.create_fsa_vec([chain])
    for frames in (1, 2, 4):
        scores = torch.zeros(frames, 2)
        assert search_lattice(scores, graph, BEAMS[0]) is None
        assert advanced(graph, BEAMS[0], scores, 1).finish() is None
    assert advanced(graph, BEAMS[0], torch.zeros(3, 2), 2).finish() is not None
    search = OnlineSearch(graph, BEAMS[0])
    assert search.next_words() == [7]
    with pytest.raises(GraphMismatchError, match="has 2 pdfs, the acoustic model 1"):
        search.advance(torch.zeros(1, 1))


def test_memory_does_not_grow_with_what_is_decided(language, graph):
    scores = language.sentence(5, 30.0).scores * SCALE
    search = advanced(graph, BEAMS[0], scores, 50)
    kept = [len(frame.arc) for frame in search._frames]
    assert max(kept[:-60]) < max(kept[-10:])
    assert search._count < 2000  # of some hundred thousand beginnings
