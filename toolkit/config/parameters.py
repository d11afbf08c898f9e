"""Click parameter types that the commands share."""

from pathlib import Path

import click

FILE = click.Path(path_type=Path)
"""A path of a file or folder, passed as `pathlib.Path`."""
