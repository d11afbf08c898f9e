"""A corpus as a table: `corpus.root` is a CSV file with the columns audio, text and speaker."""

from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError
from toolkit.corpus.split import assemble, matches
from toolkit.corpus.table import read_part, read_table, tables_in


def manifests(corpus: CorpusConfig, root: Path) -> dict[str, list[MonoCut]]:
    """Read the table `root`, or the tables in the folder `root` whose names match the splits.

    If dev or test is neither in a split column nor a table of its own, it is held out of train.
    """
    if root.is_dir():
        patterns = ",".join((corpus.train, corpus.dev, corpus.test))
        parts = {
            name: read_part(path, corpus.map_paths)
            for name, path in tables_in(root).items()
            if matches(name, patterns)
        }
        if not parts:
            raise ManifestError(
                f"no table in {root} has a name that matches {patterns}: set `corpus.train`, "
                "`corpus.dev` and `corpus.test` to the names of your tables"
            )
        return assemble(parts, corpus, hold_out_test=True)
    if not root.is_file():
        raise ManifestError(f"{root} is not a file: set `corpus.root` to the table, a CSV file")
    return assemble(read_table(root, corpus.map_paths), corpus, hold_out_test=True)
