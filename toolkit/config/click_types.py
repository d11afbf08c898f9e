"""Click parameter types and options that several commands share."""

import codecs
import json
import math
import re
import sys
import tempfile
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)
"""A path of a file or folder, passed as `pathlib.Path`."""

_TIME = r"(\*|(?:&&)?-?\d*\.?\d+)"
_CTM = re.compile(rf"\S+\s+\S+\s+{_TIME}\s+{_TIME}\s+\S.*")
_CTM_LINES = 20
"""Number of lines that are examined to detect a CTM."""
_PRINTED = f"{__name__}.printed"
"""Key in `Context.meta`: option names by path, for the outputs that go to standard output."""
_READ = f"{__name__}.read"
"""Key in `Context.meta`: path of the temporary file that holds standard input."""
_AS_JSON = f"{__name__}.json"


class Number(click.FloatRange):
    """A finite number in a range; NaN and infinities are refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, or fail if it is NaN or infinite."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class _NoText(click.Path):
    """A path that must not be `-`; the error message gives the reason."""

    def __init__(self, reason: str, exists: bool = False) -> None:
        super().__init__(exists=exists, path_type=Path)
        self._reason = reason

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; `./-` is a file or folder called `-`."""
        if str(value) == "-":
            self.fail(self._reason, param, ctx)
        return super().convert(value, param, ctx)


class _TextIn(click.Path):
    """A path to read; `-` stands for a temporary file with the content of standard input.

    The file is called `standard-input`, with the suffix by which readers recognise JSON and CTM.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; the temporary file is removed when the command ends."""
        if str(value) != "-" or ctx is None:
            return super().convert(value, param, ctx)
        meta = ctx.find_root().meta
        if meta.get(__name__):
            self.fail("standard input can be read only once", param, ctx)
        meta[__name__] = True
        # Readers need a file: they read it several times, and detect the format by its suffix.
        if sys.stdin is None:
            self.fail("standard input is closed", param, ctx)
        try:
            content = sys.stdin.buffer.read()
        except OSError as error:
            self.fail(f"standard input cannot be read: {error.strerror}", param, ctx)
        path = _folder(ctx) / f"standard-input{_suffix(content)}"
        path.write_bytes(content)
        meta[_READ] = path
        return path


class _TextInOr(click.ParamType):
    """One of a few keywords, or a path to read as by `TEXT_IN`; passed on as `str`."""

    name = "path"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the keyword, or the path."""
        return value if value in self._words else str(TEXT_IN.convert(value, param, ctx))


class _TextOut(click.Path):
    """A path to write; with `-` the text is printed when the command ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; for `-`, that of a temporary file that is printed later."""
        if str(value) != "-" or ctx is None:
            return super().convert(value, param, ctx)
        path = _folder(ctx) / "standard-output"
        name = param.opts[0] if param is not None else "the output"
        ctx.find_root().meta.setdefault(_PRINTED, {})[path] = name
        _refuse_both(ctx)
        # Called before the folder is removed: click calls the last function first.
        ctx.call_on_close(lambda: _print(path))
        return path


class _JsonOut(_TextOut):
    """A path to write JSON to; with `-` all other output goes to standard error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; for `-`, redirect all other output to standard error."""
        path = super().convert(value, param, ctx)
        if ctx is not None and str(value) == "-":
            ctx.with_resource(redirect_stdout(sys.stderr))
        return path


TEXT_IN = _TextIn(path_type=Path)
"""A text file to read; `-` is standard input."""
TEXT_OUT = _TextOut(path_type=Path)
"""A text file to write; `-` is standard output."""
JSON_OUT = _JsonOut(path_type=Path)
"""A JSON file to write; with `-` it goes to standard output, and tables to standard error."""
TEXT_IN_OR_ID = _TextInOr("id")
"""The keyword `id`, or a path as for `TEXT_IN`."""
FOLDER = _NoText("a folder cannot be standard output")
"""A folder to write."""
EXISTING_PATH = _NoText(
    "the command reads the data more than once: give a file or folder, not standard input",
    exists=True,
)
"""An existing file or folder that is read again later, so not standard input."""


def _one_object(ctx: click.Context, _: click.Parameter, is_set: bool) -> bool:
    """Record that `--json` is set: standard output must hold nothing else."""
    if is_set:
        ctx.find_root().meta[_AS_JSON] = True
        _refuse_both(ctx)
    return is_set


def _absolute_mappings(
    ctx: click.Context, parameter: click.Parameter, mappings: tuple[str, ...]
) -> tuple[str, ...]:
    """Check mappings `OLD=NEW`, and make each NEW an absolute path."""
    absolute = []
    for mapping in mappings:
        old, _, new = mapping.partition("=")
        if not (old and new):
            raise click.BadParameter(f"{mapping!r} is not OLD=NEW", ctx, parameter)
        absolute.append(f"{old}={Path(new).expanduser().absolute()}")
    return tuple(absolute)


MAP_PATH = click.option(
    "--map-path",
    "map_paths",
    multiple=True,
    metavar="OLD=NEW",
    callback=_absolute_mappings,
    help="Replace the folder OLD at the beginning of paths by the folder NEW; may be repeated. "
    "The longest matching OLD applies.",
)
AS_JSON = click.option(
    "--json", "as_json", is_flag=True, callback=_one_object, help="Print JSON instead of text."
)
"""The flag of commands that print a table or figures; with it they print nothing else."""


def print_json(content: Any) -> None:
    """Print a JSON document to standard output."""
    click.echo(json.dumps(content, indent=1, ensure_ascii=False))


def named(text: str) -> str:
    """Return a message with "standard input" in place of the temporary file's path."""
    ctx = click.get_current_context(silent=True)
    path = ctx.find_root().meta.get(_READ) if ctx else None
    return text.replace(str(path), "standard input") if path else text


