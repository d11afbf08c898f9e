"""Writing of a CTC network's bundle: all that recognition needs is copied to one folder."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.config.settings import to_plain
from toolkit.decode.bundle.ctc.settings import (
    LM,
    MODEL_FILES,
    SETTINGS,
    UNITS,
    WORDS,
    CtcSettings,
)
from toolkit.decode.bundle.settings import MODEL, NEURAL_LM, NEURAL_LM_FILES, NORMALISER
from toolkit.decode.ctc.words import WordsConfig
from toolkit.decode.rescoring.rescorer import WEIGHTS
from toolkit.engines import engines
from toolkit.features.frontend import FrontendConfig
from toolkit.lang.ngram.arpa import read_arpa
from toolkit.lang.ngram.binary import write_binary
from toolkit.lang.units.units import Units
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class CtcFiles:
    """A trained network and what it is searched with."""

    model: Path
    """The network's folder."""
    normaliser: Path
    """The normaliser of its features."""
    units: Units
    """Its output units."""
    words: Sequence[str]
    """The dictionary."""
    arpa: Path
    """The language model; copied if the search uses it."""
    neural: tuple[Path, Path] | None = None
    """The folder of a neural language model, and the `weights.json` with which it chooses from the
    search's n-best list; None: the search's best text is taken."""


def write_ctc_bundle(
    files: CtcFiles,
    search: WordsConfig,
    frontend: FrontendConfig,
    out: Path,
    fast: WordsConfig | None = None,
) -> None:
    """Write the bundle of a CTC network, which can then be moved anywhere.

    Args:
      files: the network, units, dictionary and language model.
      search: the tuned search.
      frontend: the front end of the network's features.
      out: the bundle to write.
      fast: the search that is tuned without rescoring; None: `search`.
    """
    (out / MODEL).mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        shutil.copyfile(files.model / name, out / MODEL / name)
    shutil.copyfile(files.normaliser, out / NORMALISER)
    files.units.save(out / UNITS)
    write_atomically(out / WORDS, "".join(f"{word}\n" for word in files.words))
    if search.mode != "words":
        write_binary(read_arpa(files.arpa), out / LM)
    if files.neural is not None:
        model, weights = files.neural
        (out / NEURAL_LM).mkdir(exist_ok=True)
        for name in NEURAL_LM_FILES:
            shutil.copyfile(model / name, out / NEURAL_LM / name)
        shutil.copyfile(weights, out / NEURAL_LM / WEIGHTS)
    settings = CtcSettings(frontend, search, files.neural is not None, fast, engines())
    write_atomically(out / SETTINGS, json.dumps(to_plain(settings), indent=1) + "\n")
