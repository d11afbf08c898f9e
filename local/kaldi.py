"""Kaldi data directories: one for each part (train, dev, test...) in a root, or a single one."""

from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError
from toolkit.corpus.split import assemble, matches
from toolkit.corpus.wav_scp import PipeRunner
from toolkit.kaldi.data_dir import read_kaldi_dir
from toolkit.kaldi.feature_dir import read_feature_dir


def manifests(corpus: CorpusConfig, root: Path) -> dict[str, list[MonoCut]]:
    """Read every data directory in `root` whose name matches a pattern, or `root` itself.

    A single directory is training data; dev and test are held out of it.

    With `corpus.features` = "kaldi", data directories are those with feats.scp; they need no audio.

    Commands in wav.scp are refused; the data check reports them. With `corpus.allow_pipes` each
    command is run once, and its audio is kept in the folder `corpus.pipes`.
    """
    patterns = ",".join((corpus.train, corpus.dev, corpus.test))
    if corpus.allow_pipes and corpus.pipes is None:
        raise ManifestError(
            "`corpus.allow_pipes` needs a folder for the audio that the commands in wav.scp write: "
            "set it with --set corpus.pipes=FOLDER"
        )
    run_pipe = PipeRunner(corpus.pipes) if corpus.allow_pipes else None

    def read(folder: Path) -> list[MonoCut]:
        if corpus.features == "kaldi":
            return read_feature_dir(folder, corpus.map_paths)
        return read_kaldi_dir(folder, run_pipe, corpus.map_paths)

    table = "feats.scp" if corpus.features == "kaldi" else "wav.scp"
    if (root / table).is_file():
        return assemble({"train": read(root)}, corpus, hold_out_test=True)
    folders = sorted(path.parent for path in root.glob(f"*/{table}"))
    parts = {folder.name: read(folder) for folder in folders if matches(folder.name, patterns)}
    if not parts:
        raise ManifestError(
            f"no Kaldi data directory (a folder with {table} and text) under {root} has a "
            f"name that matches {patterns}: set `corpus.root` to the folder above your data "
            "directories, or `corpus.train`, `corpus.dev` and `corpus.test` to their names"
        )
    return assemble(parts, corpus, hold_out_test=True)
