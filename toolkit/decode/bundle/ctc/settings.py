"""The files of a CTC network's bundle and its settings."""

from dataclasses import dataclass, field
from pathlib import Path

from toolkit.config.fields import read_plain
from toolkit.decode.bundle.settings import ADVICE, BundleError
from toolkit.decode.ctc.words import WordsConfig
from toolkit.features.frontend import FrontendConfig

SETTINGS = "ctc.json"
UNITS = "units"
WORDS = "words.txt"
LM = "lm.safetensors"
MODEL_FILES = ("config.json", "model.safetensors")


@dataclass(frozen=True)
class CtcSettings:
    """The content of `ctc.json`."""

    frontend: FrontendConfig
    """The front end of the network's features."""
    search: WordsConfig
    """The dictionary search: weights, width and margin, tuned on development data."""
    rescored: bool = False
    """Whether the neural model in `neural_lm/` chooses from the search's n-best list."""
    fast: WordsConfig | None = None
    """The search that is tuned without rescoring, for `--fast`; None: `search`."""
    made_with: dict[str, str] = field(default_factory=dict)
    """The engines of the process that wrote it (`toolkit.engines`)."""


def is_ctc(folder: Path) -> bool:
    """Whether a folder is the bundle of a CTC network."""
    return (folder / SETTINGS).is_file()


def read_ctc_settings(folder: Path) -> CtcSettings:
    """Read the settings of a CTC network's bundle.

    Raises:
      BundleError: the folder is no such bundle.
    """
    if not is_ctc(folder):
        raise BundleError(f"{folder} is not the bundle of a CTC network: it has no {SETTINGS}")
    return read_plain(folder / SETTINGS, CtcSettings, BundleError, ADVICE)
