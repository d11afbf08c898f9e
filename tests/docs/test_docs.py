"""The documentation against the code: names, links, commands, and the picture of the packages."""

import ast
import re
import shlex
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import click
import pytest

from benchmarks.run import BENCHMARKS
from toolkit.cli import main

ROOT = Path(__file__).resolve().parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in TOP)]
PAGES += [*sorted((ROOT / "recipes").glob("[lf]*/*.md")), *sorted(ROOT.glob("benchmarks/*.md"))]
PACKAGES = sorted(p.parent.name for p in (ROOT / "toolkit").glob("*/__init__.py"))
ids = [str(page.relative_to(ROOT)) for page in PAGES]


def defined(path):
    """What a module defines at its top level."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
    return names


def exists(dotted):
    """Whether `toolkit.a.b.Name` or `toolkit.a.b` is a module, or a name in one."""
    path = ROOT
    for n, part in enumerate(parts := dotted.split(".")):
        path = path / part
        if path.with_suffix(".py").exists():
            names = parts[n + 1 :]
            return not names or (len(names) == 1 and names[0] in defined(path.with_suffix(".py")))
        if not path.is_dir():
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_names_are_those_of_the_code(page):
    text = page.read_text(encoding="utf-8")
    for dotted in re.findall(r"`((?:toolkit|benchmarks)(?:\.\w+)+)`", text):
        assert exists(dotted), dotted
    # Recipes that the reader makes while following the guide.
    guide_recipes = {"interviews", "lectures", *re.findall(r"new-corpus (\w+)", text)}
    for path in re.findall(r"`((?:toolkit|benchmarks|recipes|docs|tests)/[\w/]+\.\w+)`", text):
        assert "NAME" in path or path.split("/")[1] in guide_recipes or (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_and_their_options_exist(page):
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    for line in "\n".join(blocks).splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0].endswith("toolkit"):
            check(words)
    for typed in re.findall(r"`toolkit ([a-z][^`]*)`", text):
        check(["toolkit", *typed.split()])


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_benchmarks_exist(page):
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"python -m benchmarks ([a-z][a-z0-9-]*)", text))
    assert named <= {"all", *BENCHMARKS}


def check(words):
    if "|" in words:  # each command of a pipe has options of its own
        bar = words.index("|")
        check(words[:bar])
        if words[bar + 1].endswith("toolkit"):
            check(words[bar + 1 :])
        return
    command, arguments = main, words[1:]
    context = click.Context(main)
    while (
        isinstance(command, click.Group)
        and arguments
        and arguments[0] in command.list_commands(context)
    ):
        command = command.get_command(context, arguments.pop(0))
    command = getattr(command, "default", command)
    assert command is not main, words
    options = {option for parameter in command.params for option in parameter.opts}
    typed = {word for word in arguments if word.startswith("--") and word != "--help"}
    assert typed <= options, words


def test_every_package_has_a_page_that_the_index_names():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    for name in PACKAGES:
        assert (ROOT / f"docs/packages/{name}.md").exists()
        assert f"(packages/{name}.md)" in index


def test_all_25_pains_have_an_answer():
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    assert sorted(map(int, re.findall(r"^\*\*(\d+)\. ", text, re.MULTILINE))) == [*range(1, 26)]


def test_the_picture_shows_every_package_above_those_listed_before_it():
    space = "{http://www.w3.org/2000/svg}"
    root = ElementTree.parse(ROOT / "docs/architecture.svg").getroot()
    heights = {
        text.text: float(text.get("y"))
        for text in root.iter(f"{space}text")
        if text.get("class") == "t" and text.text in PACKAGES
    }
    listed = re.findall(
        r"^\| \[(\w+)\]\(packages/", (ROOT / "docs/README.md").read_text(), re.MULTILINE
    )
    assert sorted(heights) == PACKAGES
    for below, above in pairwise(listed):
        assert heights[below] >= heights[above], (below, above)


def test_no_change_is_listed_twice():
    entries = re.split(r"^- ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    entries = [" ".join(entry.split()) for entry in entries]
    assert [entry[:60] for entry in set(entries) if entries.count(entry) > 1] == []
