"""The command `toolkit new-corpus`."""

import os
from pathlib import Path
from typing import Literal

import click

from toolkit.config.click_types import EXISTING_PATH, FOLDER, MAP_PATH


@click.command("new-corpus")
@click.argument("name")
@click.option(
    "--from-csv",
    type=EXISTING_PATH,
    metavar="FILE",
    help="A table with the columns audio, text and speaker, separated by commas, semicolons or "
    "tabs; or a folder with a table for each of train, dev and test.",
)
@click.option(
    "--from-kaldi",
    type=EXISTING_PATH,
    metavar="DIR",
    help="A Kaldi data directory, or a folder with several of them (train, dev, test). If there "
    "is no audio, the recipe uses the features in feats.scp.",
)
@click.option(
    "--from-cuts",
    type=EXISTING_PATH,
    metavar="PATH",
    help="A file of lhotse cuts such as cuts_train.jsonl.gz, or a folder with several such files.",
)
@click.option(
    "--pipes",
    type=FOLDER,
    metavar="FOLDER",
    help="Run the shell commands in wav.scp and write their audio to this folder. Use it only for "
    "files that you trust.",
)
@MAP_PATH
@click.option(
    "--speakers",
    type=click.Choice(("recording", "auto")),
    default="recording",
    show_default=True,
    help="Speakers of data without speaker labels: one speaker per recording (recording), or one "
    "per cluster of recordings that sound alike (auto).",
)
@click.option(
    "--lexicon",
    metavar="SOURCE",
    help="cmudict (English), graphemes (the letters of a word are its phones), or the path of a "
    "lexicon: lexicon.txt, lexiconp.txt, a dictionary of the Montreal Forced Aligner, or Kaldi's "
    "dict or lang folder. Default: cmudict if the transcripts look English, else graphemes.",
)
@click.option(
    "--lm-text",
    type=EXISTING_PATH,
    help="Text for the language model: a file, or a folder of .txt files. Default: the training "
    "transcripts.",
)
def new_corpus(
    name: str,
    from_csv: Path | None,
    from_kaldi: Path | None,
    from_cuts: Path | None,
    pipes: Path | None,
    map_paths: tuple[str, ...],
    speakers: Literal["recording", "auto"],
    lexicon: str | None,
    lm_text: Path | None,
) -> None:
    """Make a recipe for your own corpus.

    Writes run.py, config.py and README.md to recipes/NAME. With --from-csv, --from-kaldi or
    --from-cuts the recipe is ready to run. Without these options the command also writes
    local/NAME.py, in which you complete one function. Existing files are never overwritten.
    docs/new-corpus.md is a tutorial.

    \b
    Example:
      toolkit new-corpus interviews --from-csv speech/table.csv
      recipes/interviews/run.py
    """
    from toolkit.new_corpus.make import check_name, create_reader_stub, create_recipe, find_checkout

    data = {"table": from_csv, "kaldi": from_kaldi, "cuts": from_cuts}
    # 1. Check the options together. `sources` has at most one entry: the reader and its path.
    sources = {reader: path for reader, path in data.items() if path is not None}
    if len(sources) > 1:
        raise click.UsageError("give only one of --from-csv, --from-kaldi and --from-cuts")
    if pipes is not None and from_kaldi is None:
        raise click.UsageError("--pipes runs the commands in Kaldi's wav.scp: add --from-kaldi")
    if map_paths and not sources:
        raise click.UsageError("--map-path needs --from-csv, --from-kaldi or --from-cuts")
    if speakers == "auto" and not sources:
        raise click.UsageError("--speakers auto needs --from-csv, --from-kaldi or --from-cuts")
    if lexicon not in (None, "cmudict", "graphemes") and not Path(lexicon).exists():
        raise click.BadParameter(
            f"{lexicon!r} is neither an existing file or folder nor cmudict or graphemes",
            param_hint="--lexicon",
        )
    # 2. Write the recipe. With data it runs at once; without, the user writes its reader.
    root = find_checkout(Path.cwd())
    check_name(name, root)
    if sources:
        ((reader, source),) = sources.items()
        recipe = create_recipe(
            root, name, source, reader, lexicon, lm_text, pipes, map_paths, speakers
        )
    else:
        recipe = create_reader_stub(root, name, lexicon, lm_text)
    for line in recipe.remarks:
        click.echo(line)
    # 3. Say what to do next. Without data the first file is local/NAME.py, the reader to fill in.
    *readers, config, run, readme = map(os.path.relpath, recipe.written)
    for path in (*readers, config, run, readme):
        click.echo(f"wrote {path}")
    click.echo("\nNext:")
    if readers:
        click.echo(f"  adapt {readers[0]} to the layout of the corpus,")
        click.echo(f"  set the corpus folder (root) in {config}, and type:")
    click.echo(f"  {run} --stop-stage 3     # check the data")
    click.echo(f"  {run}                    # run all stages, up to word error rates")
