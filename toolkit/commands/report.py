"""The command `toolkit report`."""

from pathlib import Path

import click

from toolkit.config.parameters import FILE


@click.command()
@click.argument("run", metavar="RUN_DIR", type=FILE)
@click.option(
    "--out", type=FILE, help="The page to write; default: report.html in the run directory."
)
@click.option(
    "--utterances",
    type=click.IntRange(0),
    default=6,
    show_default=True,
    help="Number of worst utterances shown of each split, with audio and spectrogram.",
)
@click.option(
    "--max-mb",
    type=click.FloatRange(0, min_open=True),
    default=8.0,
    show_default=True,
    help="Maximum size of the page in MB; utterances that do not fit get no audio player.",
)
def report(run: Path, out: Path | None, utterances: int, max_mb: float) -> None:
    """Write an HTML report of a run.

    RUN_DIR is a run directory, finished or not. The report is one HTML file that needs no network:
    stages, data, findings of the data check, learning curves, error rates, tuning, worst utterances
    with audio, confusions, commands and versions.

    \b
    Example:
      toolkit report exp/demo --out demo.html
    """
    from toolkit.report.run_page import ReportConfig, write_report

    out = out or run / "report.html"
    for problem in write_report(run, out, ReportConfig(utterances, max_mb)):
        click.echo(f"Note: {problem}", err=True)
    click.echo(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
