"""The command `toolkit score`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Literal

import click

from toolkit.config.click_types import (
    AS_JSON,
    FOLDER,
    TEXT_IN,
    TEXT_IN_OR_ID,
    TEXT_OUT,
    named,
    print_json,
)

if TYPE_CHECKING:
    from toolkit.score.alignment import Unit, Weights
    from toolkit.score.normalise import Rules
    from toolkit.score.transcripts import Form
    from toolkit.score.wer import Missing, Score

_TYPED = click.core.ParameterSource.COMMANDLINE

_METHOD = (
    click.option(
        "--unit",
        type=click.Choice(["word", "char", "char-with-spaces", "mixed"]),
        default="word",
        show_default=True,
        help="Unit of the error rate: words (WER), characters (CER), characters and the spaces "
        "between words, or mixed (MER). mixed is for code-switched speech: it scores the "
        "characters of Chinese, Japanese, Thai and similar scripts, and the words of other "
        "scripts.",
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(["auto", "text", "trn", "plain", "json", "icefall"]),
        default="auto",
        show_default=True,
        help="Input format: Kaldi text (id words), trn (words (id)), plain (the line number is the "
        "id), json, or icefall (recogs-*.txt). auto detects the format. Files named *.stm and "
        "*.ctm are read as STM and CTM.",
    ),
    click.option(
        "--speakers",
        type=TEXT_IN_OR_ID,
        metavar="FILE|id",
        help="File with lines `id speaker`, such as Kaldi's utt2spk. With --speakers id, the "
        "speaker is the part of each utterance id before /, - or _. With speakers, the bootstrap "
        "resamples whole speakers, and --per-speaker is possible. Cuts, STM files and Kaldi "
        "folders already contain the speakers.",
    ),
    click.option(
        "--normalise",
        type=click.Choice(["none", "case", "basic", "english"]),
        default="none",
        show_default=True,
        help="Compare words as they are (none), in lower case like sclite (case), in lower case "
        "without punctuation (basic), or after the normalisation that the toolkit uses for English "
        "lexicons (english).",
    ),
    click.option(
        "--drop",
        multiple=True,
        metavar="WORD",
        help="Remove this word from references and hypotheses, such as '<UNK>' or '[noise]'; may "
        "be repeated.",
    ),
    click.option(
        "--drop-hyphens",
        is_flag=True,
        help="Remove hyphens from references and hypotheses (e-mail becomes email), like DH of "
        "sclite -c.",
    ),
    click.option(
        "--map",
        "mapping",
        type=TEXT_IN,
        help="File of replacements, with lines `FROM WORDS => TO WORDS` as in a GLM.",
    ),
    click.option(
        "--glm",
        type=TEXT_IN,
        help="GLM file. Score like NIST's hubscr.pl: apply the mapping rules of this file to "
        "references and hypotheses, then score with --weights sclite --normalise case --fragments "
        "--optional.",
    ),
    click.option(
        "--fragments",
        is_flag=True,
        help="Count a fragment (wo-, -rd) as correct if the aligned word begins or ends with it, "
        "like sclite -F.",
    ),
    click.option(
        "--optional",
        is_flag=True,
        help="Do not count an error if a word in parentheses, such as (uh), is missing, like "
        "sclite -D.",
    ),
    click.option(
        "--weights",
        type=click.Choice(["kaldi", "sclite"]),
        default="kaldi",
        show_default=True,
        help="Alignment costs: 1 for every error, like Kaldi's compute-wer (kaldi), or 4 for "
        "substitutions and 3 for insertions and deletions, like sclite (sclite).",
    ),
    click.option(
        "--mode",
        type=click.Choice(["all", "present", "strict"]),
        default="all",
        show_default=True,
        help="How to treat a reference without a hypothesis: count its words as deletions (all), "
        "leave it out (present), or stop with an error (strict).",
    ),
)


def _method_options(command: Callable) -> Callable:
    """Add the options of the scoring method to a command."""
    # Decorators apply from the last to the first; the help lists the options in order.
    for option in reversed(_METHOD):
        command = option(command)
    return command


@dataclass(frozen=True)
class _Method:
    """The values of the scoring options."""

    unit: "Unit"
    form: "Form | Literal['auto']"
    speakers: str | None
    normalise: "Rules"
    drop: tuple[str, ...]
    drop_hyphens: bool
    mapping: Path | None
    glm: Path | None
    fragments: bool
    optional: bool
    weights: "Weights"
    mode: "Missing"


@click.group(invoke_without_command=True, subcommand_metavar="[compare ...]")
@click.option(
    "--ref",
    "refs",
    type=TEXT_IN,
    multiple=True,
    help="The reference transcripts. --ref or --hyp can be - for standard input.  [required]",
)
@click.option(
    "--hyp",
    "hyps",
    type=TEXT_IN,
    multiple=True,
    help="The recognised transcripts.  [required]",
)
@_method_options
@click.option("--interval", is_flag=True, help="Add the 95 % confidence interval to the %WER line.")
@click.option("--per-speaker", is_flag=True, help="Print sclite's table by speaker.")
@click.option("--per-utterance", is_flag=True, help="Print a line of error counts per utterance.")
@click.option(
    "--alignments",
    type=TEXT_OUT,
    help="Write alignments and confusions to this file; - prints them.",
)
@click.option(
    "--out", type=FOLDER, help="Write all tables, alignments and trn files to this folder."
)
@AS_JSON
@click.pass_context
def score(
    ctx: click.Context,
    refs: tuple[Path, ...],
    hyps: tuple[Path, ...],
    interval: bool,
    per_speaker: bool,
    per_utterance: bool,
    alignments: Path | None,
    out: Path | None,
    as_json: bool,
    **method: Any,
) -> None:
    """Compute word or character error rates.

    Prints %WER lines in Kaldi's format. --ref and --hyp are files or folders: Kaldi text, trn,
    plain lines, JSON or cuts. If --ref is an STM file, --hyp must be a CTM file. The words of the
    CTM file are then assigned to the segments of the STM file by their times. To pool several test
    sets, repeat --ref and --hyp in the same order. The words of a reference without a hypothesis
    count as deletions, and the %WER line is marked [PARTIAL]. With --interval or --speakers the
    %WER line ends with a bootstrap confidence interval. You can pipe the output of `toolkit
    transcribe` to --hyp -.

    \b
    Example:
      toolkit score --ref data/test/text --hyp decode/hyp.trn --alignments errors.txt
      toolkit score --ref test.stm --hyp test.ctm --normalise case --weights sclite --per-speaker
      toolkit score --ref data/test.jsonl --hyp decode/text --drop '<UNK>' --out scores
    """
    # `score` is a command and the group of `compare`: options before `compare` would be ignored.
    typed = {p for p in ctx.params if ctx.get_parameter_source(p) is _TYPED}
    if ctx.invoked_subcommand is not None:
        if typed:
            raise click.UsageError(
                f"options before {ctx.invoked_subcommand!r} have no effect: put them after it"
            )
        return
    # Not `required=True`: click would then demand them before `compare` too.
    for parameter in ctx.command.params:
        if parameter.name in ("refs", "hyps") and parameter.name not in typed:
            raise click.MissingParameter(ctx=ctx, param=parameter)
    if len(refs) != len(hyps):
        raise click.UsageError(
            f"--ref is given {len(refs)} times and --hyp {len(hyps)} times. Give one --hyp for "
            "each --ref, or use `toolkit score compare` for several systems"
        )
    from toolkit.score.nist import sclite_reports
    from toolkit.score.report import (
        FILES,
        all_numbers,
        speaker_lines,
        utterance_lines,
        write_report,
        write_score_folder,
    )

    # 1. Compute. Outputs that would overwrite an input are refused before anything is written.
    written = ([] if alignments is None else [alignments]) + [
        out / name for name in (*FILES, *sclite_reports.FILES) if out
    ]
    _refuse_to_overwrite([*refs, *hyps], _Method(**method), written)
    result = _pooled(list(zip(refs, hyps, strict=True)), _Method(**method), quiet=as_json)
    # 2. Print the error rates. Standard output stays what scripts parse: remarks go to standard
    # error.
    if per_speaker and not result.by_speaker():
        raise click.UsageError("--per-speaker needs --speakers: the references contain no speakers")
    with_interval = interval or method["speakers"] is not None
    if as_json:
        print_json(all_numbers(result, per_utterance))
    else:
        click.echo(result.summary(interval=with_interval))
    # Figures of another method are not comparable with Kaldi's: say which method it is.
    if (result.normaliser, result.weights) != ("none", "kaldi") and not as_json:
        click.echo(result.method)
    for remark in result.remarks() + (result.interval_remarks() if with_interval else []):
        click.echo(f"Note: {remark}.", err=True)
    for requested, lines in ((per_speaker, speaker_lines), (per_utterance, utterance_lines)):
        if requested and not as_json:
            click.echo("")
            click.echo("\n".join(lines(result)))
    # 3. Write the files.
    if alignments is not None:
        write_report(result, alignments)
    if out is not None:
        sclite_reports.write_sclite_reports(result, out)  # refuses ids that a trn file cannot hold
        write_score_folder(result, out)
        for remark in sclite_reports.trn_remarks(result):
            click.echo(f"Note: {remark}.", err=True)


@score.command("compare")
@click.option("--ref", type=TEXT_IN, required=True, help="The reference transcripts.")
@click.option(
    "--hyp",
    "hyps",
    type=TEXT_IN,
    required=True,
    multiple=True,
    help="The transcripts of a system. Give --hyp at least twice; the first system is the "
    "baseline.",
)
@_method_options
@AS_JSON
def compare_systems(ref: Path, hyps: tuple[Path, ...], as_json: bool, **method: Any) -> None:
    """Test whether one system is better than another.

    Prints the error rates and their difference with 95 % confidence intervals, the probability of
    improvement, p-values, and the words on which the systems differ most. If you know the speakers,
    give --speakers, because utterances of one speaker are not independent.

    \b
    Example:
      toolkit score compare --ref text --hyp ce/text --hyp smbr/text --speakers utt2spk
    """
    from toolkit.score.compare import compare, comparison_lines, comparison_numbers

    if not 2 <= len(hyps) <= len(ascii_uppercase):
        raise click.UsageError(f"give --hyp two to {len(ascii_uppercase)} times")
    scores = _scores([(ref, hyp) for hyp in hyps], _Method(**method))
    if as_json:
        comparisons = [
            comparison_numbers(compare(scores[0], hypothesis_score))
            for hypothesis_score in scores[1:]
        ]
        for numbers, hyp in zip(comparisons, hyps[1:], strict=True):
            numbers |= {"first_file": str(hyps[0]), "second_file": str(hyp)}
        print_json(comparisons)
        return
    # Systems are named A, B, ... in their order; A is the baseline that each of the others is
    # compared with.
    systems = list(zip(ascii_uppercase, scores, strict=False))
    for (name, result), path in zip(systems, hyps, strict=True):
        click.echo(f"{name}: {result.summary(interval=True).splitlines()[0]}  {path}")
        for remark in result.remarks():
            click.echo(f"Note: {name}: {remark}.", err=True)
    # One method and one set of speakers for all systems: print the remarks once, those of the
    # baseline.
    (first, baseline), *other_systems = systems
    if (baseline.normaliser, baseline.weights) != ("none", "kaldi"):
        click.echo(baseline.method)
    for remark in baseline.interval_remarks():
        click.echo(f"Note: {remark}.", err=True)
    for name, result in other_systems:
        comparison = compare(baseline, result)
        click.echo("")
        for line in comparison_lines(comparison, (first, name)):
            click.echo(line)
        for remark in comparison.remarks():
            click.echo(f"Note: {remark}.", err=True)


def _refuse_to_overwrite(texts: Sequence[Path], method: _Method, written: Sequence[Path]) -> None:
    """Refuse to write to a file that is read.

    Raises:
      UsageError: an output is also an input; the message names the file.
    """
    from toolkit.score.inputs import BY_ID

    speakers = [Path(name) for name in (method.speakers,) if name not in (None, BY_ID)]
    # All files that are read. A folder cannot be overwritten, and names in it are not known here.
    inputs = [*texts, *speakers, *filter(None, (method.mapping, method.glm))]
    read = [path for path in inputs if path.is_file()]
    for path in written:
        if path.is_file() and any(path.samefile(input_path) for input_path in read):
            raise click.UsageError(
                f"{path} is an input and would be overwritten: give another path for --out or"
                " --alignments"
            )


def _pooled(pairs: Sequence[tuple[Path, Path]], method: _Method, quiet: bool) -> "Score":
    """Score pairs of references and hypotheses together; unless `quiet`, print a line for each
    pair."""
    from toolkit.score.inputs import names_of
    from toolkit.score.wer import pool

    scores = _scores(pairs, method)
    if len(scores) == 1:
        return scores[0]
    # "Which test set is hard?" Each pair gets its line above the pooled one.
    names = names_of([hyp for _, hyp in pairs])
    for name, result in zip(names, scores, strict=True):
        if not quiet:
            click.echo(f"{name}: {result.summary().splitlines()[0]}")
    return pool(dict(zip(names, scores, strict=True)))


def _normaliser_suffix(method: _Method) -> str:
    """Return the suffix of the normaliser's name: the GLM and the sclite options in use."""
    from toolkit.score.nist.glm import glm_name

    glm = [] if method.glm is None else [f"GLM {glm_name(method.glm)}"]
    marks = [name for name in ("fragments", "optional") if getattr(method, name)]
    return "".join(f", {name}" for name in [*glm, *marks])


