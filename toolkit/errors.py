"""The base class of errors that the user can fix."""

import re

LONGEST_WORD = 500
"""Largest number of characters of a word in a message, such as an id or a path; longer ones are
cut."""
LONGEST_MESSAGE = 2500
"""Largest number of characters of a message; longer ones are cut."""
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


class ToolkitError(Exception):
    """An error in the user's data, configuration or machine.

    Each package derives one class per kind of error. The message names the utterance or the file
    and the next command to try; command lines print it without a traceback and exit with 1. Files
    may hold anything, so long parts of a message are cut here.
    """

    def __str__(self) -> str:
        text = _LONG_WORD.sub(lambda match: _cut(match[0], LONGEST_WORD), super().__str__())
        return _cut(text, LONGEST_MESSAGE)


def _cut(text: str, longest: int) -> str:
    """Remove the middle of a text that is longer than `longest` characters."""
    mark = " ... "
    if len(text) <= longest:
        return text
    # Two thirds from the beginning and a third from the end, where the advice is.
    end = longest // 3
    return f"{text[: longest - len(mark) - end]}{mark}{text[-end:]}"
