"""The command `toolkit clean`."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import click

from toolkit.config.click_types import AS_JSON, FILE


@click.command()
@AS_JSON
@click.option(
    "--all", "everything", is_flag=True, help="Remove every output that a stage can make again."
)
@click.option(
    "--dry-run", is_flag=True, help="List the outputs that would be removed; remove nothing."
)
@click.argument("run", metavar="RUN_DIR", type=FILE)
@click.argument("outputs", nargs=-1)
def clean(
    as_json: bool, everything: bool, dry_run: bool, run: Path, outputs: tuple[str, ...]
) -> None:
    """Delete the intermediate files of a run.

    Removes OUTPUTS of finished stages, such as fbank or decode/mono. The next call of run.py makes
    them again. Without OUTPUTS, lists the outputs that can be removed, with their sizes and the
    durations of their stages. The bundle, results, manifests, the corpus and the data check are
    never removed.

    \b
    Example:
      toolkit clean exp/demo fbank plp denominators --dry-run
    """
    from toolkit.report.run_folder import RunFolder
    from toolkit.stages.disk import choose, removable, remove
    from toolkit.stages.log import duration

    if everything and outputs:
        raise click.UsageError("give --all or the names of outputs, not both")
    directory = RunFolder.open(run).directory
    # Without names and without --all the command answers "what would free the most space?": it
    # lists all outputs and removes none.
    include_all = everything or not outputs
    outputs_to_remove = removable(directory) if include_all else choose(directory, outputs)
    removes = (everything or outputs) and not dry_run
    if removes:
        # Another process that wants the run directory reads this command in its lock.
        words = ["toolkit", "clean", str(run), *(["--all"] if everything else outputs)]
        remove(directory, outputs_to_remove, shlex.join(words))
    if as_json:
        rows = [asdict(output) for output in outputs_to_remove]
        click.echo(json.dumps({"removed": bool(removes), "outputs": rows}, indent=1))
        return
    for output in outputs_to_remove:
        click.echo(
            f"{output.size / 1e6:10.1f} MB  {duration(output.seconds):>11}  {output.name}"
            f"  (stage {output.stage}: {output.title})"
        )
    verb = "removed" if removes else "can be removed"
    click.echo(f"{sum(output.size for output in outputs_to_remove) / 1e6:10.1f} MB {verb}")
