"""The frame and the tables of the pipeline's HTML pages."""

import html
from collections.abc import Iterable, Sequence

STYLE = (
    "body{font-family:sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{padding:.3em .8em;text-align:right;border-bottom:1px solid #ccc}"
    "td:first-child,th:first-child{text-align:left}pre{background:#f4f4f4;padding:1em}"
)


def html_page(title: str, body: str) -> str:
    """Return a whole page; `body` is HTML."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<title>{html.escape(title)}</title>"
        f"<style>{STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of plain texts."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>\n"
