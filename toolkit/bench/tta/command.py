"""The command `toolkit bench tta`: time to accuracy of trainings (A26-A39)."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from toolkit.config.click_types import FILE
from toolkit.environment import usable_cpus
from toolkit.processes import ranks


def _numbers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple | None:
    if text is None:
        return None
    try:
        return tuple(float(number) for number in text.split(",") if number.strip())
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 20,15,10") from None


def _with_repeats(given: Sequence[str], runs: int, device: str | None) -> Iterator[str]:
    """Train runs again; yield NAME=FOLDER of every training."""
    from toolkit.bench.tta.repeats import repeated
    from toolkit.bench.tta.runs import name_and_folder, read_platforms
    from toolkit.processes.devices import choose_device

    command = shlex.join(["toolkit", *sys.argv[1:]])
    for one in given:
        name, folder = name_and_folder(one)
        name = name or read_platforms([one])[0].name
        for training in repeated(
            folder, runs, choose_device(device), usable_cpus(), command, _tell
        ):
            yield f"{name}={training}"


def _tell(text: str) -> None:
    if ranks.rank() == 0:
        click.echo(text)


@click.command("tta")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--out", type=FILE, default=Path("tta"), show_default=True, help="Folder to write.")
@click.option(
    "--platform",
    "platform_files",
    type=FILE,
    multiple=True,
    help="Prices of platforms, a YAML or JSON file with the keys name, total, devices, processors, "
    "per_hour, currency, as_of, note.",
)
@click.option("--cer", callback=_numbers, help="Target character error rates in percent.  [10,8,7]")
@click.option(
    "--wer",
    callback=_numbers,
    help="Target word error rates in percent.  [22,20.2,19.2; with equal batches 22,20,19]",
)
@click.option(
    "--epochs",
    default=3,
    show_default=True,
    help="Number of epochs whose median must reach a target.",
)
@click.option(
    "--equal-batch",
    metavar="RUN",
    multiple=True,
    help="Run of a study with the same batch size on all platforms; may be repeated.",
)
@click.option("--sweep", type=FILE, help="Results of `toolkit bench ctc-sweep --json`.")
@click.option(
    "--dataset",
    type=FILE,
    help="Description of the data set, a YAML or JSON file with the keys name, utterances, "
    "speakers, vocabulary, noise, hours, kept.",
)
@click.option("--features", type=FILE, help="An audio file whose features are shown.")
@click.option(
    "--runs",
    "repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Train each RUN again with other seeds until there are so many; MLPerf's rule needs 3.",
)
@click.option("--device", help="With --runs: cpu, cuda, ...; default: a GPU if there is one.")
@click.option("--title", default="Time to accuracy", show_default=True, help="Title of the page.")
def command(
    runs: tuple[str, ...],
    out: Path,
    platform_files: tuple[Path, ...],
    cer: tuple[float, ...] | None,
    wer: tuple[float, ...] | None,
    epochs: int,
    equal_batch: tuple[str, ...],
    sweep: Path | None,
    dataset: Path | None,
    features: Path | None,
    repeats: int,
    device: str | None,
    title: str,
) -> None:
    """Compute the time to accuracy (TTA) of CTC trainings, and write a page and CSVs.

    TTA is the time that training takes until the median error rate of the last epochs reaches a
    target. RUN is the folder with the log.jsonl of a training, or the run directory that contains
    it; NAME=RUN names its platform. Runs of the same platform are repeats, whose median is shown.
    With --runs 3 each RUN of a recipe is trained twice more, with other seeds, in its folder
    repeats/; a repeat that was interrupted goes on, and under torchrun several processes train.

    \b
    Example:
      toolkit bench tta "1 thread=exp/one" "2 threads=exp/two" --cer 20,15,10 --out tta
      toolkit bench tta --runs 3 exp/ctc-demo --cer 20,15,12 --wer 60,50,40
    """
    from toolkit.bench.instruments.platform import read_prices
    from toolkit.bench.tta.dataset import read_dataset
    from toolkit.bench.tta.feature_panels import feature_figure
    from toolkit.bench.tta.page import Extras, write_page
    from toolkit.bench.tta.result_tables import sweep_table
    from toolkit.bench.tta.rules import EQUAL_BATCH_WER, TtaConfig
    from toolkit.bench.tta.runs import read_platforms
    from toolkit.bench.tta.tables import tta_table

    default = TtaConfig()
    try:
        config = TtaConfig(
            default.cer if cer is None else cer, default.wer if wer is None else wer, epochs
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if repeats > 1:
        runs = tuple(_with_repeats(runs, repeats, device))
        equal_batch = tuple(_with_repeats(equal_batch, repeats, device))
        if ranks.rank() > 0:
            return
    prices = [price for path in platform_files for price in read_prices(path)]
    platforms = read_platforms(runs, prices)
    extras = Extras(
        equal_batch=read_platforms(equal_batch) if equal_batch else (),
        equal_batch_targets=replace(config, wer=EQUAL_BATCH_WER) if wer is None else config,
        sweep=sweep_table(sweep) if sweep else None,
        dataset=read_dataset(dataset).html() if dataset else "",
        features=feature_figure(features) if features else "",
        title=title,
    )
    write_page(platforms, out, config, extras)
    tta_table(platforms, config, "TTA in minutes").print()
    click.echo(f"Wrote {out / 'index.html'} and its CSVs.")
