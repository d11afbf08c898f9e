"""Chromium without a window, for tests of pages."""

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
COMMAND = (CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def rendered_html(page: Path, *options: str) -> str:
    """Return the page's HTML after its scripts ran; the browser's profile is written beside it."""
    profile = f"--user-data-dir={page.with_name('profile')}"
    command = [*COMMAND, "--dump-dom", *options, profile, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
