"""Difficulty of a data set, on the co-processor paper's three axes, and noise (A4)."""

import difflib
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

from toolkit.config.plain_yaml import read_yaml
from toolkit.errors import ToolkitError
from toolkit.storage.reading import reading, validated

UTTERANCES = ("isolated", "connected", "continuous", "spontaneous")
SPEAKERS = ("dependent", "adaptive", "independent")
VOCABULARY = ("single word", "small", "medium", "large", "very large", "out of vocabulary")
NOISE = ("none", "low", "moderate", "high")
AXES = {
    "utterances": ("Utterances", UTTERANCES),
    "speakers": ("Speaker model", SPEAKERS),
    "vocabulary": ("Vocabulary", VOCABULARY),
    "noise": ("Noise", NOISE),
}
"""Axes: field -> title, and values from the easiest to the hardest."""


class DatasetError(ToolkitError):
    """A dataset file cannot be read."""


@dataclass(frozen=True)
class Dataset:
    """A data set on the axes. LibriSpeech: continuous, independent, very large, low."""

    name: str
    """Name of the corpus."""
    utterances: str
    """One of `UTTERANCES`: pauses between words, and how planned the speech is."""
    speakers: str
    """One of `SPEAKERS`: whether speakers and environments of the test data are in training."""
    vocabulary: str
    """One of `VOCABULARY`: number of words, up to words that are not in training."""
    noise: str = "none"
    """One of `NOISE`: sounds that are not the speaker's voice."""
    hours: float | None = None
    """Hours of training speech (A5: 960)."""
    kept: str = ""
    """Share of the utterances that are short enough, such as `99 % of training` (A6)."""

    def __post_init__(self) -> None:
        for axis, (_, values) in AXES.items():
            if getattr(self, axis) not in values:
                raise ValueError(f"{axis} is {getattr(self, axis)!r}, not one of {values}")

    def html(self) -> str:
        """Return the axes as HTML, with the data set's value marked on each."""
        rows = "".join(
            _axis(title, values, getattr(self, axis)) for axis, (title, values) in AXES.items()
        )
        hours = f"{self.hours:g} h of training speech" if self.hours is not None else ""
        about = "; ".join(filter(None, [hours, self.kept and f"kept: {self.kept}"]))
        note = f'<p class="note">{escape(about)}</p>' if about else ""
        title = f"<h3>{escape(self.name)}</h3>"
        return f'<div class="box">{title}<div class="axes">{rows}</div>{note}</div>'


def _axis(title: str, values: tuple[str, ...], value: str) -> str:
    steps = "".join(
        f"<li{' class=here' if step == value else ''}>{escape(step)}</li>" for step in values
    )
    return f"<h4>{escape(title)}</h4><ol>{steps}</ol>"


def read_dataset(path: Path) -> Dataset:
    """Read a data set's file: YAML or JSON with the fields of `Dataset`.

    Raises:
      DatasetError: naming the file and the key.
    """
    with reading(path, DatasetError, "expected `key: value` lines"):
        plain = validated(read_yaml(path), {str: Any})
    known = [field.name for field in fields(Dataset)]
    for key in plain:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
            raise DatasetError(f"{path}: unknown key `{key}`; {hint}")
    try:
        return Dataset(**plain)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{path}: {error}") from error
