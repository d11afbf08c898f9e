"""The page of the papers' items: a row for each item, names of recipes, anchors of its links.

Its other links, names and commands are checked with those of all pages in docs/.
"""

import re

from tests.docs.test_docs import ROOT, exists

PAGE = ROOT / "docs/papers.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [line[2:-2].split(" | ") for line in TEXT.splitlines() if re.match(r"\| [ABC]\d", line)]
NUMBERS = {"A": 41, "B": 6, "C": 35}
"""Number of items of each paper."""


def test_every_item_has_one_row():
    expected = [f"{paper}{n}" for paper, last in NUMBERS.items() for n in range(1, last + 1)]
    assert [row[0] for row in ROWS] == expected


def test_every_row_has_a_place_and_a_command_or_a_dash():
    for item, description, where, command, measured in ROWS:
        assert description, item
        assert "`" in where, item
        assert command == "-" or re.fullmatch(r"`[^`]+`(, `[^`]+`)*", command), item
        assert measured, item


def test_names_of_recipes_and_corpora_exist():
    names = re.findall(r"`((?:recipes|local)(?:\.\w+)+)`", TEXT)
    assert names
    assert [name for name in names if not exists(name)] == []


def test_anchors_of_links_exist():
    links = re.findall(r"\]\(([^)#]*)#([^)]+)\)", TEXT)
    assert links
    for path, anchor in links:
        assert anchor in anchors(PAGE.parent / path), (path, anchor)


def anchors(page):
    """Return the anchors of a page's headings, as code hosts and mkdocs derive them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
