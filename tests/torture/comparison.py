"""Compares a stage's outputs and other files with those of the undisturbed run."""

import json
import os
from pathlib import Path

from toolkit.storage.digests import digest_bytes

COMPARED = (".safetensors", ".arpa", ".tar", ".npy", ".flac", ".wav", ".txt", ".ctm")
NAMED = ("text", "tuned.json", "tree.json", "topology.json", "normaliser.json")
JOURNAL = ("stages", ".partial", "log.txt", "report.html")
"""What a run writes besides the outputs of its stages; the page is written whenever it ends."""


class FailedTrialError(Exception):
    """A trial did not end as it must."""


def compare(reference: Path, exp: Path, stage: int) -> None:
    """Compare the outputs of a stage with those of the undisturbed run, and look for leftovers.

    Raises:
      FailedTrialError: outputs differ, a file is not what the marker says, or something is left.
    """
    file_digests = [digests(marker(root, stage)) for root in (reference, exp)]
    compared = [{n: d for n, d in each.items() if _compared(n)} for each in file_digests]
    if different := sorted(
        n for n in compared[0] | compared[1] if compared[0].get(n) != compared[1].get(n)
    ):
        raise FailedTrialError(f"{len(different)} files differ: {', '.join(different[:5])}")
    for name, digest in file_digests[1].items():
        if not (exp / name).is_file():
            raise FailedTrialError(f"{name} is in the marker and not on disk")
        if digest_bytes((exp / name).read_bytes()) != digest:
            raise FailedTrialError(f"{name} is not what the marker says")
    leftovers = [str(path) for path in (exp / ".partial").rglob("*") if path.is_file()]
    leftovers += map(str, (exp / "stages").glob("*.publishing.json"))
    if leftovers:
        raise FailedTrialError(f"left in .partial: {', '.join(leftovers[:5])}")


def foreign_files(exp: Path, stage: int) -> dict[str, tuple[int, ...]]:
    """Return {file: (size, mtime, inode)} of all files that a stage must not touch."""
    names = marker(exp, stage)["outputs"]
    excluded = (*JOURNAL, *names)
    stats = {}
    for parent, _, files in os.walk(exp):
        for file in files:
            path = Path(parent, file)
            name = path.relative_to(exp).as_posix()
            if not any(name == n or name.startswith(f"{n}/") for n in excluded):
                status = path.stat()
                stats[name] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return stats


def marker(exp: Path, stage: int) -> dict:
    """Return the JSON value of a stage's marker."""
    return json.loads((exp / "stages" / f"{stage:02d}.json").read_text())


def digests(marker_json: dict) -> dict[str, str]:
    """Return {file: digest} of the outputs in a marker."""
    digest_by_file = {}
    for name, content in marker_json["outputs"].items():
        files = content.get("files", {})
        if files or not content.get("count", 1):
            digest_by_file |= {f"{name}/{file}": digest for file, digest in files.items()}
        else:
            digest_by_file[name] = content["digest"]
    return digest_by_file


def _compared(name: str) -> bool:
    return name.endswith(COMPARED) or Path(name).name in NAMED
