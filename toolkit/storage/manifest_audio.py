"""Which files the cuts of a manifest name, found without lhotse."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.storage.reading import DAMAGE_ERRORS


def audio_names(manifest: Path) -> list[str]:
    """Return the audio files that a manifest of cuts names, sorted, each once.

    Args:
      manifest: a cut in JSON per line, as `toolkit.corpus.manifest.write_cuts` writes them.

    Returns:
      Names as they stand there, see `toolkit.storage.places`. What is no local file is left out,
      and so are lines that are no cuts, of which the reader of the manifest tells.
    """
    names: set[str] = set()
    with open(manifest, "rb") as file:
        for line in file:
            try:
                names.update(_names(json.loads(line)))
            except DAMAGE_ERRORS:
                continue
    return sorted(name for name in names if name.startswith(("/", "{")))


def _names(cut: Any) -> Iterator[str]:
    for source in cut["recording"]["sources"]:
        if source["type"] == "file":
            yield str(source["source"])
    # The speech and the echo alone, of simulated array recordings.
    yield from map(str, ((cut.get("custom") or {}).get("components") or {}).values())
