"""A corpus as a table: `corpus.root` is a CSV file with the columns audio, text and speaker."""

from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError
from toolkit.corpus.split import assemble
from toolkit.corpus.table import read_table


def manifests(corpus: CorpusConfig, root: Path) -> dict[str, list[MonoCut]]:
    """Read the table `root`; dev and test are held out of train if its split column lacks them."""
    if not root.is_file():
        raise ManifestError(f"{root} is not a file: corpus.root must be the table, a CSV file")
    return assemble(read_table(root, corpus.map_paths), corpus, hold_out_test=True)
