"""The command `toolkit kaldi`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.config.click_types import (
    AS_JSON,
    FILE,
    FOLDER,
    MAP_PATH,
    TEXT_IN,
    TEXT_OUT,
    Number,
    is_printed,
    print_json,
)

if TYPE_CHECKING:
    from toolkit.kaldi.graph import Labels


OUT = click.option("--out", type=FOLDER, required=True, help="The folder to write.")
PIPES = click.option(
    "--allow-pipes",
    is_flag=True,
    help="Run the shell commands (`cmd |`) in an scp file. Use this option only for files that you "
    "trust.",
)


@click.group()
def kaldi() -> None:
    """Convert data to and from Kaldi's formats.

    The subcommands export and import data directories, lexicons, features, alignments, decoding
    graphs and log-likelihoods. The toolkit's ARPA language models, CTM files and %WER lines have
    Kaldi's format already. Writing archives and reading binary matrices need the package
    kaldi_native_io: pip install kaldi_native_io.

    \b
    Example:
      toolkit kaldi export-data --cuts exp/demo/data/train.jsonl --out data/train
    """


@kaldi.command("export-data")
@click.option("--cuts", type=FILE, required=True, help="The cuts of a split: data/<split>.jsonl.")
@click.option(
    "--excluded",
    type=TEXT_IN,
    help="File with utterances to leave out, such as check/excluded.tsv of a run.",
)
@OUT
def export_data(cuts: Path, excluded: Path | None, out: Path) -> None:
    """Write a Kaldi data directory.

    Writes wav.scp, text, utt2spk, spk2utt, utt2dur, reco2dur and, if utterances are parts of
    recordings, segments. Checks them as validate_data_dir.sh does. If the utterances sorted by id
    are not also sorted by speaker, the command adds the speaker as a prefix to every id and writes
    the old and new ids to utt_map.

    \b
    Example:
      toolkit kaldi export-data --cuts exp/demo/data/train.jsonl --out data/train
    """
    from toolkit.corpus.manifest import iter_cuts
    from toolkit.kaldi.data_dir import RENAMED, export_data_dir

    done = export_data_dir(iter_cuts(cuts, excluded), out)
    click.echo(f"{out}: {done.utterances} utterances of {done.speakers} speakers")
    for id, why in done.left_out:
        click.echo(f"Left out: {id}: {why}", err=True)
    if done.renamed:
        note = f"speakers were added to utterance ids; {out / RENAMED} lists the old and new ids"
        click.echo(f"Note: {note}.", err=True)
    for note in done.notes:
        click.echo(f"Note: {note}.", err=True)


@kaldi.command("import-data")
@click.argument("folder", type=FILE)
@click.option("--out", type=TEXT_OUT, required=True, help="The .jsonl file of cuts to write.")
@click.option(
    "--pipes",
    type=FOLDER,
    help="Run the shell commands in wav.scp and write their audio to this folder. Use this option "
    "only for files that you trust.",
)
@MAP_PATH
def import_data(folder: Path, out: Path, pipes: Path | None, map_paths: tuple[str, ...]) -> None:
    """Convert a Kaldi data directory to lhotse cuts.

    A faulty utterance becomes a cut that contains a description of its fault, which the data check
    of a recipe reports. Commands in wav.scp are run only with --pipes. Instead of running
    `flac -c -d -s FILE |` and `sph2pipe -f wav -p FILE |`, import-data reads FILE directly.

    \b
    Example:
      toolkit kaldi import-data data/dev --out dev.jsonl
    """
    from toolkit.corpus.manifest import write_cuts
    from toolkit.corpus.wav_scp import PipeRunner
    from toolkit.kaldi.data_dir import read_kaldi_dir

    # `write_cuts` does not compress, but readers decompress every file of this suffix.
    if out.suffix == ".gz":
        raise click.UsageError(
            f"--out {out}: this command does not compress the cuts. Give a name that ends in .jsonl"
        )
    cuts = read_kaldi_dir(folder, PipeRunner(pipes) if pipes else None, map_paths)
    number = write_cuts(cuts, out)
    if not is_printed(out):
        click.echo(f"{out}: {number} utterances")
    # Faulty utterances are in the file as well; here the user learns of them at once.
    faulty = [cut for cut in cuts if "fault" in (cut.custom or {})]
    for cut in faulty:
        click.echo(f"Fault: {cut.id}: {cut.custom['fault_detail']}", err=True)


@kaldi.command("export-lang")
@click.option("--lang", "folder", type=FILE, required=True, help="The lang/ folder of a run.")
@click.option("--lm", type=FILE, help="ARPA language model from which to write G.fst.")
@OUT
def export_lang(folder: Path, lm: Path | None, out: Path) -> None:
    """Write Kaldi's dict and lang directories.

    OUT/dict is the input of Kaldi's prepare_lang.sh: lexicon, phone sets and questions. OUT/lang
    contains all files that validate_lang.pl requires: phones.txt and words.txt with the toolkit's
    own ids, phone sets, roots and questions, topo, L.fst, L_disambig.fst and, with --lm, G.fst.

    \b
    Example:
      toolkit kaldi export-lang --lang exp/demo/lang --lm exp/demo/lm/lm.arpa --out data/local
    """
    from toolkit.fsa.grammar import grammar_acceptor
    from toolkit.kaldi.dict_lang import write_dict
    from toolkit.kaldi.graph import write_lang_dir
    from toolkit.lang.lang import Lang
    from toolkit.lang.lm import check_coverage

    lang = Lang.load(folder)
    # Read the language model before anything is written: a fault in it leaves no partial folder.
    grammar = None if lm is None else grammar_acceptor(lm, lang.words)
    if lm is not None and grammar is not None:
        words = {lang.words.symbol(int(word)) for word in set(grammar.words.tolist())}
        check_coverage(lm, words, lang.vocabulary)
    entries = write_dict(lang, out / "dict")
    write_lang_dir(lang, out / "lang", grammar)
    click.echo(f"{out}: {len(lang.vocabulary)} words, {entries} pronunciations")


@kaldi.command("import-lang")
@click.argument("folder", type=FILE)
@click.option(
    "--position-dependent",
    is_flag=True,
    help="Add the position suffixes _B, _I, _E and _S to the phones of a dict directory.",
)
@click.option(
    "--as-given",
    is_flag=True,
    help="Keep the letter case of words. By default, words are converted to upper case.",
)
@OUT
def import_lang(folder: Path, position_dependent: bool, as_given: bool, out: Path) -> None:
    """Convert a Kaldi dict or lang directory.

    FOLDER is the dict or lang directory. The command writes to OUT a lang folder like that of a
    recipe's language stage. To use the lexicon in a recipe, set `lang.lexicon` to OUT/lexicon.txt.

    \b
    Example:
      toolkit kaldi import-lang data/local/dict --out lang
    """
    from toolkit.kaldi.dict_lang import read_dict, read_lang
    from toolkit.lang.text_policy import AS_GIVEN, TextPolicy

    policy = TextPolicy(AS_GIVEN) if as_given else TextPolicy()
    # Only a lang directory has words.txt. A dict directory has a lexicon, from which a lang is
    # made.
    if (folder / "words.txt").is_file():
        lang, notes = read_lang(folder, policy)
    else:
        dictionary = read_dict(folder, policy)
        lang, notes = dictionary.lang(position_dependent), dictionary.notes
    lang.save(out)
    click.echo(f"{out}: {len(lang.vocabulary)} words, {len(lang.real_phones)} phones")
    for note in notes:
        click.echo(f"Note: {note}.", err=True)


@kaldi.command("export-features")
@click.option(
    "--features", type=FILE, required=True, help="Feature folder of a split, such as fbank/dev."
)
@click.option("--compress", is_flag=True, help="Store each value in one byte, with less precision.")
@click.option("--text", is_flag=True, help="Write text archives, as copy-feats does with ark,t.")
@OUT
def export_features(features: Path, compress: bool, text: bool, out: Path) -> None:
    """Write features as Kaldi ark and scp files.

    \b
    Example:
      toolkit kaldi export-features --features exp/demo/fbank/dev --out data/dev
    """
    from toolkit.kaldi.features import export_features as export

    click.echo(f"{out / 'feats.scp'}: {export(features, out, compress, text)} utterances")


@kaldi.command("import-features")
@click.argument("table", type=FILE)
@click.option(
    "--data", type=FILE, help="Kaldi data directory with utt2spk and text; it needs no audio."
)
@click.option(
    "--cuts", type=FILE, help="The cuts of a split (data/<split>.jsonl), instead of --data."
)
@click.option(
    "--frame-shift",
    type=Number(1, 1000),
    default=10.0,
    show_default=True,
    help="Frame shift in milliseconds.",
)
@click.option(
    "--sampling-rate",
    type=click.IntRange(1000, 384_000),
    default=16000,
    show_default=True,
    help="Sampling rate of the audio in Hz.",
)
@MAP_PATH
@PIPES
@OUT
def import_features(
    table: Path,
    data: Path | None,
    cuts: Path | None,
    frame_shift: float,
    sampling_rate: int,
    map_paths: tuple[str, ...],
    allow_pipes: bool,
    out: Path,
) -> None:
    """Convert Kaldi features to feature shards.

    Recipes train on these shards. TABLE is feats.scp or an archive. Its matrices may be compressed
    by Kaldi or stored as text. The command rounds values to 16 bits and prints the largest rounding
    error.

    \b
    Example:
      toolkit kaldi import-features data/dev/feats.scp --data data/dev --out fbank/dev
    """
    from toolkit.corpus.manifest import iter_cuts
    from toolkit.kaldi.features import count_frames, cuts_without_audio
    from toolkit.kaldi.features import import_features as read

    # 1. The utterances: from the cuts of a split, or from the tables of a Kaldi data directory.
    if cuts is not None and data is None:
        utterances = [cut.to_dict() for cut in iter_cuts(cuts)]
    elif data is not None and cuts is None:
        if not data.is_dir():
            raise click.UsageError(f"--data {data}: no such folder. Give a Kaldi data directory")
        speakers, texts = (_two_columns(data / name) for name in ("utt2spk", "text"))
        # There is no audio: an utterance lasts its number of frames times the frame shift.
        frames = count_frames(table, allow_pipes, map_paths)
        utterances = cuts_without_audio(frames, speakers, texts, frame_shift)
        for name, column in (("text", texts), ("utt2spk", speakers)):
            _note_unmatched_ids(data / name, column, frames)
    else:
        raise click.UsageError("give either --data or --cuts")
    # 2. Read the matrices, round them to 16 bits and write shards.
    done = read(
        table,
        utterances,
        out,
        frame_shift,
        sampling_rate,
        allow_pipes=allow_pipes,
        path_map=map_paths,
    )
    click.echo(
        f"{out}: {done.utterances} utterances, {done.frames} frames; largest rounding error: "
        f"{done.rounding:.3g}"
    )
    if done.without:
        click.echo(
            f"Note: {len(done.without)} utterances have no features, such as {done.without[0]}.",
            err=True,
        )


def _note_unmatched_ids(path: Path, named: Mapping[str, str], frames: Mapping[str, int]) -> None:
    """Print how many lines have no features, and how many features have no line."""
    if lost := [id for id in named if id not in frames]:
        note = f"Note: {len(lost)} utterances in {path} have no features, such as {lost[0]}."
        click.echo(note, err=True)
    if bare := [id for id in frames if id not in named]:
        note = f"Note: {len(bare)} utterances with features are not in {path}, such as {bare[0]}."
        click.echo(note, err=True)


def _two_columns(path: Path) -> dict[str, str]:
    """Read a table of a data directory; empty if the file does not exist."""
    from toolkit.score.transcripts import read_transcripts

    return read_transcripts(path, "text").texts if path.is_file() else {}


@kaldi.command("export-alignments")
@click.option(
    "--ali", type=FILE, required=True, help="A folder of alignments, such as ali/ of a run."
)
@click.option(
    "--system", type=FILE, required=True, help="Folder of the GMM system that made the alignments."
)
@OUT
def export_alignments(ali: Path, system: Path, out: Path) -> None:
    """Write alignments as integer vectors and as CTM.

    Each integer is the index of one of the toolkit's HMM states; states.tsv lists the states. The
    integers are not the transition ids of a Kaldi model. phones.ctm contains the same alignments as
    phone times.

    \b
    Example:
      toolkit kaldi export-alignments --ali exp/demo/ali --system exp/demo/sat --out ali
    """
    from toolkit.kaldi.alignments import export_alignments as export

    click.echo(f"{out}: {export(ali, system, out)} utterances")


@kaldi.command("import-alignments")
@click.argument("table", type=FILE)
@click.option(
    "--system",
    type=FILE,
    required=True,
    help="Folder of the GMM system whose HMM states the alignments will refer to.",
)
@click.option(
    "--features", type=FILE, help="Feature folder of the aligned utterances; needed for a CTM."
)
@click.option(
    "--model", type=FILE, help="Kaldi's final.mdl; needed if the alignments are transition ids."
)
@OUT
def import_alignments(
    table: Path, system: Path, features: Path | None, model: Path | None, out: Path
) -> None:
    """Convert alignments to the HMM states of a GMM system.

    TABLE may be ali.scp or an archive from export-alignments. With --model, it may be an archive of
    alignments from Kaldi. Archives may be gzipped or text. TABLE may also be a CTM file of phones,
    named *.ctm, as Kaldi's ali-to-phones --ctm-output and other aligners write it. The frames of
    each phone in a CTM are divided evenly among the states of the phone.

    \b
    Example:
      toolkit kaldi import-alignments phones.ctm --system exp/demo/sat \\
          --features exp/demo/fbank/train --out ali
    """
    from toolkit.kaldi.alignments import import_alignments as read
    from toolkit.kaldi.alignments import import_phone_times

    # Alignments by frame: of the toolkit's states or, with --model, of Kaldi's transition ids.
    if table.suffix != ".ctm":
        number = read(table, system, out, model)
        click.echo(f"{out}: {number} utterances")
        if not number:
            raise click.ClickException(f"{table} contains no alignments")
        return
    # A CTM has times of phones, whose frames are divided among the states.
    from toolkit.align.ctm_textgrid import read_ctm
    from toolkit.features.shards import FeatureStore

    if features is None:
        raise click.UsageError(
            "a CTM does not contain the number of frames of each utterance: add --features"
        )
    # The times of a CTM are rounded; the exact number of frames comes from the features.
    store = FeatureStore(features)
    frames = {id: store.num_frames(id) for id in store.ids}
    done = import_phone_times(read_ctm(table), system, frames, out)
    click.echo(
        f"{out}: {done} of {len(frames)} utterances; table.tsv lists the outcome for each utterance"
    )


@kaldi.command()
@click.argument("path", type=FILE)
@click.option("--key", help="Print the values of the entry with this key.")
@click.option(
    "--count",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Number of entries to list.",
)
@AS_JSON
def show(path: Path, key: str | None, count: int, as_json: bool) -> None:
    """Show a Kaldi table or check a data directory.

    For an scp file or an archive of matrices or integers, lists the entries. For a data directory,
    lists the faults that Kaldi's validate_data_dir.sh would report; if there are any, the exit
    status is 1. Problems that this script accepts, but other Kaldi programs may refuse, are printed
    as notes.

    \b
    Example:
      toolkit kaldi show data/dev/feats.scp --key utt1
    """
    from toolkit.kaldi.archive import describe_entries, plain_entries

    if path.is_dir():
        from toolkit.kaldi.validate import data_dir_faults, data_dir_remarks

        remarks, faults = list(data_dir_remarks(path)), list(data_dir_faults(path))
        if as_json:
            print_json({"faults": faults, "remarks": remarks})
        else:
            for remark in remarks:
                click.echo(f"Note: {remark}.", err=True)
            click.echo("\n".join(faults) or f"{path}: no faults; Kaldi would accept it")
        if faults:
            raise click.exceptions.Exit(1)
        return
    if as_json:
        print_json(plain_entries(path, key, count))
        return
    for line in describe_entries(path, key, count):
        click.echo(line)


@kaldi.command("export-graph")
@click.option("--lang", "folder", type=FILE, required=True, help="The lang/ folder of a run.")
@click.option("--lm", type=FILE, required=True, help="An ARPA language model.")
@click.option(
    "--senones",
    "model",
    type=FILE,
    required=True,
    help="Folder of a GMM system. For the neural networks of a run, its folder senones/.",
)
@click.option(
    "--labels",
    type=click.Choice(("transitions", "pdfs")),
    default="transitions",
    show_default=True,
    help="Input labels of the graph: transition ids, or pdfs (columns of the log-likelihoods, "
    "counted from 1).",
)
@click.option(
    "--word-penalty",
    type=Number(),
    default=0.0,
    show_default=True,
    help="Word penalty, which is added to the score of each word. Use word_penalty in the "
    "tuned.json of a decoded split.",
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


@kaldi.command("export-likelihoods")
@click.option(
    "--model",
    type=FILE,
    required=True,
    help="Folder of a GMM system or neural network, inside its run directory.",
)
@click.option(
    "--features",
    type=FILE,
    required=True,
    help="Feature folder of a split, such as plp/dev or fbank/dev.",
)
@click.option(
    "--transforms", type=FILE, help="fMLLR transforms for a GMM system: fmllr/<split>.safetensors."
)
@OUT
def export_likelihoods(model: Path, features: Path, transforms: Path | None, out: Path) -> None:
    """Write log-likelihoods for Kaldi's decoders.

    loglikes.ark contains a matrix for each utterance of the split, with a row per frame and a
    column per pdf. The log-likelihoods are not scaled. Decode loglikes.ark with a program such as
    latgen-faster-mapped and the graph from export-graph.

    \b
    Example:
      toolkit kaldi export-likelihoods --model exp/demo/tri --features exp/demo/plp/dev --out dev
    """
    from toolkit.align.scorer import GmmScorer
    from toolkit.kaldi.graph import export_likelihoods as export
    from toolkit.models.scorer import NeuralScorer

    # A GMM system is recognised by its file of Gaussians; any other folder must hold a network.
    scorer: GmmScorer | NeuralScorer
    if (model / "gmm.safetensors").is_file():
        scorer = GmmScorer(model, features, transforms)
    elif transforms is not None:
        raise click.UsageError(
            "--transforms works only with GMM systems. For a network, leave out --transforms and "
            "give the adapted features as --features"
        )
    else:
        # The features of all splits are normalised alike: normaliser.json is beside their folders.
        scorer = NeuralScorer(model, features.parent / "normaliser.json", features)
    click.echo(f"{out / 'loglikes.scp'}: {export(scorer, out)} utterances")


@kaldi.command("import-senones")
@click.option("--tree", type=FILE, required=True, help="Kaldi's tree.")
@click.option(
    "--model", type=FILE, required=True, help="final.mdl or 0.trans_mdl that belongs to the tree."
)
@click.option("--phones", type=TEXT_IN, required=True, help="phones.txt of the same model.")
@OUT
def import_senones(tree: Path, model: Path, phones: Path, out: Path) -> None:
    """Convert the phonetic tree of a Kaldi model.

    OUT will contain the same files as senones/ of a run. The pdfs keep their numbers. To convert
    the model's alignments, use import-alignments --model.

    \b
    Example:
      toolkit kaldi import-senones --tree tri/tree --model tri/final.mdl \\
          --phones lang/phones.txt --out senones
    """
    from toolkit.kaldi.model import read_senones

    senones = read_senones(tree, model, phones)
    senones.save(out)
    click.echo(f"{out}: {len(senones.topology.phones)} phones, {senones.num_pdfs} pdfs")


@kaldi.command()
@click.argument("graph", type=FILE)
@click.argument("table", type=FILE)
@click.option("--words", type=TEXT_IN, required=True, help="The graph's words.txt.")
@click.option(
    "--model",
    type=FILE,
    help="Kaldi's final.mdl; needed if the labels of the graph are transition ids.",
)
@click.option(
    "--acoustic-scale",
    type=Number(0, min_open=True),
    default=0.1,
    show_default=True,
    help="Factor for the log-likelihoods.",
)
@click.option(
    "--beam",
    type=Number(0, min_open=True),
    default=15.0,
    show_default=True,
    help="Beam width of the search. A wider beam is slower and loses fewer paths.",
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
    help="The file of transcripts to write, in Kaldi's text format.",
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
    """Decode Kaldi's log-likelihoods with a Kaldi graph.

    GRAPH is an HCLG.fst. TABLE is an scp file or an archive of log-likelihoods, as nnet3-compute
    and gmm-compute-likes write them. Without --model, the input labels of the graph must be column
    numbers of the matrices, counted from 1. The exit status is 1 if the search finds a path for
    none of the utterances.

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
                    reason = "no path survived the search; use a wider --beam"
                    click.echo(f"{utterance}: {reason}", err=True)
                file.write(f"{utterance} {text or ''}".rstrip() + "\n")
    except GraphMismatchError as error:
        # Labels beyond the columns are most often transition ids: suggest --model if it is missing.
        if model is not None:
            raise GraphMismatchError(f"{graph} and {table}: {error}") from error
        raise GraphMismatchError(
            f"{graph} and {table}: {error}. If the graph was made by Kaldi, its labels are"
            " transition ids: give the graph's model with --model, such as final.mdl or 0.trans_mdl"
        ) from error
    if not survived:
        raise click.ClickException(
            f"{table}: the search found a path for none of the utterances; use a wider --beam"
        )
