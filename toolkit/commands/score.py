"""`toolkit score`."""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING

import click

from toolkit.commands import FILE

if TYPE_CHECKING:
    from toolkit.score.wer import Score

_TYPED = click.core.ParameterSource.COMMANDLINE


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


@click.group(invoke_without_command=True, subcommand_metavar="[compare ...]")
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
