"""Whether a stage has made, and left as they were, the files that it should."""

import json
import os
from pathlib import Path

from toolkit.storage.digests import digest_bytes

COMPARED = (".safetensors", ".arpa", ".tar", ".npy", ".flac", ".wav", ".txt", ".ctm")
NAMED = ("text", "tuned.json", "tree.json", "topology.json", "normaliser.json")
JOURNAL = ("stages", ".partial", "log.txt", "report.html")
"""What a run writes besides the outputs of its stages; the page is written whenever it ends."""


class FailedTrialError(Exception):
    """Something that must not happen."""


def compare(reference: Path, exp: Path, stage: int) -> None:
    """Compare the outputs of a stage with those of the undisturbed run, and look for leftovers.

    Raises:
      FailedTrialError: outputs differ, a file is not what the marker says, or something is left.
    """
    found = [digests(marker(root, stage)) for root in (reference, exp)]
    kept = [{n: d for n, d in each.items() if _compared(n)} for each in found]
    if different := sorted(n for n in kept[0] | kept[1] if kept[0].get(n) != kept[1].get(n)):
        raise FailedTrialError(f"{len(different)} files differ: {', '.join(different[:5])}")
    for name, digest in found[1].items():
        if not (exp / name).is_file():
            raise FailedTrialError(f"{name} is in the marker and not on disk")
        if digest_bytes((exp / name).read_bytes()) != digest:
            raise FailedTrialError(f"{name} is not what the marker says")
    left = [str(path) for path in (exp / ".partial").rglob("*") if path.is_file()]
    left += map(str, (exp / "stages").glob("*.publishing.json"))
    if left:
        raise FailedTrialError(f"left in .partial: {', '.join(left[:5])}")


def others(exp: Path, stage: int) -> dict[str, tuple[int, ...]]:
    """Return what tells a changed file from an unchanged one, of what a stage must not touch."""
    names = marker(exp, stage)["outputs"]
    own = (*JOURNAL, *names)
    found = {}
    for parent, _, files in os.walk(exp):
        for file in files:
            path = Path(parent, file)
            name = path.relative_to(exp).as_posix()
            if not any(name == n or name.startswith(f"{n}/") for n in own):
                status = path.stat()
                found[name] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def marker(exp: Path, stage: int) -> dict:
    """Return the marker of a stage, as plain data."""
    return json.loads((exp / "stages" / f"{stage:02d}.json").read_text())


def digests(plain: dict) -> dict[str, str]:
    """Return {file: digest} of the outputs in a marker."""
    found = {}
    for name, content in plain["outputs"].items():
        files = content.get("files", {})
        if files or not content.get("count", 1):
            found |= {f"{name}/{file}": digest for file, digest in files.items()}
        else:
            found[name] = content["digest"]
    return found


def _compared(name: str) -> bool:
    return name.endswith(COMPARED) or Path(name).name in NAMED
