"""`-` in place of a file of text, and numbers."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import toolkit
from toolkit.config.click_types import TEXT_IN, TEXT_OUT, Number


@click.command()
@click.option("--read", type=TEXT_IN, multiple=True)
@click.option("--extra", type=TEXT_IN)
@click.option("--write", type=TEXT_OUT)
@click.option("--fail", is_flag=True)
def command(read, extra, write, fail):
    for path in (*read, *filter(None, [extra])):
        click.echo(f"{path.name} {path.read_text()!r} {path}")
    if fail:
        raise click.ClickException("no")
    if write is not None:
        write.write_text("é out\n", encoding="utf-8")
    click.echo("end")


def run(*arguments, stdin=""):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], input=stdin)


def test_standard_input_is_a_file_while_the_command_runs(tmp_path):
    (tmp_path / "x").write_text("file")
    result = run("--read", tmp_path / "x", "--read", "-", stdin="a\nb\n")
    first, second, _ = result.output.splitlines()
    assert first == f"x 'file' {tmp_path}/x"
    assert second.startswith(r"standard-input 'a\nb\n' ")
    assert not Path(second.split()[-1]).exists()


@pytest.mark.parametrize(
    "arguments", [("--read", "-", "--read", "-"), ("--read", "-", "--extra", "-")]
)
def test_standard_input_is_read_once(arguments):
    result = run(*arguments, stdin="a")
    assert result.exit_code == 2
    assert "standard input can be read only once" in result.output


def test_output_is_printed_when_the_command_ends(tmp_path):
    assert run("--write", "-").output == "end\né out\n"
    assert run("--write", "-", "--fail").output == "Error: no\n"
    assert run("--write", tmp_path / "out").output == "end\n"
    assert (tmp_path / "out").read_text() == "é out\n"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("u1 the cat\n", "standard-input"),
        ("", "standard-input"),
        ("u1 a 1 2 three\n", "standard-input"),
        ("a 1 0.500 0.500 A 0.9000\n", "standard-input.ctm"),
        (";; made by us\na 1 0.5 0.5 A\n", "standard-input.ctm"),
        ("a 1 0.5 0.5 A\nb 1 a b c\n", "standard-input"),
        ('{"name": "a", "text": "A"}\n', "standard-input.jsonl"),
        ('{"id": "a", "supervisions": []}\n{', "standard-input.jsonl"),
        ('{"a": "A"}\n', "standard-input.json"),
        ('{\n"a": "A"}\n', "standard-input.json"),
        ('[{"id": "a", "text": "A"}]\n', "standard-input.json"),
        ("[noise] hello world (a-1)\n", "standard-input"),
        ("{ a / b } c (a-1)\n", "standard-input"),
        ("{" * 100_000, "standard-input"),
        ("[" * 100_000, "standard-input"),
        ("\n" * 30 + '{"text": "A", "name": "a"}\n', "standard-input.jsonl"),
        (f'{{"text": "{"A " * 40_000}", "name": "a"}}\n{{}}\n', "standard-input.jsonl"),
        ('{"id": "a", "words": 1}\n{"id": "b"}\n', "standard-input.jsonl"),
        ('\ufeff{"a": "A"}\n', "standard-input.json"),
        ("rec 1 0 0.5 hello\nrec 1 1 1 you\n", "standard-input.ctm"),
        ("rec 1 &&0.5 -.5 hello\nrec 1 * * <ALT_BEGIN>\n", "standard-input.ctm"),
    ],
)
def test_its_name_tells_readers_the_format(content, name):
    assert run("--extra", "-", stdin=content).output.split()[0] == name


@pytest.mark.parametrize(
    ("redirection", "message"),
    [("<&-", "is closed"), ("0>x", "cannot be read: Bad file descriptor")],
)
def test_unreadable_standard_input_is_reported(tmp_path, redirection, message):
    command = f"{sys.executable} -m toolkit score --ref ref --hyp - {redirection}"
    environment = os.environ | {"PYTHONPATH": str(Path(toolkit.__file__).parents[1])}
    process = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert f"Invalid value for '--hyp': standard input {message}" in process.stderr


def test_bytes_that_cannot_be_printed_are_reported():
    script = (
        "import click\nfrom toolkit.cli import main\n"
        "from toolkit.config.click_types import TEXT_OUT\n"
        "@main.command()\n@click.option('--out', type=TEXT_OUT)\n"
        "def written(out): out.write_bytes(b'x')\n"
        "type(main).get_command = click.Group.get_command; main(['written', '--out', '-'])"
    )
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-c", script],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert process.returncode == 1
    assert process.stderr == "Error: standard output cannot be written (No space left on device)\n"


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "1e999"])
def test_numbers_are_finite(text):
    for range in (Number(), Number(0.1)):
        with pytest.raises(click.BadParameter):
            range.convert(text, None, None)
    assert Number(0.1).convert("0.5", None, None) == 0.5
