"""A griffe extension: docstrings as they are written in this project, turned into Markdown."""

import inspect
import re
from typing import Any

import griffe

UNWRAPPED = re.compile("^[ \t]*\b[ \t]*\n((?:[ \t]*\\S.*\n?)+)", re.MULTILINE)
"""A paragraph that click does not wrap: it begins with a backspace on a line of its own."""


SHARED = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)", re.MULTILINE)
"""Parameters that share an entry: `left, right: how many frames`."""


def fenced(paragraph: re.Match[str]) -> str:
    """Turn such a paragraph into a block of code, below its title if it has one."""
    lines = inspect.cleandoc(paragraph[1]).splitlines()
    title = f"**{lines.pop(0).rstrip(':')}**\n\n" if lines[0].endswith(":") else ""
    code = inspect.cleandoc("\n".join(["", *lines]))
    return f"{title}```sh\n{code}\n```\n"


def separate(entry: re.Match[str]) -> str:
    """Give each of these parameters an entry, as griffe asks for."""
    return "\n".join(f"{entry[1]}{name}: {entry[3]}" for name in entry[2].split(", "))


def markdown(docstring: str) -> str:
    """Give the Markdown of a docstring."""
    text = UNWRAPPED.sub(fenced, docstring).replace("\b", "")
    before, args, after = text.partition("Args:\n")
    return before + args + SHARED.sub(separate, after)


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **_kwargs: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
