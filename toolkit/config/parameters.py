"""Types of command-line parameters."""

from pathlib import Path

import click

FILE = click.Path(path_type=Path)
"""A path, as `pathlib.Path`."""
