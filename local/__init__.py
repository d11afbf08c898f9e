"""Corpus-specific code: one module per corpus.

A module has `manifests(corpus, root)`, which returns the lhotse cuts by split of the corpus in the
folder `root`, and may have `fetch(corpus, out, jobs, progress)`, which makes or downloads it.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.errors import ToolkitError


class NoCorpusError(ToolkitError):
    """A corpus that can neither be made nor downloaded, and was not given."""


def fetch(
    corpus: CorpusConfig, out: Path, jobs: int, progress: Callable[[int, int], None]
) -> dict[str, float]:
    """Make or download the corpus `corpus.name` into `out`; return sizes for the stage's line."""
    module = import_module(f"local.{corpus.name}")
    if not hasattr(module, "fetch"):
        raise NoCorpusError(
            f"the corpus {corpus.name} cannot be downloaded: say where yours lies with"
            " --set corpus.root=FOLDER"
        )
    return module.fetch(corpus, out, jobs, progress)


def manifests(corpus: CorpusConfig, root: Path) -> dict[str, list[MonoCut]]:
    """The cuts by split of the corpus `corpus.name` in the folder `root`."""
    return import_module(f"local.{corpus.name}").manifests(corpus, root)
