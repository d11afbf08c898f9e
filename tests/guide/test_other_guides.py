"""docs/own-language.md and docs/cluster.md, typed word for word, on made-up speech."""

import csv
import re

import pytest

from tests.guide.conftest import PROJECT, blocks, make_project, typed

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def project(tmp_path_factory, speech):
    """A project with German and Greek recordings, a German lexicon, text and word list."""
    root = make_project(tmp_path_factory.mktemp("language") / "project")
    recordings = speech(root / "speech")
    recordings.german()
    recordings.greek()
    recordings.german_lexicon()
    return root


@pytest.fixture(scope="module")
def outputs(project):
    """What each section of the page on languages prints."""
    printed: dict[str, str] = {}
    for section, block in blocks(PROJECT / "docs/own-language.md"):
        printed[section] = printed.get(section, "") + typed(block, project)
    return printed


def test_letters_of_any_alphabet_are_found_and_spelled(outputs, project):
    printed = outputs["# Another language"]
    assert printed.count("not treated as English") == 2
    lexicon = (project / "recipes/greek/exp/base/lang/lexicon.txt").read_text(encoding="utf-8")
    assert "\nΧΘΕΣ Χ_B Θ_I Ε_I Σ_E\n" in lexicon


def test_the_rules_do_what_the_page_says(outputs):
    (printed,) = re.findall(
        "This prints `(.+)`", (PROJECT / "docs/own-language.md").read_text(encoding="utf-8")
    )
    assert outputs["Three settings that belong together"].strip() == printed


def test_words_that_the_lexicon_lacks_are_guessed(outputs, project):
    rows = outputs["A lexicon, and words that it lacks"].splitlines()
    guesses = dict(row.split("\t")[:2] for row in rows if row.count("\t") == 2)
    assert {"KÜCHE", "BRÜCKENTÜR", "STRASSENBAHN"} <= guesses.keys()
    assert guesses["KÜCHE"].startswith("k ")


def test_ctc_has_pieces_of_the_language(outputs, project):
    assert "units 61, " in outputs["CTC in another language"]  # 60 and the blank
    words = (project / "recipes/greek/exp/ctc/words.txt").read_text(encoding="utf-8").split()
    with open(project / "speech/greek.csv", encoding="utf-8") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert any("τραγούδησε" in text for text in texts)
    assert "ΤΡΑΓΟΎΔΗΣΕ" in words


def test_the_plan_of_the_cluster_page(project):
    ((_, block),) = blocks(PROJECT / "docs/cluster.md")
    assert re.search(r"\d such nodes? would take at most a day\.", typed(block, project))
