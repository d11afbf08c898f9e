"""`toolkit kaldi`."""

from pathlib import Path

import click

from toolkit.config.parameters import FILE

_OUT = click.option("--out", type=FILE, required=True, help="The folder to write.")
_PIPES = click.option(
    "--allow-pipes",
    is_flag=True,
    help="Run the commands (`cmd |`) of an scp file: trust them.",
)


@click.group()
def kaldi() -> None:
    """Exchange data and models' parts with Kaldi.

    Data directories, lexicons, features and alignments go both ways. ARPA language models, CTM and
    %WER lines are Kaldi's own form already. Features need kaldi_native_io: pip install
    'asr-recipe-toolkit[kaldi]'.

    \b
    Example:
      toolkit kaldi export-data --cuts exp/demo/data/train.jsonl --out data/train
    """


@kaldi.command("export-data")
@click.option("--cuts", type=FILE, required=True, help="A split: data/<split>.jsonl of a run.")
@click.option("--excluded", type=FILE, help="The check's excluded.tsv: leave these out.")
@_OUT
def export_data(cuts: Path, excluded: Path | None, out: Path) -> None:
    """Write a Kaldi data directory.

    Writes, and checks as validate_data_dir.sh does, wav.scp, text, utt2spk, spk2utt, utt2dur,
    reco2dur and, for parts of recordings, segments. Where ids do not begin with their speakers,
    they are prefixed; utt_map has the old.

    \b
    Example:
      toolkit kaldi export-data --cuts exp/demo/data/train.jsonl --out data/train
    """
    from toolkit.corpus.kaldi.export import RENAMED, export_data_dir
    from toolkit.corpus.manifest import iter_cuts

    done = export_data_dir(iter_cuts(cuts, excluded), out)
    click.echo(f"{out}: {done.utterances} utterances of {done.speakers} speakers")
    for id, why in done.left_out:
        click.echo(f"Left out: {id}: {why}", err=True)
    if done.renamed:
        click.echo(f"Note: ids got their speakers as prefixes; {out / RENAMED} has both.", err=True)
    for note in done.notes:
        click.echo(f"Note: {note}.", err=True)


@kaldi.command("import-data")
@click.argument("folder", type=FILE)
@click.option("--out", type=FILE, required=True, help="The .jsonl file of cuts to write.")
@click.option("--pipes", type=FILE, help="Run the commands of wav.scp, keep their audio here.")
def import_data(folder: Path, out: Path, pipes: Path | None) -> None:
    """Read a Kaldi data directory into a file of cuts.

    What is wrong with an utterance is in its cut for the check of a recipe to report. Commands in
    wav.scp are not run, but for `flac -c -d -s FILE |`, unless --pipes names a folder.

    \b
    Example:
      toolkit kaldi import-data data/dev --out dev.jsonl
    """
    from toolkit.corpus.kaldi.data_dir import read_kaldi_dir
    from toolkit.corpus.manifest import write_cuts
    from toolkit.corpus.pipes import PipeRunner

    cuts = read_kaldi_dir(folder, PipeRunner(pipes) if pipes else None)
    click.echo(f"{out}: {write_cuts(cuts, out)} utterances")
    faulty = [cut for cut in cuts if "fault" in (cut.custom or {})]
    for cut in faulty:
        click.echo(f"Fault: {cut.id}: {cut.custom['fault_detail']}", err=True)


@kaldi.command("export-lang")
@click.option("--lang", "folder", type=FILE, required=True, help="The lang/ folder of a run.")
@_OUT
def export_lang(folder: Path, out: Path) -> None:
    """Write a dictionary and a lang directory.

    OUT/dict is what Kaldi's prepare_lang.sh takes (lexicon, phone sets, questions); OUT/lang has
    phones.txt and words.txt with the toolkit's own ids, phone sets and align_lexicon.

    \b
    Example:
      toolkit kaldi export-lang --lang exp/demo/lang --out data/local
    """
    from toolkit.lang.kaldi.dict_dir import write_dict
    from toolkit.lang.kaldi.lang_dir import write_lang
    from toolkit.lang.lang import Lang

    lang = Lang.load(folder)
    entries = write_dict(lang, out / "dict")
    write_lang(lang, out / "lang")
    click.echo(f"{out}: {len(lang.vocabulary)} words, {entries} pronunciations")


@kaldi.command("import-lang")
@click.argument("folder", type=FILE)
@click.option("--position-dependent", is_flag=True, help="Mark the phones of a dictionary.")
@_OUT
def import_lang(folder: Path, position_dependent: bool, out: Path) -> None:
    """Read a dictionary or a lang directory.

    OUT is a lang folder as a recipe's language stage writes it; its lexicon.txt serves as
    `lang.lexicon` of a recipe.

    \b
    Example:
      toolkit kaldi import-lang data/local/dict --out lang
    """
    from toolkit.lang.kaldi.dict_dir import read_dict
    from toolkit.lang.kaldi.lang_dir import read_lang
    from toolkit.lang.lang import Lang

    if (folder / "words.txt").is_file():
        lang, notes = read_lang(folder)
    else:
        found = read_dict(folder)
        lexicon, notes = found.lexicon, found.notes
        lang = Lang.of(lexicon.in_position() if position_dependent else lexicon)
    lang.save(out)
    click.echo(f"{out}: {len(lang.vocabulary)} words, {len(lang.real_phones)} phones")
    for note in notes:
        click.echo(f"Note: {note}.", err=True)


