"""The files of the page, as HTTP delivers them."""

from pathlib import Path

FOLDER = Path(__file__).with_name("page")
TYPES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/recorder.js": ("recorder.js", "text/javascript"),
}
"""Paths, with their files and types; there are no others."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer: the page loads nothing from elsewhere, and no page may embed it."""


def read(path: str) -> tuple[bytes, str] | None:
    """Return content and type of the file at a path, which may have a query; None if there is none.

    Files are read anew each time: they are small, and nothing but `TYPES` is looked up.
    """
    found = TYPES.get(path.partition("?")[0])
    if found is None:
        return None
    name, kind = found
    return (FOLDER / name).read_bytes(), f"{kind}; charset=utf-8"
