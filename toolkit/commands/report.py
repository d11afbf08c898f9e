"""The command `toolkit report`."""

from pathlib import Path

import click

from toolkit.config.click_types import FILE, TEXT_OUT, Number, is_printed


@click.command()
@click.argument("run", metavar="RUN_DIR", type=FILE)
@click.argument("second", metavar="[RUN_DIR]", type=FILE, required=False)
@click.option(
    "--out",
    type=TEXT_OUT,
    help="HTML file to write; - prints the page. Default: report.html in the run directory or, for "
    "two runs, comparison.html in the second run directory.",
)
@click.option(
    "--utterances",
    type=click.IntRange(0),
    default=6,
    show_default=True,
    help="Number of worst utterances to show per split, with audio and spectrogram.",
)
@click.option(
    "--max-mb",
    type=Number(0, min_open=True),
    default=8.0,
    show_default=True,
    help="Maximum size of the page in MB. Audio players for which there is no room are left out.",
)
def report(
    run: Path, second: Path | None, out: Path | None, utterances: int, max_mb: float
) -> None:
    """Write an HTML report of a run, or compare two runs.

    RUN_DIR is the directory of a finished or unfinished run. The report is one HTML file, which can
    be read without a network connection. It shows stages, data, findings of the data check,
    learning curves, error rates, tuning, worst utterances with audio, all utterances, confusions,
    commands and versions. `toolkit clean` removes data that the report shows. After `toolkit
    clean`, this command does not overwrite report.html: write the report to another file with
    --out.

    For two runs, the report shows the settings that differ, the error rates side by side with
    p-values, and the utterances in which the second run has fewer or more errors.

    \b
    Examples:
      toolkit report exp/demo --out demo.html
      toolkit report exp/demo exp/wider
    """
    from toolkit.report.run_page import ReportConfig, write_comparison, write_report

    if second is None:
        out = out or _default_page(run)
        problems = write_report(run, out, ReportConfig(utterances, max_mb))
    else:
        out = out or second / "comparison.html"
        problems = write_comparison(run, second, out)
    for problem in problems:
        click.echo(f"Note: {problem}", err=True)
    if not is_printed(out):
        click.echo(f"{out} ({out.stat().st_size / 1000:,.0f} kB)")


def _default_page(run: Path) -> Path:
    """Return the page in a run directory.

    Raises:
      ClickException: the page exists, and outputs that it may show were removed since.
    """
    from toolkit.report.run_folder import RunFolder
    from toolkit.stages.disk import removed

    page = run / "report.html"
    gone = removed(RunFolder.open(run).directory)
    if gone and page.exists():
        listed = ", ".join(gone[:3]) + (f" and {len(gone) - 3} others" if len(gone) > 3 else "")
        raise click.ClickException(
            f"{page} is not overwritten, because outputs of the run that it may show have been"
            f" removed ({listed}). Write the new page to another file with --out, or run the recipe"
            " to make these outputs again"
        )
    return page
