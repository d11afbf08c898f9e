"""NIST's global mapping rules (GLM): the filters rfilter1 and csrfilt.sh, which precede scoring.

A file of rules has one line per rule, such as

    [CAN'T] => [{ CAN'T / CAN NOT }] / [ ] __ [ ]

which replaces the text before `=>` by the text after it between the contexts around `__`. The first
token of the file is its comment mark. Lines that begin with `*` are settings; only CASE_SENSITIVE
and COPY_NO_HIT have an effect here. Rules after a comment like
`;; INPUT_DEPENDENT_APPLICATION = "stm|hyp"` hold only for the formats and sides that it names.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from toolkit.errors import ToolkitError
from toolkit.score.alignment import Side
from toolkit.storage.lines import read_content, read_lines, single_spaced
from toolkit.storage.reading import quoted

Kind = Literal["stm", "ctm", "trn"]

_APPLIES = re.compile(r';;\s+INPUT_DEPENDENT_APPLICATION\s*=\s*"([^"]*)"')
_SETTING = re.compile(r"[\"']([^\"']*)[\"']")
_UPPER = {n: n - 32 for n in range(ord("a"), ord("z") + 1)}
_HYPHEN = re.compile(r"([^( ])-(?=[^) ])")
_INSIDE = re.compile(r"(\(\s+)([^()]+)")
_BETWEEN = re.compile(r"\s+(?=\S)")


class GlmError(ToolkitError):
    """A file of mapping rules that cannot be read, or a text that it cannot be applied to."""


@dataclass(frozen=True)
class Rule:
    """Replaces one text by another wherever it stands between two contexts."""

    source: str
    target: str
    left_context: str = ""
    """Text that must precede the source; empty: any text."""
    right_context: str = ""
    """Text that must follow the source; empty: any text."""


@dataclass(frozen=True)
class Glm:
    """The rules for one format and side."""

    rules: tuple[Rule, ...]
    case_sensitive: bool = True
    copies: bool = True
    """Whether text that no rule matches is kept."""

    @classmethod
    def read(cls, path: Path, kind: Kind, side: Side) -> "Glm":
        """Read the rules that hold for a format and a side.

        Raises:
          GlmError: the file is malformed or has no rule for them; the message names the place.
        """
        rule_lines = _applied(list(read_lines(path, GlmError)), kind, side)
        if not rule_lines:
            raise GlmError(f"{path}: there is no rule for {side} files in {kind} format")
        comment = re.findall(r"[!-~]*", rule_lines[0][1])[0]
        rule = "=>" in rule_lines[0][1] and any(map(str.isalnum, comment))
        if rule or comment[:1].isalnum():
            raise GlmError(
                f"{path}:{rule_lines[0][0]}: the first word of a rules file must be its comment "
                f"mark, but {quoted(comment)} is not one: put a line with `;;` above this line"
            )
        rules, settings = [], {"CASE_SENSITIVE": "T", "COPY_NO_HIT": "T"}
        for number, line in rule_lines[1:]:
            line = line.rstrip()
            if not line or (comment and line.startswith(comment)):
                continue
            if line.startswith("*"):
                value = _SETTING.search(line)
                if value is None:
                    raise GlmError(f"{path}:{number}: the setting has no value in quotes")
                settings |= {name: value[1] for name in settings if name in line.upper()}
                continue
            line = line.partition(comment)[0].rstrip() if comment else line
            if "=>" not in line:
                raise GlmError(f"{path}:{number}: the rule {quoted(line)} contains no `=>`")
            rules.append(_rule(line))
        return cls(
            tuple(rules),
            settings["CASE_SENSITIVE"][:1] in "TtYy1",
            settings["COPY_NO_HIT"][:1] in "TtYy1",
        )

    def apply(self, text: str) -> str:
        """Apply the rules once, from left to right, as rfilter1 does.

        At each place the first rule of the file that matches is applied; contexts are compared with
        the text before any replacement.
        """
        # Only the case of ASCII letters is folded, as in rfilter1.
        compared = text if self.case_sensitive else text.translate(_UPPER)
        at, parts = 0, []
        while at < len(text):
            for rule in self._by_first.get(compared[at], ()):
                end = at + len(rule.source)
                if (
                    compared.startswith(rule.source, at)
                    and compared.endswith(rule.left_context, 0, at)
                    and compared.startswith(rule.right_context, end)
                ):
                    parts.append(rule.target)
                    at = end
                    break
            else:
                parts.append(text[at] if self.copies else "")
                at += 1
        return "".join(parts)

    @cached_property
    def _by_first(self) -> dict[str, list[Rule]]:
        """Rules, in the case used for comparison, by the first character of their source."""
        rules: dict[str, list[Rule]] = {}
        for rule in self.rules:
            source, left_context, right_context = map(
                self._compared, (rule.source, rule.left_context, rule.right_context)
            )
            rules.setdefault(source[:1], []).append(
                Rule(source, rule.target, left_context, right_context)
            )
        return rules

    def _compared(self, text: str) -> str:
        """Return a text as it is compared: in upper case, unless the rules are case-sensitive."""
        return text if self.case_sensitive else text.translate(_UPPER)

    def __call__(self, text: str) -> str:
        """Filter a transcript as csrfilt.sh does with `-dh`.

        The letters a to z become upper case; the rules are applied; hyphens inside words become
        spaces; if a word in parentheses becomes several words, each of them is in parentheses.

        Raises:
          GlmError: parentheses do not match, or one pair stands within another.
        """
        read = text
        text = f" {single_spaced(text)} ".translate(_UPPER)
        text = text.replace("(", "( ").replace(")", " )")
        if set(re.sub(r"\s\([^()]+\)", "", f" {text} ")) & set("()"):
            raise GlmError(f"{quoted(read)}: its parentheses do not match or are nested")
        text = single_spaced(_HYPHEN.sub(r"\1 ", self.apply(f" {text} ")))
        text = _INSIDE.sub(lambda match: match[1] + _BETWEEN.sub(" ) ( ", match[2]), text)
        return text.replace("( ", "(").replace(" )", ")")

    def filter(self, text: str, place: str) -> str:
        """Filter a transcript as a call does.

        Raises:
          GlmError: as for a call; the message begins with `place`, the place of the text.
        """
        try:
            return self(text)
        except GlmError as error:
            raise GlmError(f"{place}: {error}") from error


def glm_name(path: Path) -> str:
    """Return a file's name and digest, to be printed with the error rate."""
    return (
        f"{Path(path).name} (sha256 {hashlib.sha256(read_content(path, GlmError)).hexdigest()[:8]})"
    )


