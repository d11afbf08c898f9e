"""A corpus as a table: `corpus.root` is a CSV file with the columns audio, text and speaker."""

from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError
from toolkit.corpus.split import assemble
from toolkit.corpus.table import read_table


def manifests(corpus: CorpusConfig, root: Path) -> dict[str, list[MonoCut]]:
    """Read the table `root`; what its split column does not name is held out of train."""
    if not root.is_file():
        raise ManifestError(f"{root} is no file: corpus.root must be the table, a CSV file")
    return assemble(read_table(root), corpus, hold_out_test=True)
