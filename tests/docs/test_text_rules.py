"""The table of text rules in the guide, row by row."""

import re

import pytest

from tests.docs.test_docs import ROOT
from toolkit.lang.text_policy import AS_GIVEN, RULES, TextPolicy

LEXICON = frozenset({"M'", "APPELLE", "DOGS'", "COL·LEGI"})
RULES = (*RULES, AS_GIVEN)


def rows():
    guide = (ROOT / "docs/new-corpus.md").read_text(encoding="utf-8")
    table = guide[guide.index("| what is done |") :].partition("\n\n")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[1])
def test_a_row(row):
    _, text, result, by, exceptions = row
    text, result = text.strip("`"), result.strip("`")
    named = re.findall("`([^`]+)`", by)
    assert {*named} <= {*RULES}
    for id in named:
        assert " ".join(policy(id).words(text)) == result, id
    without = [id for id in RULES if id not in named]
    for id in without:
        assert " ".join(policy(id).words(text)) != result, id
    switches = re.findall("`([^`]+)`", exceptions.partition(";")[0])
    assert {id for id in switches if "=" not in id} <= {*without}
    for switch in (switch for switch in switches if "=" in switch):
        for id in named:
            changed = policy(id, **SWITCHES[switch])
            assert " ".join(changed.words(text)) != result, (switch, id)


SWITCHES = {"lang.tags=keep": {"tags": "keep"}, "lang.split_clitics=false": {"splits": False}}


def policy(id, tags=None, splits=True):
    return TextPolicy(id, tags, LEXICON, splits)
