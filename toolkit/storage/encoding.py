"""Names that are not UTF-8: shown as far as possible, refused where they cannot be written.

Python reads such names with a substitute for each byte; most of what is done with a file works, but
neither terminals nor files of text take the substitutes.
"""

import re

from toolkit.errors import ToolkitError

_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[^\n\t\"'`]*")
LONGEST = 200  # characters


class EncodingError(ToolkitError):
    """A name, or another text, that cannot be written as UTF-8."""


def printable(text: str) -> str:
    """Return text with `\\xff` for each byte that is not UTF-8."""
    return _SURROGATE.sub(lambda match: _shown(ord(match[0])), text)


def check_utf8(text: str) -> None:
    """Check a path, or an argument, that will be written to files of text.

    Raises:
      EncodingError: it is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise encoding_error(error) or error from error


def encoding_error(error: BaseException | None) -> EncodingError | None:
    """Return an error with advice if `error` comes from text that is not UTF-8, else None."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
            text, place = error.object, error.start
            begin = max(text.rfind(end, 0, place) for end in "\n\t\"'`") + 1
            name = printable(text[max(begin, place - LONGEST) : place])
            rest = _NAME.match(text, place)
            name += printable(rest[0][:LONGEST]) if rest else ""
            return EncodingError(
                f"`{name}` is not UTF-8 and cannot be written to a file of text; rename the file"
                " or folder (or mend the text), and give the same command again"
            )
        error = error.__cause__ or error.__context__
    return None


def _shown(code: int) -> str:
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"
