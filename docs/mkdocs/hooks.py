"""Hooks of mkdocs.yml: pages from elsewhere in the project, the API's pages, and links between all.

Links in Markdown files are those that a code host follows. On the site they lead to the pages that
the same files have there; names of the code and items of the papers become links too.
"""

import ast
import html
import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "toolkit"

CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))|(?<=(?:src|ref)=\")([^\"]+)(?=\")")
NAME = re.compile(r"(?<![`\[])`(toolkit(?:\.\w+)+|toolkit/[\w/]+\.py)`(?![`\]])")
ITEM = re.compile(r"\b([ABC]\d{1,2})\b")
ITEM_ROW = re.compile(r"^\| ([ABC]\d{1,2}) \| (.+?) \| .+ \|$", re.MULTILINE)
SOURCE = '<details class="mkdocstrings-source"'
UNLINKED = {"a", "autoref", "code", "pre", "h1", "h2", "h3", "h4", "script", "style"}


def modules(root: Path) -> dict[str, Path]:
    """The modules and packages below `toolkit/` by their dotted names, in the order of the site."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return dict(sorted(found.items()))


def api_page(name: str, path: Path) -> str:
    """Where on the site a module's page lies: `api/features/store.md`."""
    page = "/".join(["api", *name.split(".")[1:]])
    return f"{page}/index.md" if path.stem == "__init__" else f"{page}.md"


def first_line(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def members(name: str, known: dict[str, Path]) -> list[str]:
    """The modules and packages directly inside a package."""
    return [other for other in known if other.rpartition(".")[0] == name]


def api_text(name: str, known: dict[str, Path]) -> str:
    """The Markdown of a module's page; a package's also lists what it holds."""
    rows = [
        f"| [`{other.rpartition('.')[2]}`][{other}] | {first_line(known[other])} |"
        for other in members(name, known)
    ]
    table = "\n".join(["", "| module | |", "|---|---|", *rows, ""]) if rows else ""
    return f"---\ntitle: {name}\nsearch: {{boost: 0.5}}\n---\n\n::: {name}\n{table}"


def api_nav(name: str, known: dict[str, Path]) -> list:
    """The part of the navigation that shows a package and what is in it."""
    nav: list = [api_page(name, known[name])]
    for other in members(name, known):
        inside = members(other, known)
        page = api_nav(other, known) if inside else api_page(other, known[other])
        nav.append({other.rpartition(".")[2]: page})
    return nav


def site_path(path: str, pages: dict[str, str]) -> str | None:
    """Where a file of the project, such as `docs/scoring.md`, lies on the site, if it does."""
    for page, source in pages.items():
        if path == source:
            return page
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    return None


def source_path(page: str, pages: dict[str, str]) -> str:
    """The file of the project that a page of the site is made from."""
    return pages.get(page, f"docs/{page}")


def relinked(target: str, page: str, pages: dict[str, str]) -> str:
    """Turn the target of a link in the file behind `page` into one that holds on the site.

    Raises:
      ValueError: the file has no place on the site.
    """
    path, hash_, anchor = target.partition("#")
    if not path or ":" in path:
        return target
    folder = posixpath.dirname(source_path(page, pages))
    found = site_path(posixpath.normpath(posixpath.join(folder, path)), pages)
    if found is None:
        raise ValueError(f"{source_path(page, pages)}: {target} is not on the site")
    return posixpath.relpath(found, posixpath.dirname(page) or ".") + hash_ + anchor


def outside_code(text: str, change: re.Pattern[str], to: object) -> str:
    """Replace matches of a pattern in Markdown, except in code."""
    done, last = [], 0
    for code in CODE.finditer(text):
        done += [change.sub(to, text[last : code.start()]), code[0]]
        last = code.end()
    return "".join([*done, change.sub(to, text[last:])])


def outside_fences(text: str, change: re.Pattern[str], to: object) -> str:
    """Replace matches of a pattern in Markdown, except in fenced code."""
    parts = re.split(r"(^ *```.*?^ *```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if n % 2 else change.sub(to, part) for n, part in enumerate(parts))


def linked_name(match: re.Match[str]) -> str:
    """Turn a name of the code into a reference to its place in the API."""
    name = match[1].removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return f"[`{match[1]}`][{name}]"


def items(root: Path) -> dict[str, str]:
    """What each item of the papers is, from their page."""
    return dict(ITEM_ROW.findall((root / "docs/papers.md").read_text(encoding="utf-8")))


def linked_items(text: str, known: dict[str, str], papers: str) -> str:
    """Turn items of the papers in a page's HTML into links to their rows, with titles."""

    def link(match: re.Match[str]) -> str:
        if match[1] not in known:
            return match[0]
        title = html.escape(known[match[1]].replace("`", ""))
        return f'<a class="item" href="{papers}#{match[1]}" title="{title}">{match[1]}</a>'

    done, inside = [], 0
    for part in re.split(r"(<[^>]+>)", text):
        if tag := re.match(r"<(/?)([\w-]+)", part):
            if tag[2] in UNLINKED:
                inside += -1 if tag[1] else 1
        elif not inside:
            part = ITEM.sub(link, part)
        done.append(part)
    return "".join(done)


def on_config(config: "MkDocsConfig") -> None:
    """Put the modules into the navigation, in the place that is kept for them."""
    nav = api_nav(PACKAGE, modules(ROOT))
    config.nav = [{"API": nav} if entry == {"API": "api/"} else entry for entry in config.nav]


def on_files(files: "Files", config: "MkDocsConfig") -> None:
    """Add the pages that have no file in `docs/`."""
    from mkdocs.structure.files import File

    for page, source in config.extra["pages"].items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    known = modules(ROOT)
    for name, path in known.items():
        text = api_text(name, known)
        files.append(File.generated(config, api_page(name, path), content=text))


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", **_others: object) -> str:
    """Mend the links of a page that was written for a code host, and link names of the code."""
    uri, pages = page.file.src_uri, config.extra["pages"]
    if uri.startswith("api/"):
        return markdown
    text = outside_code(markdown, LINK, lambda link: relinked(link[0], uri, pages))
    return outside_fences(text, NAME, linked_name)


def on_page_content(html: str, page: "Page", **_others: object) -> str:
    """Link items of the papers to their rows; keep sources out of the search."""
    html = html.replace(SOURCE, f"{SOURCE} data-search-exclude")
    if page.file.src_uri == "papers.md":
        return re.sub(r"<td>([ABC]\d{1,2})</td>", r'<td id="\1">\1</td>', html)
    papers = os.path.relpath("papers.html", os.path.dirname(page.file.dest_uri) or ".")
    return linked_items(html, items(ROOT), papers.replace(os.sep, "/"))
