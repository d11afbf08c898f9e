"""The commands of `toolkit kaldi` for models: senones, decoding graphs, log-likelihoods."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.config.click_types import FILE, FOLDER, TEXT_IN, TEXT_OUT, Number

if TYPE_CHECKING:
    from toolkit.kaldi.graph import Labels

OUT = click.option("--out", type=FOLDER, required=True, help="The folder to write.")
PIPES = click.option(
    "--allow-pipes",
    is_flag=True,
    help="Run the shell commands (`cmd |`) in an scp file; only for files that you trust.",
)


@click.command("export-graph")
@click.option("--lang", "folder", type=FILE, required=True, help="The lang/ folder of a run.")
@click.option("--lm", type=FILE, required=True, help="An ARPA language model.")
@click.option(
    "--senones",
    "model",
    type=FILE,
    required=True,
    help="The folder of a GMM system, or senones/ of a run for its networks.",
)
@click.option(
    "--labels",
    type=click.Choice(("transitions", "pdfs")),
    default="transitions",
    show_default=True,
    help="What the graph reads: transition ids, or columns of log-likelihoods, counted from 1.",
)
@click.option(
    "--word-penalty",
    type=Number(),
    default=0.0,
    show_default=True,
    help="Added to the score of each word: word_penalty of a decode's tuned.json.",
)
@OUT
def export_graph(
    folder: Path, lm: Path, model: Path, labels: "Labels", word_penalty: float, out: Path
) -> None:
    """Write a decoding graph for Kaldi's decoders.

    Writes HCLG.fst, words.txt, phones.txt and num_pdfs. Also writes the tree and the transition
    model (0.trans_mdl) in Kaldi's text form.

    \b
    Example:
      toolkit kaldi export-graph --lang exp/demo/lang --lm exp/demo/lm/lm.arpa \\
          --senones exp/demo/tri --out graph
    """
    from toolkit.hmm.senones import Senones
    from toolkit.kaldi.graph import export_graph as export

    done = export(folder, lm, Senones.load(model), out, labels, word_penalty)
    click.echo(f"{out / 'HCLG.fst'}: {done['states']} states, {done['arcs']} arcs")


@click.command("export-likelihoods")
@click.option(
    "--model", type=FILE, required=True, help="A GMM system or a network in its run directory."
)
@click.option(
    "--features", type=FILE, required=True, help="Features of a split: plp/dev, fbank/dev."
)
@click.option(
    "--transforms", type=FILE, help="Transforms for adapted GMMs: fmllr/<split>.safetensors."
)
@OUT
def export_likelihoods(model: Path, features: Path, transforms: Path | None, out: Path) -> None:
    """Write the log-likelihoods of a split for Kaldi's decoders.

    loglikes.ark has a matrix per utterance: a row per frame, a column per pdf, without an acoustic
    scale. Decoders such as latgen-faster-mapped search it in the graph of export-graph.

    \b
    Example:
      toolkit kaldi export-likelihoods --model exp/demo/tri --features exp/demo/plp/dev --out dev
    """
    from toolkit.align.scorer import GmmScorer
    from toolkit.kaldi.graph import export_likelihoods as export
    from toolkit.models.scorer import NeuralScorer

    # A GMM system is known by its file of Gaussians; any other folder must be that of a network.
    scorer: GmmScorer | NeuralScorer
    if (model / "gmm.safetensors").is_file():
        scorer = GmmScorer(model, features, transforms)
    elif transforms is not None:
        raise click.UsageError("a network takes adapted features in place of --transforms")
    else:
        # The features of all splits are normalised alike: normaliser.json is beside their folders.
        scorer = NeuralScorer(model, features.parent / "normaliser.json", features)
    click.echo(f"{out / 'loglikes.scp'}: {export(scorer, out)} utterances")


@click.command("import-senones")
@click.option("--tree", type=FILE, required=True, help="Kaldi's tree.")
@click.option(
    "--model", type=FILE, required=True, help="final.mdl or 0.trans_mdl of the same model."
)
@click.option("--phones", type=TEXT_IN, required=True, help="phones.txt of the same model.")
@OUT
def import_senones(tree: Path, model: Path, phones: Path, out: Path) -> None:
    """Convert the phonetic tree of a Kaldi model.

    OUT becomes a folder like senones/ of a run; pdfs keep their numbers. Convert the alignments of
    the model with import-alignments --model.

    \b
    Example:
      toolkit kaldi import-senones --tree tri/tree --model tri/final.mdl \\
          --phones lang/phones.txt --out senones
    """
    from toolkit.kaldi.model import read_senones

    senones = read_senones(tree, model, phones)
    senones.save(out)
    click.echo(f"{out}: {len(senones.topology.phones)} phones, {senones.num_pdfs} pdfs")


@click.command()
@click.argument("graph", type=FILE)
@click.argument("table", type=FILE)
@click.option("--words", type=TEXT_IN, required=True, help="The graph's words.txt.")
@click.option("--model", type=FILE, help="final.mdl, if the graph reads transition ids.")
@click.option(
    "--acoustic-scale",
    type=Number(0, min_open=True),
    default=0.1,
    show_default=True,
    help="Factor by which log-likelihoods are multiplied.",
)
@click.option(
    "--beam",
    type=Number(0, min_open=True),
    default=15.0,
    show_default=True,
    help="Beam of the search.",
)
@click.option(
    "--max-active",
    type=click.IntRange(2, (1 << 31) - 1),
    default=7000,
    show_default=True,
    help="Maximum number of active states per frame.",
)
@PIPES
@click.option(
    "--out",
    type=TEXT_OUT,
    default="-",
    show_default=True,
    help="The transcripts to write, in Kaldi's text format.",
)
def decode(
    graph: Path,
    table: Path,
    words: Path,
    model: Path | None,
    acoustic_scale: float,
    beam: float,
    max_active: int,
    allow_pipes: bool,
    out: Path,
) -> None:
    """Decode log-likelihoods of Kaldi in a graph of Kaldi.

    GRAPH is an HCLG.fst, TABLE an scp file or an archive of log-likelihoods, as nnet3-compute and
    gmm-compute-likes write them. Without --model the labels of the graph are columns of the
    matrices. The exit status is 1 if the search finds a path for no utterance.

    \b
    Example:
      toolkit kaldi decode graph/HCLG.fst loglikes.scp --words graph/words.txt --model final.mdl
    """
    from toolkit.fsa.config import Beam
    from toolkit.fsa.search import GraphMismatchError
    from toolkit.kaldi.graph import decode_table, load_graph
    from toolkit.storage.files import open_atomically

    # `Beam` needs min_active < max_active: a small --max-active lowers the minimum too.
    least = min(Beam.min_active, max_active - 1)
    search = Beam(search=beam, min_active=least, max_active=max_active)
    transcripts = decode_table(
        table, load_graph(graph, model), words, acoustic_scale, search, allow_pipes
    )
    survived = False
    try:
        with open_atomically(out) as file:
            # None: no path survived the beam. The line of the utterance is its id alone.
            for utterance, text in transcripts:
                survived |= text is not None
                if text is None:
                    click.echo(f"{utterance}: no path survives; try a wider --beam", err=True)
                file.write(f"{utterance} {text or ''}".rstrip() + "\n")
    except GraphMismatchError as error:
        # Labels beyond the columns are most often transition ids: suggest --model if it is missing.
        if model is not None:
            raise GraphMismatchError(f"{graph} and {table}: {error}") from error
        raise GraphMismatchError(
            f"{graph} and {table}: {error}; or its labels are transition ids, as in the graphs of"
            " Kaldi: give their --model then, such as final.mdl or 0.trans_mdl"
        ) from error
    if not survived:
        raise click.ClickException(f"{table}: no path of any utterance survives")