def _scores(pairs: Sequence[tuple[Path, Path]], method: _Method) -> list["Score"]:
    """Read and score pairs of references and hypotheses."""
    from toolkit.score.alignment import align_texts
    from toolkit.score.inputs import InputReader
    from toolkit.score.nist.grammar import Grammar, GrammarError, nist_aligner
    from toolkit.score.normalise import ScoringFilter
    from toolkit.score.wer import score as score_transcripts

    # 1. A GLM stands for a set of options. An explicit --weights that contradicts it is an error.
    if method.glm is not None:
        source = click.get_current_context().get_parameter_source("weights")
        if source is _TYPED and method.weights != "sclite":
            raise click.UsageError(
                f"--glm needs --weights sclite: leave out --weights {method.weights}"
            )
        rules = "case" if method.normalise == "none" else method.normalise
        method = replace(method, weights="sclite", normalise=rules, fragments=True, optional=True)
    if method.normalise in ("basic", "english") and (method.fragments or method.optional):
        reader = "--fragments and --optional need" if method.glm is None else "--glm needs"
        raise click.UsageError(
            f"--normalise {method.normalise} removes the hyphens and parentheses that {reader}: "
            "use --normalise none or case"
        )
    if method.drop_hyphens and method.fragments:
        needs = "--fragments needs" if method.glm is None else "--glm needs"
        raise click.UsageError(f"{needs} the hyphens that --drop-hyphens removes: leave out one")
    # 2. Read all pairs before the first is scored: faults show at once.
    marks = Grammar(method.fragments, method.optional)
    inputs = InputReader(method.form, method.speakers, method.glm)
    normaliser = ScoringFilter(method.normalise, method.drop, method.mapping, method.drop_hyphens)
    sides = [inputs.read(ref, hyp) for ref, hyp in pairs]
    # The same note of several pairs is printed once.
    for note in dict.fromkeys(note for side in sides for note in side.notes):
        click.echo(named(note), err=True)
    # 3. Score. Texts with alternatives or other marks need the slower alignment of word networks.
    scores = []
    for (ref, hyp), side in zip(pairs, sides, strict=True):
        marked = side.marked or marks != Grammar()
        try:
            scores.append(
                score_transcripts(
                    side.refs,
                    side.hyps,
                    method.unit,
                    side.speakers,
                    weights=method.weights,
                    mode=method.mode,
                    normalise=normaliser,
                    normaliser=normaliser.name + _normaliser_suffix(method),
                    aligner=nist_aligner(marks) if marked else align_texts,
                )
            )
        except GrammarError as error:
            raise GrammarError(f"{ref}, {hyp}: {error}") from error
    for remark in normaliser.remarks():
        click.echo(f"Note: {remark}.", err=True)
    return scores
