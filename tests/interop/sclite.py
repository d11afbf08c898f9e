"""Find NIST's tools and parse their output."""

import re
import shutil
from pathlib import Path

from benchmarks.score import sclite as sclite_command

__all__ = ["counts_of", "nist_script", "sclite_command"]
FOLDERS = ("/usr/lib/sctk/bin", "/usr/libexec/sctk/bin")
"""Where Debian's package sctk keeps its scripts."""


def nist_script(name):
    """The path of a script of SCTK; None if it is not installed."""
    places = [shutil.which(name), *(f"{folder}/{name}" for folder in FOLDERS)]
    return next((place for place in places if place and Path(place).is_file()), None)


def counts_of(pra):
    """(correct, substitutions, deletions, insertions) by id from a file of sclite's alignments."""
    text = pra.read_text(encoding="latin-1")
    ids = re.findall(r"^id: \((.*)\)$", text, re.MULTILINE)
    rows = re.findall(r"^Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)$", text, re.MULTILINE)
    return {id: tuple(map(int, row)) for id, row in zip(ids, rows, strict=True)}