@kaldi.command("export-features")
@click.option("--features", type=FILE, required=True, help="A split's features: fbank/<split>.")
@click.option("--compress", is_flag=True, help="A byte per value; loses some precision.")
@_OUT
def export_features(features: Path, compress: bool, out: Path) -> None:
    """Write features as ark and scp files.

    \b
    Example:
      toolkit kaldi export-features --features exp/demo/fbank/dev --out data/dev
    """
    from toolkit.features.kaldi.features import export_features as export

    click.echo(f"{out / 'feats.scp'}: {export(features, out, compress)} utterances")


@kaldi.command("import-features")
@click.argument("table", type=FILE)
@click.option("--data", type=FILE, help="Their Kaldi data directory: utt2spk, text; no audio.")
@click.option("--cuts", type=FILE, help="Or a split: data/<split>.jsonl of a run.")
@click.option("--frame-shift", default=10.0, show_default=True, help="Milliseconds.")
@click.option("--sampling-rate", default=16000, show_default=True, help="Of the audio, in Hz.")
@_PIPES
@_OUT
def import_features(
    table: Path,
    data: Path | None,
    cuts: Path | None,
    frame_shift: float,
    sampling_rate: int,
    allow_pipes: bool,
    out: Path,
) -> None:
    """Read features into the shards that recipes train on.

    TABLE is feats.scp or a binary archive, compressed or not. Values are stored in 16 bits; the
    largest change is printed.

    \b
    Example:
      toolkit kaldi import-features data/dev/feats.scp --data data/dev --out fbank/dev
    """
    from toolkit.corpus.manifest import iter_cuts
    from toolkit.features.kaldi.features import cuts_without_audio, frames_of
    from toolkit.features.kaldi.features import import_features as read

    if (data is None) == (cuts is None):
        raise click.UsageError("give either --data or --cuts")
    if cuts is not None:
        known = [cut.to_dict() for cut in iter_cuts(cuts)]
    else:
        tables = [_two_columns(data / name) for name in ("utt2spk", "text")]
        known = cuts_without_audio(frames_of(table, allow_pipes), *tables, frame_shift)
    done = read(table, known, out, frame_shift, sampling_rate, allow_pipes=allow_pipes)
    click.echo(
        f"{out}: {done.utterances} utterances, {done.frames} frames; largest change of a value "
        f"by rounding: {done.rounding:.3g}"
    )
    if done.without:
        click.echo(
            f"Note: {len(done.without)} utterances have no features, first {done.without[0]}.",
            err=True,
        )


def _two_columns(path: Path) -> dict[str, str]:
    """Read a table of a data directory; empty where there is none."""
    from toolkit.score.read import read_transcripts

    return read_transcripts(path, "text").texts if path.is_file() else {}


@kaldi.command("export-alignments")
@click.option("--ali", type=FILE, required=True, help="A folder of alignments: ali/ of a run.")
@click.option("--system", type=FILE, required=True, help="The folder of the system that made it.")
@_OUT
def export_alignments(ali: Path, system: Path, out: Path) -> None:
    """Write alignments as integers and as CTM.

    The integers are the toolkit's HMM states, listed in states.tsv: no Kaldi model's pdfs.
    phones.ctm means the same everywhere.

    \b
    Example:
      toolkit kaldi export-alignments --ali exp/demo/ali --system exp/demo/sat --out ali
    """
    from toolkit.align.kaldi.alignments import export_alignments as export

    click.echo(f"{out}: {export(ali, system, out)} utterances")


@kaldi.command("import-alignments")
@click.argument("table", type=FILE)
@click.option("--system", type=FILE, required=True, help="The folder of the system they are of.")
@click.option("--features", type=FILE, help="With a CTM: the features that are aligned.")
@_OUT
def import_alignments(table: Path, system: Path, features: Path | None, out: Path) -> None:
    """Read alignments of states or of phones.

    TABLE is ali.scp or an archive (gzipped or text too) that export-alignments wrote, or, named
    *.ctm, a CTM of phones, such as Kaldi's ali-to-phones --ctm-output and other aligners write; the
    frames of a phone are then dealt out evenly to its states.

    \b
    Example:
      toolkit kaldi import-alignments phones.ctm --system exp/demo/sat \\
          --features exp/demo/fbank/train --out ali
    """
    from toolkit.align.kaldi.alignments import import_alignments as read
    from toolkit.align.kaldi.alignments import import_phone_times

    if table.suffix != ".ctm":
        click.echo(f"{out}: {read(table, system, out)} utterances")
        return
    from toolkit.align.ctm import read_ctm
    from toolkit.features.store import FeatureStore

    if features is None:
        raise click.UsageError("a CTM does not tell the number of frames: give --features")
    store = FeatureStore(features)
    frames = {id: store.num_frames(id) for id in store.ids}
    done = import_phone_times(read_ctm(table), system, frames, out)
    click.echo(f"{out}: {done} of {len(frames)} utterances; table.tsv says what became of each")


@kaldi.command()
@click.argument("path", type=FILE)
@click.option("--key", help="Print the values of this entry.")
@click.option("--count", default=10, show_default=True, help="Entries to list.")
def show(path: Path, key: str | None, count: int) -> None:
    """Tell what a table or data directory holds.

    PATH is an scp file or a binary archive of matrices or integers, or a data directory, of which
    everything that Kaldi would refuse is listed.

    \b
    Example:
      toolkit kaldi show data/dev/feats.scp --key utt1
    """
    from toolkit.features.kaldi.show import shown_entries

    if path.is_dir():
        from toolkit.corpus.kaldi.validate import data_dir_faults

        faults = data_dir_faults(path)
        click.echo("\n".join(faults) or f"{path}: nothing that Kaldi would refuse")
        if faults:
            raise click.exceptions.Exit(1)
        return
    for line in shown_entries(path, key, count):
        click.echo(line)
