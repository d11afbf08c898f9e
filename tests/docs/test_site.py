"""The documentation site against the tree: its pages, their links, the items of the papers."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PAGES = SITE["extra"]["pages"]


def load_hooks():
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs/mkdocs/hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load_hooks()


def pages_of(nav):
    """The pages that a part of the navigation names, in its order."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in entries for page in pages_of(entry)]


NAV = [page for page in pages_of(SITE["nav"]) if page != "api/"]
SOURCES = [hooks.source_path(page, PAGES) for page in NAV]


def test_every_page_of_the_navigation_exists_once():
    assert len(NAV) == len(set(NAV))
    assert [source for source in SOURCES if not (ROOT / source).is_file()] == []


def test_every_document_is_in_the_navigation():
    documents = {p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")}
    recipes = {p.relative_to(ROOT).as_posix() for p in (ROOT / "recipes").glob("*/*.md")}
    committed = {p for p in recipes if p.split("/")[1] in {"librispeech", "farfield_ssl"}}
    assert documents | committed <= set(SOURCES)
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"} <= set(SOURCES)


def test_packages_are_listed_in_their_order():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[\w+\]\((packages/\w+\.md)\)", index, re.MULTILINE)
    assert [page for page in NAV if page.startswith("packages/")] == listed


def test_what_mkdocs_yml_names_is_there_and_needs_no_network():
    for path in [*SITE["extra_css"], *SITE["extra"]["polyfills"]]:
        assert (ROOT / "docs" / path).is_file()
    for path in SITE["hooks"]:
        assert (ROOT / path).is_file()
    assert SITE["theme"]["font"] is False
    assert "://" not in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "offline" in SITE["plugins"]


def test_every_module_has_one_page_in_the_navigation():
    modules = hooks.modules(ROOT)
    pages = [hooks.api_page(name, path) for name, path in modules.items()]
    assert sorted(pages_of(hooks.api_nav("toolkit", modules))) == sorted(pages)
    assert len(pages) == len(set(pages))
    assert hooks.api_page("toolkit.errors", modules["toolkit.errors"]) == "api/errors.md"
    assert hooks.api_page("toolkit.score", modules["toolkit.score"]) == "api/score/index.md"


@pytest.mark.parametrize(
    ("target", "page", "site"),
    [
        ("../README.md", "README.md", "overview.md"),
        ("docs/scoring.md", "overview.md", "scoring.md"),
        ("docs/images/run-page.png", "overview.md", "images/run-page.png"),
        ("../../docs/formats.md#models", "recipes/ctc.md", "../formats.md#models"),
        ("README.md", "recipes/ctc.md", "librispeech.md"),
        ("../formats.md", "packages/stages.md", "../formats.md"),
        ("#other-languages", "new-corpus.md", "#other-languages"),
        ("https://semver.org", "changes.md", "https://semver.org"),
    ],
)
def test_links_of_the_code_host_lead_to_the_same_pages(target, page, site):
    assert hooks.relinked(target, page, PAGES) == site


def test_a_link_to_what_the_site_lacks_is_an_error():
    with pytest.raises(ValueError, match=r"README\.md: Makefile is not on the site"):
        hooks.relinked("Makefile", "overview.md", PAGES)


@pytest.mark.parametrize("page", NAV)
def test_every_link_of_a_page_leads_somewhere_on_the_site(page):
    text = (ROOT / hooks.source_path(page, PAGES)).read_text(encoding="utf-8")
    hooks.outside_code(text, hooks.LINK, lambda link: hooks.relinked(link[0], page, PAGES))


def test_links_in_code_stay():
    text = "[a](docs/a.md) `[b](docs/b.md)`\n\n```\n[c](docs/c.md)\n```\n"
    rewritten = hooks.outside_code(text, hooks.LINK, lambda link: "X")
    assert rewritten == "[a](X) `[b](docs/b.md)`\n\n```\n[c](docs/c.md)\n```\n"


def test_names_of_the_code_become_references():
    text = "`toolkit.score.wer` and `toolkit/score/nist/formats.py`\n```sh\n`toolkit.a.b`\n```\n"
    assert hooks.outside_fences(text, hooks.NAME, hooks.linked_name) == (
        "[`toolkit.score.wer`][toolkit.score.wer] and "
        "[`toolkit/score/nist/formats.py`][toolkit.score.nist.formats]\n```sh\n`toolkit.a.b`\n```\n"
    )


def test_items_of_the_papers_become_links_outside_of_code_and_headings():
    page = "<h2>On C3</h2><p>See C3, C99.</p><code>C3</code>"
    link = '<a class="item" href="../papers.html#C3" title="a &lt;tree&gt;">C3</a>'
    assert hooks.linked_items(page, {"C3": "a <tree>"}, "../papers.html") == (
        f"<h2>On C3</h2><p>See {link}, C99.</p><code>C3</code>"
    )


def test_the_page_of_items_has_every_item_that_documents_and_docstrings_name():
    items = hooks.items(ROOT)
    assert len(items) == 41 + 6 + 35
    paths = [ROOT / source for source in SOURCES]
    for path in [*paths, *(ROOT / "toolkit").rglob("*.py"), *(ROOT / "recipes/steps").glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r"[(,;] ?([ABC][1-9]\d?)(?=[,;)]| to | and )", text))
        assert named <= items.keys(), path


def test_whatever_looks_like_an_item_in_a_docstring_is_one():
    """Codes in ranges and in running text too, in all strings of the code."""
    codes = {*hooks.items(ROOT), "C0", "C50"}  # a cepstral coefficient, and the clarity of rooms
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    assert "| C0, C50 |" in glossary
    for folder in ("toolkit", "recipes", "local"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words = node.value if len(node.value) > 30 else ""
                    named = set(re.findall(r"(?<![\w#.-])([ABC]\d{1,2})(?![\w.])", words))
                    assert named <= codes, (path, named - codes)
