"""The `toolkit` command: one thin command per library function, imports made when needed.

Exit status: 0 done, 1 a fault in the data or the machine (its message on standard error), 2 a
command typed wrongly.
"""

import json
from pathlib import Path
from typing import Any

import click

from toolkit import __version__
from toolkit.errors import ToolkitError

FILE = click.Path(path_type=Path)


class _Group(click.Group):
    """A group whose commands end a user's fault with a message instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ToolkitError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.filename is None:  # no file of the user's: a closed pipe, or our own fault
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror}") from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="toolkit")
def main() -> None:
    """Speech recognition recipes: check the machine, score, transcribe, measure."""


@main.command()
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Test the engines and the machine.

    Says how to mend what is broken. Exit status 1 when something that the recipes need does not
    work.

    \b
    Example:
      toolkit doctor
    """
    from toolkit.doctor import examine

    ctx.exit(0 if examine() else 1)


@main.command()
@click.argument("name")
@click.option("--json", "json_file", type=FILE, help="Also write the table to this file.")
def bench(name: str, json_file: Path | None) -> None:
    """Run a benchmark and print its ratios.

    NAME is that of a module in toolkit/bench; all sides are measured in turns.

    \b
    Example:
      toolkit bench features --json features.json
    """
    from toolkit.bench.harness import run_benchmark
    from toolkit.stages.files import write_atomically

    table = run_benchmark(name)
    table.print()
    if json_file is not None:
        write_atomically(json_file, json.dumps(table.to_json(), indent=1) + "\n")


@main.command()
@click.option("--ref", type=FILE, required=True, help="The reference transcripts.")
@click.option("--hyp", type=FILE, required=True, help="The recognised transcripts.")
@click.option(
    "--unit",
    type=click.Choice(["word", "char"]),
    default="word",
    show_default=True,
    help="What to count: words (WER) or characters, the space included (CER).",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "text", "trn", "plain"]),
    default="auto",
    show_default=True,
    help="Kaldi text (id words), trn (words (id)) or plain lines (line number = id).",
)
@click.option("--alignments", type=FILE, help="Write alignments and confusions to this file.")
def score(ref: Path, hyp: Path, unit: str, form: str, alignments: Path | None) -> None:
    """Print %WER lines in Kaldi's form.

    A reference without a hypothesis counts as deletions and marks the line [PARTIAL].

    \b
    Example:
      toolkit score --ref data/test/text --hyp decode/hyp.trn --alignments errors.txt
    """
    from toolkit.score.read import read_transcripts
    from toolkit.score.report import write_report
    from toolkit.score.wer import score as score_transcripts

    sides = {path: read_transcripts(path, form) for path in (ref, hyp)}
    if form == "auto":
        read_as = ", ".join(f"{path} as {side.form}" for path, side in sides.items())
        click.echo(f"Read {read_as} (--format forces one).", err=True)
    result = score_transcripts(sides[ref].texts, sides[hyp].texts, unit)
    click.echo(result.summary())
    for remark in result.remarks():
        click.echo(f"Note: {remark}.", err=True)
    if alignments is not None:
        write_report(result, alignments)


@main.command()
@click.option("--model", type=FILE, required=True, help="A bundle: the final/ folder of a run.")
@click.argument("audio", nargs=-1, required=True, type=FILE)
@click.pass_context
def transcribe(ctx: click.Context, model: Path, audio: tuple[Path, ...]) -> None:
    """Recognise the speech in audio files.

    Prints one line per AUDIO file: its path and the words recognised. A file that cannot be read is
    named on standard error, the others are still transcribed, and the exit status is 1.

    \b
    Example:
      toolkit transcribe --model exp/demo/final a.wav b.flac
    """
    from toolkit.decode.transcribe import transcribe as transcribe_files

    broken = False
    for transcript in transcribe_files(model, list(audio)):
        if transcript.text is None:
            broken = True
            click.echo(f"Error: {transcript.fault}", err=True)
        else:
            click.echo(f"{transcript.path} {transcript.text}".rstrip())
    ctx.exit(1 if broken else 0)
