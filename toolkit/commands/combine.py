"""The command `toolkit combine`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.config.click_types import AS_JSON, FOLDER, TEXT_IN, Number, print_json

if TYPE_CHECKING:
    from toolkit.decode.combine import Rule


@click.command()
@click.option("--out", type=FOLDER, required=True, help="Folder for the files text and words.ctm.")
@click.option(
    "--weight",
    "weights",
    type=Number(0, 1),
    multiple=True,
    help="Weight of each system, in the order of SYSTEMS. The weights must sum to 1. Default: "
    "equal weights.",
)
@click.option(
    "--rule",
    type=click.Choice(("mbr", "best")),
    help="Output the words with the fewest expected errors (mbr, the default) or the words on the "
    "best path (best).",
)
@click.option(
    "--ref",
    type=TEXT_IN,
    help="Reference transcripts. The command then prints the word error rate.",
)
@click.option(
    "--tune",
    is_flag=True,
    help="Choose the weights that give the fewest errors against --ref. Without --rule, choose the "
    "rule too.",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Worker processes."
)
@AS_JSON
@click.argument("systems", nargs=-1, required=True, type=TEXT_IN)
def combine(
    out: Path,
    weights: tuple[float, ...],
    rule: "Rule | None",
    ref: Path | None,
    tune: bool,
    jobs: int,
    as_json: bool,
    systems: tuple[Path, ...],
) -> None:
    """Combine the outputs of several systems.

    All systems must have recognised the same recordings. Each of SYSTEMS is the folder of a decoded
    split, a CTM file or a file of transcripts. From a folder the command reads word_lattices/, or
    words.ctm if there are no lattices, or else text. It chooses the words with the fewest expected
    errors under the weighted posteriors of all systems. It writes the file text to the folder --out
    and, if all systems have word times, words.ctm with times and posteriors. For a single system,
    this is minimum Bayes risk decoding. Use --tune on development data, and the options that it
    prints on the test data. --json prints the rule, the weights and, with --ref, the score.

    \b
    Examples:
      toolkit combine --out dev --ref dev.txt --tune exp/demo/decode/sat/dev a/words.ctm
      toolkit combine --out test --weight 0.6 --weight 0.4 exp/demo/decode/sat/test b/words.ctm
    """
    from toolkit.decode.combine import (
        RULES,
        Combination,
        read_system,
        tune_combination,
        write_combined,
    )
    from toolkit.fsa.lattice_store import WordTable
    from toolkit.score.report import numbers
    from toolkit.score.transcripts import read_transcripts
    from toolkit.score.wer import score

    if tune and ref is None:
        raise click.UsageError("--tune needs --ref, the reference transcripts")
    if tune and weights:
        raise click.UsageError("--tune chooses the weights itself: leave out --weight")
    # By default every system has the same weight.
    combination = Combination(weights or (1 / len(systems),) * len(systems), rule or "mbr")
    # One table for all: a word has the same id in the lattices of every system.
    words = WordTable()
    loaded_systems = [read_system(system, words) for system in systems]
    if not any(system.ids for system in loaded_systems):
        raise click.ClickException(f"there are no utterances in {', '.join(map(str, systems))}")
    references = read_transcripts(ref).plain_texts() if ref else {}
    if tune:
        rules = RULES if rule is None else (rule,)
        combination = tune_combination([(loaded_systems, references)], words, jobs, rules).best
    # Print the tuned values as options, to paste into the command for the test data.
    if tune and not as_json:
        click.echo(
            " ".join(
                [f"--rule {combination.rule}", *(f"--weight {w:g}" for w in combination.weights)]
            )
        )
    texts = write_combined(loaded_systems, combination, words, out, jobs)
    result = score(references, texts) if ref else None
    if as_json:
        score_numbers = None if result is None else numbers(result)
        print_json(
            {"rule": combination.rule, "weights": combination.weights, "score": score_numbers}
        )
    elif result is not None:
        click.echo(result.summary(interval=True))
