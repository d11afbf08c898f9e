"""Click parameter types that the commands share."""

import codecs
import json
import re
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)
"""A path of a file or folder, passed as `pathlib.Path`."""

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
"""The flag of commands that print a table."""

_TIME = r"(\*|(?:&&)?-?\d*\.?\d+)"
_CTM = re.compile(rf"\S+\s+\S+\s+{_TIME}\s+{_TIME}\s+\S.*")
_LOOKED_AT = 20
"""Lines by which a CTM is known."""
_PRINTED = f"{__name__}.printed"


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
        ctx.find_root().meta.setdefault(_PRINTED, set()).add(path)
        ctx.call_on_close(lambda: _print(path))
        return path


TEXT_IN = _TextIn(path_type=Path)
"""As `FILE`, of a text to read; `-` is standard input."""
TEXT_OUT = _TextOut(path_type=Path)
"""As `FILE`, of a text to write; `-` is standard output."""


def is_printed(path: Path | None) -> bool:
    """Return whether a path of the current command stands for `-`, given to a `TEXT_OUT`."""
    return path in click.get_current_context().find_root().meta.get(_PRINTED, ())


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
    content = content.removeprefix(codecs.BOM_UTF8)
    lines = [line for line in content.splitlines() if line.strip()]
    if lines and lines[0].lstrip()[:1] in (b"{", b"["):
        first = _parsed(lines[0])
        if isinstance(first, dict) and {"text", "supervisions", "error"} & first.keys():
            return ".jsonl"
        if _parsed(content) is not None:
            return ".json"
        return ".jsonl" if isinstance(first, dict) else ""
    spoken = (line.strip() for line in lines if not line.startswith(b";;"))
    found = [_CTM.fullmatch(line.decode("utf-8", "replace")) for line in islice(spoken, _LOOKED_AT)]
    # Kaldi's text may have two whole numbers in this place, on each of a few lines.
    decimal = any("." in time for match in found if match for time in match.groups())
    return ".ctm" if decimal and all(found) else ""


def _parsed(text: bytes) -> Any:
    """Return the content of a text in JSON, None for any other."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
