"""Click parameter types that the commands share."""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)
"""A path of a file or folder, passed as `pathlib.Path`."""

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
"""The flag of commands that print a table."""

_CTM = re.compile(r"\S+\s+\S+\s+\d+\.\d+\s+\d+\.\d+\s+\S+(\s+\S+)*")


class _TextIn(click.Path):
    """A path to read; of `-` that of a file with what standard input holds.

    The file is named `standard-input`, with the suffix by which readers know JSON and CTM.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; the file from standard input is removed when the command ends."""
        if str(value) != "-" or ctx is None:
            return super().convert(value, param, ctx)
        meta = ctx.find_root().meta
        if meta.get(__name__):
            self.fail("standard input can be read only once", param, ctx)
        meta[__name__] = True
        content = sys.stdin.buffer.read()
        path = _folder(ctx) / f"standard-input{_suffix(content)}"
        path.write_bytes(content)
        return path


class _TextOut(click.Path):
    """A path to write; what is written to `-` is printed when the command ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, for `-` that of a file that is printed."""
        if str(value) != "-" or ctx is None:
            return super().convert(value, param, ctx)
        path = _folder(ctx) / "standard-output"
        ctx.call_on_close(lambda: _print(path))
        return path


TEXT_IN = _TextIn(path_type=Path)
"""As `FILE`, of a text to read; `-` is standard input."""
TEXT_OUT = _TextOut(path_type=Path)
"""As `FILE`, of a text to write; `-` is standard output."""


def _folder(ctx: click.Context) -> Path:
    """Make a folder that is removed when the command ends."""
    folder = tempfile.TemporaryDirectory(prefix="toolkit-")
    ctx.call_on_close(folder.cleanup)
    return Path(folder.name)


def _print(path: Path) -> None:
    if path.exists():
        click.echo(path.read_bytes(), nl=False)


def _suffix(content: bytes) -> str:
    """Return the suffix by which readers of transcripts tell the format; "" for plain text."""
    lines = [line for line in content[: 1 << 16].splitlines()[:20] if line.strip()]
    if content.lstrip()[:1] == b"[":
        return ".json"
    if content.lstrip()[:1] == b"{":
        try:
            first = json.loads(lines[0])
        except ValueError:
            return ".json"
        return ".jsonl" if {"text", "supervisions", "error"} & first.keys() else ".json"
    spoken = [line for line in lines if not line.startswith(b";;")]
    ctm = spoken and all(_CTM.fullmatch(line.decode("utf-8", "replace")) for line in spoken)
    return ".ctm" if ctm else ""
