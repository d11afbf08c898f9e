"""`-` in place of a file, and options that do not take it."""

import json
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from toolkit.cli import main
from toolkit.pipeline.rates import Rates, StepRate

STEPS = ("select", "extract", "shuffle", "stats", "targets", "repartition")


def run(*arguments, stdin=None):
    return CliRunner().invoke(main, list(map(str, arguments)), input=stdin)


@pytest.fixture
def transcripts(tmp_path, monkeypatch):
    """A folder to work in, with references and hypotheses."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref").write_text("a-1 ONE TWO\nb-1 ONE\n")
    (tmp_path / "hyp").write_text("a-1 ONE\nb-1 ONE\n")
    return tmp_path


@pytest.mark.parametrize("more_runs", [[], ["other"]])
def test_the_page_of_a_run_is_printed_alone(tmp_path, monkeypatch, more_runs):
    monkeypatch.chdir(tmp_path)

    def write(*arguments):
        page = next(path for path in arguments if path.name == "standard-output")
        page.write_text("<p>é</p>\n", encoding="utf-8")
        return ["a.tsv: damaged"]

    pages = SimpleNamespace(
        write_report=write, write_comparison=write, ReportConfig=lambda *settings: settings
    )
    monkeypatch.setitem(sys.modules, "toolkit.report.run_page", pages)
    result = run("report", "run", *more_runs, "--out", "-")
    assert result.exit_code == 0, result.output
    assert result.stdout == "<p>é</p>\n"
    assert result.stderr == "Note: a.tsv: damaged\n"
    assert not list(tmp_path.iterdir())


def test_speakers_come_from_standard_input_or_the_ids(transcripts):
    arguments = ["score", "--ref", "ref", "--hyp", "hyp", "--json", "--speakers"]
    result = run(*arguments, "-", stdin="a-1 eve\nb-1 eve\n")
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)["speakers"]) == ["eve"]
    assert list(json.loads(run(*arguments, "id").stdout)["speakers"]) == ["a", "b"]


def test_standard_input_is_not_read_for_speakers_and_hypotheses(transcripts):
    result = run("score", "--ref", "ref", "--hyp", "-", "--speakers", "-", stdin="a-1 ONE\n")
    assert result.exit_code == 2
    assert "standard input can be read only once" in result.stderr


def test_mapping_rules_come_from_standard_input(transcripts):
    (transcripts / "hyp").write_text("a-1 ONE SIX\nb-1 ONE\n")
    rules = ';;\n* name = "x"\n[SIX] => [TWO] / [ ] __ [ ]\n'
    result = run("score", "--ref", "ref", "--hyp", "hyp", "--glm", "-", stdin=rules)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("%WER 0.00 [ 0 / 3, ")
    assert "GLM standard-input (sha256 " in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("score", "--ref", "ref", "--hyp", "hyp", "--out", "-"),
        ("combine", "hyp", "--out", "-"),
        ("export", "--model", "final", "--out", "-"),
        ("lattice", "export", "dev", "--out", "-"),
        ("kaldi", "export-data", "--cuts", "a.jsonl", "--out", "-"),
        ("align", "--model", "m", "--audio-dir", "a", "--text", "ref", "--out", "-"),
    ],
)
def test_a_folder_cannot_be_standard_output(transcripts, arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "a folder cannot be standard output" in result.stderr
    assert not (transcripts / "-").exists()


def test_a_folder_called_dash_can_be_named(transcripts):
    assert run("combine", "hyp", "--out", "./-").exit_code == 0
    assert (transcripts / "-/text").exists()


@pytest.mark.parametrize("option", ["--from-csv", "--from-kaldi", "--lm-text"])
def test_a_recipe_reads_its_data_again(option):
    result = run("new-corpus", "mine", option, "-", stdin="audio,text\n")
    assert result.exit_code == 2
    assert "reads the data more than once: give a file" in " ".join(result.stderr.split())


def test_cuts_are_printed_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/wav.scp").write_text("a-1 a.wav\n")
    (tmp_path / "data/text").write_text("a-1 ONE\n")
    (tmp_path / "data/utt2spk").write_text("a-1 a\n")
    result = run("kaldi", "import-data", "data", "--out", "-")
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["a-1"]
    assert not (tmp_path / "-").exists()


@pytest.fixture
def rates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rates.json"
    Rates(dict.fromkeys(STEPS, StepRate(1000.0, 1e8, 5e7))).save(path)
    return path


def test_a_plan_is_printed_as_one_document(rates):
    result = run("pipeline", "plan", "--rates", "-", "--json", "-", stdin=rates.read_text())
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["hours"] == 1e6
    assert "Comparison with the paper's run" in result.stderr
    assert not rates.with_name("-").exists()


def test_messages_call_dash_standard_input(tmp_path):
    reference = tmp_path / "text"
    reference.write_text("u1 go on\n")
    result = run("score", "--ref", reference, "--hyp", "-", stdin="u1 go on\n")
    assert f"Read {reference} as text, standard input as text" in result.stderr
    result = run("score", "--ref", reference, "--hyp", "-", stdin="u1 go on\nu1 go\n")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: standard input:2: ")
