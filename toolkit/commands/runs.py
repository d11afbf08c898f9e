"""The command `toolkit runs`."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from toolkit.config.click_types import AS_JSON, FILE


@click.command()
@AS_JSON
@click.argument("folder", type=FILE, default=Path())
def runs(as_json: bool, folder: Path) -> None:
    """List the runs below a folder.

    For each run, prints the number of finished stages, the time at which the last stage ended, the
    size of the run directory and, for each split, the lowest word error rate and its system.

    \b
    Example:
      toolkit runs recipes
    """
    from toolkit.report.run_folder import find_runs, table_lines

    summaries = find_runs(folder)
    if as_json:
        click.echo(json.dumps([asdict(run) for run in summaries], indent=1))
        return
    for line in table_lines(summaries):
        click.echo(line)
