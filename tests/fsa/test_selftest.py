import pytest

from toolkit.fsa import search
from toolkit.fsa.fst import fst_from_arcs


def test_the_search_finds_the_hand_computed_path():
    assert search.intersect_two_frames() == "dense pruned intersection (native)"


def test_a_wrong_answer_is_an_error(monkeypatch):
    def other(arcs, finals):
        return fst_from_arcs([(*arc[:4], 9 * arc[4]) for arc in arcs], finals)

    monkeypatch.setattr(search, "fst_from_arcs", other)
    with pytest.raises(RuntimeError, match="the search found"):
        search.intersect_two_frames()
