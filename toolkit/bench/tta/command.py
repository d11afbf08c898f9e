"""Time to accuracy of trainings, as tables, figures and one page (A26-A39)."""

from pathlib import Path

import click

from toolkit.config.parameters import FILE


def _numbers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple | None:
    if text is None:
        return None
    try:
        return tuple(float(number) for number in text.split(",") if number.strip())
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 20,15,10") from None


@click.command("tta")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--out", type=FILE, default=Path("tta"), show_default=True, help="Folder to write.")
@click.option(
    "--platform",
    "platform_files",
    type=FILE,
    multiple=True,
    help="YAML or JSON: name, total, devices, processors, per_hour, currency, as_of, note.",
)
@click.option("--cer", callback=_numbers, help="Character error rates in percent.  [10,8,7]")
@click.option("--wer", callback=_numbers, help="Word error rates in percent.  [22,20.2,19.2]")
@click.option("--epochs", default=3, show_default=True, help="Epochs whose median must reach it.")
@click.option("--equal-batch", metavar="RUN", multiple=True, help="A run of the equal-batch study.")
@click.option("--sweep", type=FILE, help="Beam widths: what `toolkit bench ctc-sweep` wrote.")
@click.option("--dataset", type=FILE, help="YAML or JSON: name, utterances, speakers, vocabulary.")
@click.option("--features", type=FILE, help="An audio file to show the front end with.")
@click.option("--title", default="Time to accuracy", show_default=True)
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
    title: str,
) -> None:
    """Compute times to accuracy from run logs and write a page and CSVs.

    RUN is the folder of a training's log.jsonl, or the recipe's run directory around it; NAME=RUN
    names its platform. Runs of one platform are repeats: tables show their median.

    \b
    Example:
      toolkit bench tta "1 thread=exp/one" "2 threads=exp/two" --cer 20,15,10 --out tta
    """
    from toolkit.bench.instruments.platform import read_prices
    from toolkit.bench.tta.dataset import read_dataset
    from toolkit.bench.tta.feature_panels import feature_figure
    from toolkit.bench.tta.page import Extras, write_page
    from toolkit.bench.tta.records import sweep_table
    from toolkit.bench.tta.rules import TtaConfig
    from toolkit.bench.tta.runs import read_platforms
    from toolkit.bench.tta.tables import tta_table

    default = TtaConfig()
    try:
        config = TtaConfig(
            default.cer if cer is None else cer, default.wer if wer is None else wer, epochs
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    prices = [price for path in platform_files for price in read_prices(path)]
    platforms = read_platforms(runs, prices)
    extras = Extras(
        equal_batch=read_platforms(equal_batch) if equal_batch else (),
        sweep=sweep_table(sweep) if sweep else None,
        dataset=read_dataset(dataset).html() if dataset else "",
        features=feature_figure(features) if features else "",
        title=title,
    )
    write_page(platforms, out, config, extras)
    tta_table(platforms, config, "TTA in minutes").print()
    click.echo(f"Wrote {out / 'index.html'} and its CSVs.")
