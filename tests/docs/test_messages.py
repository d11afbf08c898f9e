"""docs/errors.md against the code: each message that it quotes is one that the code can print."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^\*\*(\d+)\. `([^`]+(?:`[^`*]+`[^`*]*)*)`\*\*", PAGE, re.MULTILINE)


def template(node):
    """Return a string of the code with … for what is put into it; None for another node."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
    return None


@cache
def strings():
    """Every string and f-string of the code, adjacent ones joined."""
    texts = set()
    for folder in ("toolkit", "recipes", "local"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            texts |= {text for node in ast.walk(tree) if (text := template(node))}
    return "\n".join(" ".join(text.split()) for text in sorted(texts)).replace("`", "")


def test_there_are_25_in_order():
    assert [int(number) for number, _ in QUOTED] == [*range(1, 26)]


@pytest.mark.parametrize("message", [message for _, message in QUOTED])
def test_each_message_is_in_the_code(message):
    assert " ".join(message.split()).replace("`", "") in strings()
