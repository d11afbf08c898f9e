"""A corpus that lhotse has prepared: `corpus.root` is a file of cuts, or a folder of them."""

from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.cut_files import cut_files, read_cut_file
from toolkit.corpus.manifest import ManifestError
from toolkit.corpus.split import assemble, matches


def manifests(corpus: CorpusConfig, root: Path) -> dict[str, list[MonoCut]]:
    """Read every file of cuts whose part matches a pattern of `corpus`, see `cut_files`.

    A single file is training data. If dev or test is missing, it is held out of train.
    """
    files, patterns = cut_files(root), ",".join((corpus.train, corpus.dev, corpus.test))
    if not root.is_file():
        files = {part: path for part, path in files.items() if matches(part, patterns)}
    if not files:
        raise ManifestError(
            f"{root} contains no file of cuts for a part with a name that matches {patterns}: set "
            "`corpus.train`, `corpus.dev` and `corpus.test` to the names of the parts there"
        )
    parts = {part: read_cut_file(path, corpus.map_paths) for part, path in files.items()}
    return assemble(parts, corpus, hold_out_test=True)
