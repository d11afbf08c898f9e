"""What `toolkit NAME` runs: a module per command, which imports what it needs when called."""

from pathlib import Path

import click

FILE = click.Path(path_type=Path)
"""Type of a parameter that is a path."""
