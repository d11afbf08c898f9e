import pytest

k2 = pytest.importorskip("k2")

from toolkit.fsa import selftest  # noqa: E402


def test_k2_finds_the_path_worked_out_by_hand():
    assert selftest.intersect_two_frames() == "dense pruned intersection"


def test_a_wrong_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(selftest, "_GRAPH", selftest._GRAPH.replace("-0.25", "-9.0"))
    with pytest.raises(RuntimeError, match="k2 found"):
        selftest.intersect_two_frames()