def is_printed(path: Path | None) -> bool:
    """Return whether the user gave `-` for this output path (a `TEXT_OUT`) of this command."""
    return path in click.get_current_context().find_root().meta.get(_PRINTED, ())


def _refuse_both(ctx: click.Context) -> None:
    """Refuse `--json` together with an output printed by `-`, in either order."""
    meta = ctx.find_root().meta
    if meta.get(_AS_JSON) and meta.get(_PRINTED):
        name = next(iter(meta[_PRINTED].values()))
        raise click.UsageError(
            f"--json and {name} cannot both print to standard output: give {name} a file, not -",
            ctx,
        )


def _folder(ctx: click.Context) -> Path:
    """Make a temporary folder that is removed when the command ends."""
    folder = tempfile.TemporaryDirectory(prefix="toolkit-")
    ctx.call_on_close(folder.cleanup)
    return Path(folder.name)


def _print(path: Path) -> None:
    """Print the bytes of a file, if it exists."""
    if path.exists():
        click.echo(path.read_bytes(), nl=False)


def _suffix(content: bytes) -> str:
    """Guess the format of a transcript: return ".json", ".jsonl", ".ctm", or "" for plain text."""
    content = content.removeprefix(codecs.BOM_UTF8)
    lines = [line for line in content.splitlines() if line.strip()]
    # 1. JSON: a line per utterance, or one document.
    if lines and lines[0].lstrip()[:1] in (b"{", b"["):
        first = _parsed(lines[0])
        if isinstance(first, dict) and {"text", "supervisions", "error"} & first.keys():
            return ".jsonl"
        if _parsed(content) is not None:
            return ".json"
        return ".jsonl" if isinstance(first, dict) else ""
    # 2. CTM: name, channel, begin, duration, word; comments begin with ";;".
    entries = (line.strip() for line in lines if not line.startswith(b";;"))
    matches = [
        _CTM.fullmatch(line.decode("utf-8", "replace")) for line in islice(entries, _CTM_LINES)
    ]
    # In a short Kaldi text every line may happen to have two whole numbers in these columns.
    decimal = any("." in time for match in matches if match for time in match.groups())
    return ".ctm" if decimal and all(matches) else ""


def _parsed(text: bytes) -> Any:
    """Parse a text as JSON; return None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