def _applied(lines: list[tuple[int, str]], kind: Kind, side: Side) -> list[tuple[int, str]]:
    """Return the lines that hold for a format and side."""
    rule_lines, applies = [], True
    for number, line in lines:
        match = _APPLIES.match(line)
        if match:
            named = [part.strip(" ()") for part in match[1].lower().split("|")]
            applies = any(part in kind or part in side for part in named if part)
        if applies:
            rule_lines.append((number, line))
    return rule_lines


def _rule(line: str) -> Rule:
    """Read a rule; what follows the last slash is its context, unless the slash is in brackets."""
    source, _, replacement = line.partition("=>")
    target, slash, context = replacement.rpartition("/")
    opening, closing = context.find("["), context.find("]")
    if not slash or (opening >= 0 and closing < opening):
        return Rule(_unbracketed(source), _target(replacement))
    left_context, _, right_context = context.partition("_")
    return Rule(
        _unbracketed(source),
        _target(target),
        _unbracketed(left_context),
        _unbracketed(right_context.lstrip("_")),
    )


def _target(text: str) -> str:
    """Return the right side, which begins after the white space that follows the arrow."""
    return _unbracketed(text if text[:1].isspace() else re.sub(r"^\S*", "", text))


def _unbracketed(text: str) -> str:
    """Remove white space, and the brackets or quotes that protect white space inside them."""
    text = text.strip()
    pair = text[:1] + text[-1:]
    return text[1:-1] if len(text) > 1 and pair in ("[]", '""') else text
