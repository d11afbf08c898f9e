"""A folder with the layout of the project, and corpora."""

import shutil

import pytest

from toolkit.new_corpus.make import MARKER_FILES


@pytest.fixture
def root(tmp_path):
    """A project's folder with two readers and a recipe."""
    root = tmp_path / "project"
    for part in (*MARKER_FILES, "toolkit/__init__.py", "local/an4.py", "recipes/steps/data.py"):
        (root / part).parent.mkdir(parents=True, exist_ok=True)
        (root / part).write_text("")
    return root


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    """A table of eight speakers with five sentences each."""
    import numpy as np
    import soundfile

    folder = tmp_path_factory.mktemp("recordings")
    rng = np.random.default_rng(1)
    lines = ["audio,text,speaker"]
    for number in range(40):
        samples = (3000 * rng.standard_normal(8000)).astype(np.int16)
        soundfile.write(folder / f"{number:02d}.wav", samples, 16000)
        lines.append(f'{number:02d}.wav,"The cat, said he, is here.",s{number % 8}')
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def corpus(recordings, tmp_path):
    """A copy of `recordings` that a test may change."""
    return shutil.copytree(recordings, tmp_path / "speech")
