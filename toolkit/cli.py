"""The `toolkit` command: one thin command per library function, imports made when needed.

Exit status: 0 done, 1 a fault in the data or the machine (its message on standard error), 2 a
command typed wrongly.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

import click

from toolkit import __version__
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.score.wer import Score

FILE = click.Path(path_type=Path)
_TYPED = click.core.ParameterSource.COMMANDLINE


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


_UNIT = click.option(
    "--unit",
    type=click.Choice(["word", "char"]),
    default="word",
    show_default=True,
    help="What to count: words (WER) or characters, the space included (CER).",
)
_FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "text", "trn", "plain"]),
    default="auto",
    show_default=True,
    help="Kaldi text (id words), trn (words (id)) or plain lines (line number = id).",
)
_SPEAKERS = click.option(
    "--speakers",
    type=FILE,
    help="Kaldi's utt2spk (id speaker): resample whole speakers, tables by speaker.",
)


@main.group(invoke_without_command=True, subcommand_metavar="[compare ...]")
@click.option("--ref", type=FILE, help="The reference transcripts.  [required]")
@click.option("--hyp", type=FILE, help="The recognised transcripts.  [required]")
@_UNIT
@_FORMAT
@click.option("--alignments", type=FILE, help="Write alignments and confusions to this file.")
@click.option("--interval", is_flag=True, help="Add the 95 % confidence interval to the line.")
@_SPEAKERS
@click.pass_context
def score(
    ctx: click.Context,
    ref: Path | None,
    hyp: Path | None,
    unit: str,
    form: str,
    alignments: Path | None,
    interval: bool,
    speakers: Path | None,
) -> None:
    """Print %WER lines in Kaldi's form.

    A reference without a hypothesis counts as deletions and marks the line [PARTIAL]. With
    --interval or --speakers the line ends in a bootstrap confidence interval.

    \b
    Example:
      toolkit score --ref data/test/text --hyp decode/hyp.trn --alignments errors.txt
    """
    given = {p for p in ctx.params if ctx.get_parameter_source(p) is _TYPED}
    if ctx.invoked_subcommand is not None:
        if given:
            raise click.UsageError(f"options belong behind {ctx.invoked_subcommand!r}")
        return
    for parameter in ctx.command.params:
        if parameter.name in ("ref", "hyp") and parameter.name not in given:
            raise click.MissingParameter(ctx=ctx, param=parameter)
    from toolkit.score.report import write_report

    (result,) = _scores(ref, [hyp], unit, form, speakers)
    with_interval = interval or speakers is not None
    click.echo(result.summary(interval=with_interval))
    for remark in result.remarks() + (result.interval_remarks() if with_interval else []):
        click.echo(f"Note: {remark}.", err=True)
    if alignments is not None:
        write_report(result, alignments)


@score.command("compare")
@click.option("--ref", type=FILE, required=True, help="The reference transcripts.")
@click.option(
    "--hyp",
    "hyps",
    type=FILE,
    required=True,
    multiple=True,
    help="A system's transcripts; twice or more: the first is what the others are held against.",
)
@_UNIT
@_FORMAT
@_SPEAKERS
def compare_systems(
    ref: Path, hyps: tuple[Path, ...], unit: str, form: str, speakers: Path | None
) -> None:
    """Tell whether a system is better than another.

    Prints the error rates with 95 % confidence intervals, their difference with its own, the
    probability of improvement, p-values, and the words on which the systems differ most. Give
    --speakers where you can: utterances of a speaker are not independent.

    \b
    Example:
      toolkit score compare --ref text --hyp ce/text --hyp smbr/text --speakers utt2spk
    """
    from toolkit.score.compare import compare, comparison_lines

    if not 2 <= len(hyps) <= len(ascii_uppercase):
        raise click.UsageError(f"give --hyp two to {len(ascii_uppercase)} times")
    systems = list(zip(ascii_uppercase, _scores(ref, hyps, unit, form, speakers), strict=False))
    for (name, result), path in zip(systems, hyps, strict=True):
        click.echo(f"{name}: {result.summary(interval=True).splitlines()[0]}  {path}")
        for remark in result.remarks():
            click.echo(f"Note: {name}: {remark}.", err=True)
    (first, baseline), *others = systems
    for remark in baseline.interval_remarks():
        click.echo(f"Note: {remark}.", err=True)
    for name, result in others:
        comparison = compare(baseline, result)
        click.echo("")
        for line in comparison_lines(comparison, (first, name)):
            click.echo(line)
        for remark in comparison.remarks():
            click.echo(f"Note: {remark}.", err=True)


def _scores(
    ref: Path, hyps: Sequence[Path], unit: str, form: str, speakers: Path | None
) -> list["Score"]:
    """Read and score the files that a command was given."""
    from toolkit.score.read import read_speakers, read_transcripts
    from toolkit.score.wer import score as score_transcripts

    sides = {path: read_transcripts(path, form) for path in (ref, *hyps)}
    if form == "auto":
        read_as = ", ".join(f"{path} as {side.form}" for path, side in sides.items())
        click.echo(f"Read {read_as} (--format forces one).", err=True)
    who = read_speakers(speakers) if speakers else None
    return [score_transcripts(sides[ref].texts, sides[hyp].texts, unit, who) for hyp in hyps]


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


@main.group()
def hmm() -> None:
    """Look into HMMs and their phonetic trees.

    \b
    Example:
      toolkit hmm show-tree exp/demo/tri --phone AH
    """


@hmm.command("show-tree")
@click.argument("model", metavar="MODEL_OR_TREE", type=FILE)
@click.option("--phone", required=True, help="A phone, or a base phone: AH for AH0, AH1, ...")
@click.option("--state", type=int, help="Only this HMM state, counted from 0.")
@click.option("--dot", "dot_file", type=FILE, help="Also write a drawing for Graphviz.")
def show_tree(model: Path, phone: str, state: int | None, dot_file: Path | None) -> None:
    """Draw the tree of a phone.

    Prints its questions with the log-likelihood that each gained, the frames of each branch, and
    the pdfs. MODEL_OR_TREE is the folder of a GMM system or its tree.json.

    \b
    Example:
      toolkit hmm show-tree exp/demo/tri --phone AH --state 1 --dot ah.dot
    """
    from toolkit.hmm.tree import Tree
    from toolkit.hmm.tree_drawing import dot, draw, roots_of
    from toolkit.stages.files import write_atomically

    tree = Tree.load(model / "tree.json" if model.is_dir() else model)
    roots = roots_of(tree, phone, state)
    click.echo(draw(tree, roots))
    if dot_file is not None:
        write_atomically(dot_file, dot(tree, roots))


@main.command()
@click.option("--model", type=FILE, required=True, help="The final/ folder of a run.")
@click.option("--audio-dir", type=FILE, required=True, help="A folder of audio, at any depth.")
@click.option(
    "--text",
    type=FILE,
    required=True,
    help="Lines of `name words ...`, or a folder of .txt or .lab files named like the audio.",
)
@click.option("--out", type=FILE, required=True, help="The folder of the results.")
@click.option("--speakers", type=FILE, help="Lines of `name speaker`; default: by folder.")
@click.option("--reference", type=FILE, help="A CTM of true word times to compare the result with.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.pass_context
def align(
    ctx: click.Context,
    model: Path,
    audio_dir: Path,
    text: Path,
    out: Path,
    speakers: Path | None,
    reference: Path | None,
    jobs: int,
) -> None:
    """Find when each word and phone is spoken.

    Writes words.ctm and phones.ctm (with confidences), textgrid/NAME.TextGrid and table.tsv (how
    each file fared) to the folder OUT. Files may have any length. A name is a file's path below
    the folder of audio, or its name alone, without suffix. Files that cannot be aligned are named
    on standard error, the others are still aligned, and the exit status is 1.

    \b
    Example:
      toolkit align --model exp/demo/final --audio-dir recordings --text transcripts --out times
    """
    from toolkit.align.boundaries import compare_boundaries
    from toolkit.align.ctm import read_ctm
    from toolkit.align.folder import align_folder
    from toolkit.align.outcomes import summary

    outcomes = align_folder(model, audio_dir, text, out, speakers, jobs)
    for outcome in outcomes:
        if not outcome.aligned:
            click.echo(f"Error: {outcome.utterance}: {outcome.reason}", err=True)
    click.echo(summary(outcomes))
    if reference is not None:
        report = compare_boundaries(read_ctm(reference), read_ctm(out / "words.ctm"))
        click.echo(report.text(), nl=False)
    ctx.exit(0 if all(outcome.aligned for outcome in outcomes) else 1)
