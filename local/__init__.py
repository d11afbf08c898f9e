"""Corpus-specific code: one module per corpus.

A module defines `manifests(corpus, root)`, which returns, by split, the lhotse cuts of the corpus
in the folder `root`. It may define `fetch(corpus, out, jobs, progress)`, which makes or downloads
the corpus.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.corpus.config import CorpusConfig
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from lhotse import MonoCut


class NoCorpusError(ToolkitError):
    """A corpus that can neither be made nor downloaded, and was not given."""


def fetch(
    corpus: CorpusConfig, out: Path, jobs: int, progress: Callable[[int, int], None]
) -> dict[str, float]:
    """Make or download the corpus `corpus.name` into `out`; return its sizes for the headline."""
    module = import_module(f"local.{corpus.name}")
    if not hasattr(module, "fetch"):
        raise NoCorpusError(
            f"the corpus {corpus.name} cannot be downloaded: give the folder of your copy with"
            " --set corpus.root=FOLDER"
        )
    return module.fetch(corpus, out, jobs, progress)


def manifests(corpus: CorpusConfig, root: Path) -> "dict[str, list[MonoCut]]":
    """Read the corpus `corpus.name` in the folder `root`; return its cuts by split."""
    return import_module(f"local.{corpus.name}").manifests(corpus, root)
