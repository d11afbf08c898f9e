import pytest

from benchmarks import score as bench
from benchmarks.run import BenchmarkError
from benchmarks.score import benchmark, synthetic_texts
from toolkit.score.wer import score


def test_texts_are_reproducible_and_have_the_requested_error_rate():
    refs, hyps = synthetic_texts(300)
    assert synthetic_texts(300) == (refs, hyps)
    result = score(refs, hyps)
    assert 9 < result.percent < 13
    assert min(result.insertions, result.deletions, result.substitutions) > 0


def test_all_sides_are_measured_on_equal_counts():
    table = benchmark(utterances=60, repeats=1)
    names = [row.name for row in table.rows]
    assert names[:2] == ["jiwer, words", "toolkit, words"]
    assert ("sclite, words" in names) == (bench.sclite() is not None)
    assert "60 utterances" in table.notes[0]


def test_unequal_counts_end_the_benchmark(monkeypatch):
    monkeypatch.setattr(bench, "sclite", lambda: ["sclite"])
    monkeypatch.setattr(bench, "sclite_counts", lambda refs, hyps: (0, 0, 0))
    with pytest.raises(BenchmarkError, match=r"sclite counts \(0, 0, 0\)"):
        benchmark(utterances=20, repeats=1)
