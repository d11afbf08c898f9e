"""The command `toolkit lattice`."""

from pathlib import Path

import click

from toolkit.config.click_types import AS_JSON, FILE, FOLDER, TEXT_IN, Number, print_json


@click.group()
def lattice() -> None:
    """Export, import and evaluate word lattices.

    \b
    Example:
      toolkit lattice oracle exp/demo/decode/sat/dev --ref dev.txt
    """


@lattice.command()
@click.argument("folder", type=FILE)
@click.option(
    "--format",
    "form",
    type=click.Choice(("kaldi", "slf", "openfst")),
    default="kaldi",
    show_default=True,
    help="kaldi: Kaldi's compact lattices as text. slf: HTK's standard lattice format. openfst: "
    "acceptors as text for fstcompile.",
)
@click.option("--out", type=FOLDER, required=True, help="The folder to write.")
def export(folder: Path, form: str, out: Path) -> None:
    """Export the word lattices of a decoded split.

    FOLDER is the folder of the split, or the subfolder word_lattices/ in it. Writes lat.txt and
    words.txt (kaldi), one file NAME.lat per utterance (slf), or NAME.fst.txt and words.txt
    (openfst). The acoustic scores in kaldi and slf files are not scaled; tuned.json and the header
    of each slf file contain the scale. In openfst files each arc has one weight, which includes the
    acoustic scale and the word penalty.

    \b
    Example:
      toolkit lattice export exp/demo/decode/sat/dev --format slf --out lattices
    """
    from toolkit.kaldi.lattices import export_lattices

    click.echo(f"{out}: {export_lattices(folder, form, out)} lattices")


@lattice.command()
@click.argument("folder", type=FILE)
@click.option("--ref", type=TEXT_IN, required=True, help="Reference transcripts.")
@AS_JSON
def oracle(folder: Path, ref: Path, as_json: bool) -> None:
    """Print the oracle word error rate of lattices.

    Chooses the path with the fewest errors in each lattice. Rescoring cannot reach a lower error
    rate than this. The second line of the output shows the number of lattices and their mean
    density in arcs per second.

    \b
    Example:
      toolkit lattice oracle exp/demo/decode/sat/dev --ref dev.txt
    """
    from toolkit.kaldi.lattices import oracle_texts
    from toolkit.score.report import numbers
    from toolkit.score.transcripts import read_transcripts
    from toolkit.score.wer import score

    references = read_transcripts(ref).plain_texts()
    texts, arcs, seconds = oracle_texts(folder, references)
    # A missing lattice counts as deletions; if all are missing, FOLDER and --ref do not belong
    # together.
    if not texts:
        raise click.ClickException(
            f"{folder} has no lattice for any utterance in {ref}. Check that both are of the same"
            " split"
        )
    result = score(references, texts)
    if as_json:
        print_json({**numbers(result), "lattices": len(texts), "arcs_per_second": arcs / seconds})
        return
    # Only the %WER line; the next ones count the utterances and sentence errors.
    click.echo(result.summary(interval=True).splitlines()[0])
    click.echo(f"{len(texts)} lattices, {arcs / seconds:.1f} arcs per second")


@lattice.command("import")
@click.argument("archives", type=FILE, nargs=-1, required=True)
@click.option("--words", type=TEXT_IN, required=True, help="Kaldi's words.txt.")
@click.option(
    "--acoustic-scale",
    type=Number(0, min_open=True),
    default=0.1,
    show_default=True,
    help="Acoustic scale of Kaldi's decoding, with which the best path of a lattice is the "
    "recognised text.",
)
@click.option(
    "--word-penalty",
    type=Number(),
    default=0.0,
    show_default=True,
    help="Word penalty of Kaldi's decoding, with which the best path of a lattice is the "
    "recognised text. It is added to each word's score.",
)
@click.option(
    "--frame-shift",
    type=Number(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Frame shift in milliseconds.",
)
@click.option("--out", type=FOLDER, required=True, help="The folder to write.")
def import_(
    archives: tuple[Path, ...],
    words: Path,
    acoustic_scale: float,
    word_penalty: float,
    frame_shift: float,
    out: Path,
) -> None:
    """Convert Kaldi's lattices to a folder of word lattices.

    ARCHIVES are files of compact lattices, binary or text, such as lat.1.gz. `toolkit
    combine`, `toolkit lattice oracle` and `toolkit lattice export` can read the folder that this
    command writes.

    \b
    Example:
      toolkit lattice import decode_dev/lat.*.gz --words graph/words.txt --out lattices
    """
    from toolkit.fsa.lattice_store import WeightsUsed
    from toolkit.kaldi.lattices import import_lattices

    # Kaldi's lattices do not record these weights: store them with the lattices for later commands.
    decoding = WeightsUsed(acoustic_scale, word_penalty, frame_shift / 1000)
    done, failed = import_lattices(archives, words, decoding, out)
    click.echo(f"{out}: {done} lattices")
    for utterance in failed:
        click.echo(f"Note: {utterance}: the lattice has no path.", err=True)
    if not done:
        raise click.ClickException(
            f"there is no lattice with a path in {', '.join(map(str, archives))}"
        )
