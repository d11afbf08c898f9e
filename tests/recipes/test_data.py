"""Steps with data that several recipes share."""

import pytest


class Recorder:
    """A run that notes the inputs it is told of."""

    def __init__(self):
        self.needed = []

    def need_outside(self, path, whole):
        assert whole
        self.needed.append(path)


def test_files_folders_and_patterns_of_the_user_are_recorded(tmp_path):
    from recipes.steps.data import need_user_files

    for name in ("b.txt", "a.txt", "c.gz"):
        (tmp_path / name).touch()
    run = Recorder()
    sources = (None, tmp_path / "c.gz", tmp_path, tmp_path / "*.txt", tmp_path / "missing")
    need_user_files(run, *sources)
    assert run.needed == [tmp_path / "c.gz", tmp_path, tmp_path / "a.txt", tmp_path / "b.txt"]


@pytest.mark.parametrize("text", ["transcripts", "lm"])
def test_lattices_have_the_language_model_of_the_transcripts_or_of_the_text(tmp_path, text):
    from recipes.steps.data import lattice_lm_config
    from recipes.steps.settings import HybridConfig
    from toolkit.lang.config import NgramConfig

    books = tmp_path / "books.txt"
    books.touch()
    run = Recorder()
    run.need = lambda name: tmp_path / name
    run.config = HybridConfig(
        lm=NgramConfig(text=books), lattice_lm=NgramConfig(order=1), lattice_text=text
    )
    expected = NgramConfig(order=1, text=books if text == "lm" else None)
    assert lattice_lm_config(run) == expected
    assert run.needed == ([books] if text == "lm" else [])
