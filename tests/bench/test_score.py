import pytest
from click.testing import CliRunner

from toolkit.bench import score as bench
from toolkit.bench.instruments.harness import BenchmarkError
from toolkit.bench.score import benchmark, command, synthetic_texts
from toolkit.score.wer import score


def test_texts_are_the_same_for_the_same_numbers_and_as_wrong_as_said():
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


def test_the_command_prints_and_writes_the_table(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "sclite", lambda: None)
    path = tmp_path / "score.json"
    arguments = ["--utterances", "20", "--repeats", "1", "--json", str(path)]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert "sclite is not installed" in result.stdout
    assert '"baseline": "jiwer, words"' in path.read_text()


@pytest.mark.parametrize("option", ["--utterances", "--repeats"])
def test_nothing_is_not_measured(option):
    result = CliRunner().invoke(command, [option, "0"])
    assert result.exit_code == 2
    assert f"'{option}': 0 is not in the range" in " ".join(result.stderr.split())
