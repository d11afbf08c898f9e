"""The `toolkit` command: one thin command per library function, imports made when needed.

Exit status: 0 done, 1 a fault in the data or the machine (its message on standard error), 2 a
command typed wrongly.
"""

import importlib
from typing import Any

import click

from toolkit import __version__
from toolkit.errors import ToolkitError

COMMANDS = (
    "align",
    "bench",
    "ctc",
    "doctor",
    "export",
    "hmm",
    "kaldi",
    "new-corpus",
    "pipeline",
    "report",
    "score",
    "ssl",
    "transcribe",
)
"""Each is defined in the module of this name in `toolkit/commands`, where - is written _."""


class _Commands(click.Group):
    """Imports a command when it is called; a user's fault ends with a message, not a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = cmd_name.replace("-", "_")
        return getattr(importlib.import_module(f"toolkit.commands.{module}"), module)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ToolkitError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.filename is None:  # no file of the user's: a closed pipe, or our own fault
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror}") from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="toolkit")
def main() -> None:
    """Speech recognition recipes: check the machine, score, transcribe, measure.

    \b
    Example:
      toolkit transcribe --model exp/demo/final a.wav
    """
