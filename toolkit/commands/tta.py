"""The command `toolkit tta`: time to accuracy of CTC training, and its cost (A26-A39)."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from toolkit.config.click_types import FILE, JSON_OUT, Number
from toolkit.environment import usable_cpus
from toolkit.processes import ranks

if TYPE_CHECKING:
    from toolkit.train.config import Amp, OptimizerName

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


class _Tta(click.Group):
    """Runs `page` if the first argument is not the name of a subcommand."""

    @property
    def default(self) -> click.Command:
        """The command that is run without a subcommand."""
        return self.commands["page"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["page", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Tta, subcommand_metavar="RUN... | COMMAND [ARGS]...")
def tta() -> None:
    """Measure and tune the time to accuracy of CTC training.

    `toolkit tta RUN...` is short for `toolkit tta page RUN...`.

    \b
    Example:
      toolkit tta page "1 thread=exp/one" "2 threads=exp/two" --cer 20,15,10 --out tta
    """


def _numbers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple | None:
    if text is None:
        return None
    try:
        return tuple(float(number) for number in text.split(",") if number.strip())
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers like 20,15,10") from None


def _train_repeats(run_arguments: Sequence[str], runs: int, device: str | None) -> Iterator[str]:
    """Train each run again with other seeds; yield NAME=FOLDER of every training run."""
    from toolkit.processes.devices import choose_device
    from toolkit.tta.runs import name_and_folder, read_platforms
    from toolkit.tta.training import repeated

    command = shlex.join(["toolkit", *sys.argv[1:]])
    for argument in run_arguments:
        name, folder = name_and_folder(argument)
        # Repeats must share the platform's name: `page` takes runs of one name for repeats of each
        # other.
        name = name or read_platforms([argument])[0].name
        for training in repeated(
            folder, runs, choose_device(device), usable_cpus(), command, _print_on_first_rank
        ):
            yield f"{name}={training}"


def _print_on_first_rank(text: str) -> None:
    if ranks.rank() == 0:  # one line, not one of every process under torchrun
        click.echo(text)


@tta.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--out", type=FILE, default=Path("tta"), show_default=True, help="Folder to write.")
@click.option(
    "--platform",
    "platform_files",
    type=FILE,
    multiple=True,
    help="YAML or JSON file with the price of a platform. Its keys are name, total, devices, "
    "processors, per_hour, currency, as_of and note.",
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
    help="Number of consecutive epochs whose median error rate must reach a target.",
)
@click.option(
    "--equal-batch",
    metavar="RUN",
    multiple=True,
    help="A run for the comparison in which all platforms use one batch size; may be repeated.",
)
@click.option("--sweep", type=FILE, help="JSON file written by `toolkit tta sweep --json`.")
@click.option(
    "--dataset",
    type=FILE,
    help="YAML or JSON file that describes the data set. Its keys are name, utterances, speakers, "
    "vocabulary, noise, hours and kept.",
)
@click.option("--features", type=FILE, help="An audio file. The page shows its features.")
@click.option(
    "--runs",
    "repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many times to train each RUN in total. The missing repeats are trained with other "
    "seeds. MLPerf's rule needs 3.",
)
@click.option(
    "--device",
    help="Device on which --runs trains: cpu, cuda, ...; default: a GPU if there is one.",
)
@click.option("--title", default="Time to accuracy", show_default=True, help="Title of the page.")
def page(
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
    """Write a page on the time to accuracy of CTC training.

    The time to accuracy (TTA) is the training time until the median error rate of the last epochs
    reaches a target. The command also writes CSV files. RUN is the folder that contains the
    log.jsonl of a training run, or the run directory that contains this folder. With NAME=RUN, NAME
    is the name of the run's platform. Several runs of one platform count as repeats, and the page
    shows their median. With --runs 3 the command trains each RUN of a recipe twice more, with other
    seeds, in its folder repeats/. The same command continues an interrupted repeat. Under torchrun
    several processes train together.

    \b
    Example:
      toolkit tta page "1 thread=exp/one" "2 threads=exp/two" --cer 20,15,10 --out tta
      toolkit tta page --runs 3 exp/ctc-demo --cer 20,15,12 --wer 60,50,40
    """
    from toolkit.tta.config import EQUAL_BATCH_WER, TtaConfig, read_dataset
    from toolkit.tta.figures import feature_figure
    from toolkit.tta.machine import read_prices
    from toolkit.tta.page import Extras, write_page
    from toolkit.tta.runs import read_platforms
    from toolkit.tta.tables import sweep_table, tta_table

    # 1. The targets, checked before any training.
    default = TtaConfig()
    try:
        config = TtaConfig(
            default.cer if cer is None else cer, default.wer if wer is None else wer, epochs
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    # 2. Train the repeats. Under torchrun all ranks train, then rank 0 alone writes the page.
    if repeats > 1:
        runs = tuple(_train_repeats(runs, repeats, device))
        equal_batch = tuple(_train_repeats(equal_batch, repeats, device))
        if ranks.rank() > 0:
            return
    # 3. Read the training runs and write the page. By default the comparison with equal batches has
    # the paper's word error rates as its targets; --wer sets the targets of both comparisons.
    prices = [price for path in platform_files for price in read_prices(path)]
    platforms = read_platforms(runs, prices)
    extras = Extras(
        equal_batch=read_platforms(equal_batch) if equal_batch else (),
        equal_batch_targets=replace(config, wer=EQUAL_BATCH_WER) if wer is None else config,
        sweep=sweep_table(sweep) if sweep else None,
        dataset=read_dataset(dataset) if dataset else None,
        features=feature_figure(features) if features else None,
        title=title,
    )
    write_page(platforms, out, config, extras)
    tta_table(platforms, config, "TTA in minutes").print()
    click.echo(f"Wrote {out / 'index.html'} and the CSV files beside it.")


@tta.command()
@click.argument("run", type=FOLDER)
@click.option("--split", help="Decoded split; default: the first in alphabetical order.")
@click.option(
    "--mode",
    type=click.Choice(["words", "ngrams", "forecast"]),
    default="forecast",
    show_default=True,
    help="How to apply the language model: not at all (words), after each word (ngrams), or also "
    "within words (forecast).",
)
@click.option(
    "--width",
    "widths",
    type=click.IntRange(1),
    multiple=True,
    help="Beam width; may be repeated. Default: 1 to 4096.",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Number of threads."
)
@click.option("--json", "json_file", type=JSON_OUT, help="Also write the rows to this file.")
def sweep(
    run: Path,
    split: str | None,
    mode: str,
    widths: tuple[int, ...],
    jobs: int,
    json_file: Path | None,
) -> None:
    """Measure decoding time and accuracy by beam width.

    Decodes a split at each beam width. RUN is the run directory of a CTC recipe that has decoded at
    least one split. Beside the measurements, the command prints the table of the paper "Training
    for Speech Recognition on Co-processors".

    \b
    Example:
      toolkit tta sweep exp/ctc-demo --split test --width 16 --width 256
    """
    from toolkit.tta.sweep import WIDTHS, sweep_run

    sweep_run(run, split, mode, widths or WIDTHS, jobs, json_file)


@tta.command()
@click.option("--records", type=FOLDER, help="Folder of record files; default: synthetic records.")
@click.option(
    "--model",
    default="none",
    show_default=True,
    help="Network to train: none (measure reading alone), paper (the network of the paper "
    '"Training for Speech Recognition on Co-processors", with 25.6 million weights), or the folder '
    "of a trained CTC network.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Number of CPU threads for training; default: one per core.",
)
@click.option(
    "--amp",
    type=click.Choice(("fp32", "bf16", "fp16", "auto")),
    default="fp32",
    show_default=True,
    help="Precision of training. auto chooses the fastest that the device supports well.",
)
@click.option(
    "--optimizer",
    type=click.Choice(("adam", "sgd", "adadelta", "adadelta_tensorflow")),
    default="adadelta",
    show_default=True,
    help="Optimizer.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=24,
    show_default=True,
    help="Smallest batch size, in utterances.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1),
    help="Largest batch size to try; default: 8 times --batch.",
)
@click.option(
    "--max-readers",
    type=click.IntRange(1),
    help="Largest number of readers to try; default: two per CPU.",
)
@click.option(
    "--buffer",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Buffer size in batches.",
)
@click.option(
    "--pad-to",
    type=click.IntRange(1),
    help="Pad all utterances to this number of frames, such as 1670. Default: the length of the "
    "longest utterance.",
)
@click.option(
    "--order",
    type=click.Choice(["shuffled", "buckets"]),
    default="shuffled",
    show_default=True,
    help="Order of utterances. With buckets, each batch contains utterances of similar length.",
)
@click.option(
    "--memory",
    type=Number(0, min_open=True),
    help="Memory limit in GB; default: 80 % of the free memory.",
)
@click.option(
    "--seconds",
    type=Number(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Duration of each measurement in seconds.",
)
@click.option(
    "--json",
    "json_file",
    type=JSON_OUT,
    help="Also write the results to this file.",
)
def readers(
    records: Path | None,
    model: str,
    threads: int | None,
    amp: "Amp",
    optimizer: "OptimizerName",
    batch: int,
    max_batch: int | None,
    max_readers: int | None,
    buffer: int,
    pad_to: int | None,
    order: Literal["shuffled", "buckets"],
    memory: float | None,
    seconds: float,
    json_file: Path | None,
) -> None:
    """Tune readers and batch size of CTC training.

    Finds the best number of readers and the best batch size for this machine. Readers are processes
    that read training data from record files. The command adds readers until throughput stops
    rising, then doubles the batch size until --memory is reached. It trains for some seconds with
    each setting, in a new process. The throughput is thus lower if training waits for data or
    shares the CPU with readers. Set --threads, --amp and --optimizer as in the recipe's `train`
    section.

    \b
    Examples:
      toolkit tta readers
      toolkit tta readers --records exp/ctc/records/train --model paper --max-batch 192
    """
    from toolkit.train.config import ReaderConfig, TrainerConfig
    from toolkit.tta.readers import tune_readers

    if max_batch is not None and max_batch < batch:
        raise click.UsageError(f"--max-batch {max_batch} is below --batch {batch}")
    tune_readers(
        records,
        model,
        ReaderConfig(batch, buffer=buffer, pad_to=pad_to, order=order),
        TrainerConfig(optimizer=optimizer, initial_rate=None, amp=amp, threads=threads),
        max_readers,
        max_batch,
        None if memory is None else memory * 1e9,
        seconds,
        json_file,
        progress=lambda text: click.echo(text, err=True),
    )
