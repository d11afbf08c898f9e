"""The `toolkit` command: thin subcommands, one per library function, imported when called.

Exit status: 0 success; 1 an error in the data, the settings or the machine, with a message on
standard error; 2 unknown options, or options that exclude each other.
"""

import importlib
import os
import sys
from typing import Any

import click

from toolkit.config.click_types import named
from toolkit.errors import ToolkitError
from toolkit.processes.workers import freeze_imports
from toolkit.stages.log import OutputError, report_broken_output
from toolkit.storage.paths import encoding_error, printable

COMMANDS = (
    "align",
    "clean",
    "combine",
    "config",
    "ctc",
    "doctor",
    "export",
    "hmm",
    "kaldi",
    "lattice",
    "new-corpus",
    "pipeline",
    "report",
    "runs",
    "scaling",
    "score",
    "serve",
    "ssl",
    "transcribe",
    "tta",
)
"""The subcommands. Each is defined in the module of `toolkit/commands` with its name (`_` in place
of `-`)."""


class _Commands(click.Group):
    """Imports a command when it is called, and turns user errors into messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # The modules of commands are light: torch and lhotse are imported when a command runs.
        module = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"toolkit.commands.{module}"), module)
        freeze_imports()
        return command

    def main(self, *arguments: Any, **settings: Any) -> Any:
        try:
            with report_broken_output():
                return super().main(*arguments, **settings)
        except OutputError as error:
            # `invoke` reports errors of commands. This error is click's own, for example while it
            # prints the help to a full disk.
            sys.exit(f"Error: {error}")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ToolkitError as error:
            raise click.ClickException(printable(named(str(error)))) from error
        except UnicodeEncodeError as error:
            # Only names that are not UTF-8 are the user's to mend; any other encoding error is a
            # bug.
            if (message := encoding_error(error)) is None:
                raise
            raise click.ClickException(str(message)) from error
        except OSError as error:
            if error.filename is None:  # a closed pipe or a bug, not one of the user's files
                raise
            name = printable(named(os.fsdecode(error.filename)))
            raise click.ClickException(f"{name}: {error.strerror}") from error


def _show_version(ctx: click.Context, parameter: click.Parameter, is_set: bool) -> None:
    """Print the version and exit, for --version."""
    if is_set and not ctx.resilient_parsing:
        import toolkit

        click.echo(f"toolkit, version {toolkit.__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Tools for speech recognition: check the machine, transcribe, score, inspect, convert.

    Each recipe is run with its own run.py, such as recipes/librispeech/run.py.

    \b
    Example:
      toolkit transcribe --model exp/demo/final a.wav
    """
