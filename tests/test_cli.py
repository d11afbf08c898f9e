import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit import __version__, cli


def run(*arguments):
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


@pytest.fixture
def files(tmp_path):
    (tmp_path / "ref").write_text("u1 the cat sat\nu2 on the mat\n")
    (tmp_path / "hyp").write_text("the hat sat (u1)\n")
    return tmp_path


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_with_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n    toolkit {command}", result.stdout)


def test_commands_are_those_listed():
    help_text = run("--help").stdout
    assert all(command in help_text for command in cli.COMMANDS)
    assert __version__ in run("--version").stdout


def test_the_package_runs_as_the_command():
    command = [sys.executable, "-m", "toolkit"]
    root = Path(cli.__file__).parents[1]
    done = subprocess.run([*command, "--version"], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"toolkit, version {__version__}\n")
    done = subprocess.run([*command, "no-such"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: toolkit ")


def test_score_prints_kaldis_lines(files):
    result = run("score", "--ref", files / "ref", "--hyp", files / "hyp")
    assert result.exit_code == 0
    assert result.stdout == (
        "%WER 66.67 [ 4 / 6, 0 ins, 3 del, 1 sub ] [PARTIAL]\n"
        "%SER 100.00 [ 2 / 2 ]\n"
        "Scored 2 sentences, 1 not present in hyp.\n"
    )
    assert "ref as text" in result.stderr
    assert "1 of 2 utterances have no hypothesis" in result.stderr


def test_score_in_characters_with_alignments(files):
    target = files / "errors.txt"
    arguments = ["--ref", files / "ref", "--hyp", files / "ref", "--alignments", target]
    result = run("score", *arguments, "--unit", "char-with-spaces", "--format", "text")
    assert result.stdout.startswith("%CER 0.00 [ 0 / 21, 0 ins, 0 del, 0 sub ]\n")
    assert result.stderr == ""
    assert "u1 0/11: the␣cat␣sat" in target.read_text()


def test_a_file_against_itself_is_scored_under_one_format(files):
    result = run("score", "--ref", files / "ref", "--hyp", files / "ref", "--format", "plain")
    assert result.stdout.startswith("%WER 0.00 [ 0 / 8, ")


def test_score_adds_the_interval_when_asked(files):
    arguments = ["score", "--ref", files / "ref", "--hyp", files / "hyp"]
    score_lines = run(*arguments).stdout.splitlines()
    result = run(*arguments, "--interval")
    assert result.stdout.splitlines() == [
        f"{score_lines[0]} 95% Conf Interval [ 33.33, 100.00 ]",
        *score_lines[1:],
    ]
    assert "resamples of 2 utterances" in result.stderr


def test_score_by_speaker(files):
    (files / "utt2spk").write_text("u1 ann\nu2 bob\n")
    arguments = ["--ref", files / "ref", "--hyp", files / "hyp", "--alignments", files / "errors"]
    result = run("score", *arguments, "--speakers", files / "utt2spk")
    assert "95% Conf Interval" in result.stdout
    assert "2 speakers are fewer than the 6" in result.stderr
    assert "EACH SPEAKER" in (files / "errors").read_text()
    (files / "utt2spk").write_text("u1 ann\n")
    result = run("score", *arguments, "--speakers", files / "utt2spk")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "first 'u2'" in result.stderr


def test_score_compare_prints_rates_difference_and_words(files):
    systems = ["--hyp", files / "hyp", "--hyp", files / "ref", "--hyp", files / "hyp"]
    result = run("score", "compare", "--ref", files / "ref", *systems)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("A: %WER 66.67 [ 4 / 6, 0 ins, 3 del, 1 sub ] [PARTIAL] 95% Conf")
    assert lines[1].startswith("B: %WER 0.00 [ 0 / 6, ")
    assert any(line.startswith("%WER of B minus A: -66.67 (-100.0 % rel") for line in lines)
    assert any(line.startswith("%WER of C minus A: +0.00 (+0.0 % relative)") for line in lines)
    assert "FEWER ERRORS BY B (4 words)" in lines
    assert "Note: A: 1 of 2 utterances have no hypothesis" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "--ref", "r"],
        ["score", "--hyp", "h"],
        ["score", "compare", "--ref", "r", "--hyp", "h"],
        ["score", "--ref", "r", "compare", "--hyp", "h", "--hyp", "g"],
        ["score", "compair"],
    ],
)
def test_a_wrong_score_command_ends_with_status_2(arguments):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")


def test_score_compare_has_help_with_an_example():
    result = run("score", "compare", "--help")
    assert "Example:\n    toolkit score compare --ref" in result.stdout
    assert "compare" in run("score", "--help").stdout


def test_fault_in_the_data_ends_with_its_message_and_status_1(files):
    result = run("score", "--ref", files / "absent", "--hyp", files / "hyp")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"Error: {files / 'absent'}: no such file\n"


def test_file_that_cannot_be_written_is_named(files):
    arguments = ["--ref", files / "ref", "--hyp", files / "hyp"]
    result = run("score", *arguments, "--alignments", files / "ref" / "errors.txt")
    assert result.exit_code == 1
    assert "Error: " in result.stderr
    assert str(files / "ref") in result.stderr


def test_a_full_disk_is_reported_with_the_file(files, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    out = files / "errors.txt"
    result = run("score", "--ref", files / "ref", "--hyp", files / "hyp", "--alignments", out)
    assert result.exit_code == 1
    assert result.stderr.endswith(f"Error: {out}: No space left on device\n")
    assert not out.exists()


@pytest.mark.parametrize("arguments", [["scroe"], ["score"], ["transcribe", "--model", "m"]])
def test_wrong_command_line_ends_with_status_2(arguments):
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(("works", "status"), [(True, 0), (False, 1)])
def test_doctors_verdict_is_the_exit_status(monkeypatch, works, status):
    import toolkit.doctor

    monkeypatch.setattr(toolkit.doctor, "run_checks", lambda as_json: works)
    assert run("doctor").exit_code == status


@pytest.mark.parametrize(
    ("words", "position", "completions"),
    [
        ("toolkit trans", 1, ["plain,transcribe"]),
        ("toolkit score --per-s", 2, ["plain,--per-speaker"]),
        ("toolkit transcribe --format s", 3, ["plain,srt"]),
    ],
)
def test_the_shell_completes_commands_options_and_values(words, position, completions):
    env = {"_TOOLKIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    result = CliRunner().invoke(cli.main, prog_name="toolkit", env=env)
    assert result.output.splitlines() == completions


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["score", "--help"], ["runs", "."]])
def test_output_that_cannot_be_written_is_named(arguments, tmp_path):
    command = [sys.executable, "-m", "toolkit", *arguments]
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[1])}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "Error: standard output cannot be written (No space left on device)\n"
