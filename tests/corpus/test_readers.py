import pytest

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.readers import reader_exists, reader_names


def test_readers_are_the_modules_that_read(tmp_path):
    (tmp_path / "mine.py").write_text('"""Mine."""\n\n\ndef manifests(corpus, root):\n    ...\n')
    (tmp_path / "theirs.py").write_text("manifests = mine.manifests\n")
    (tmp_path / "helper.py").write_text("def sounds():\n    manifests = 1\n")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "__init__.py").write_text("manifests = mine.manifests\n")
    (tmp_path / "made" / "sounds.py").write_text("manifests = mine.manifests\n")
    assert reader_names(tmp_path) == ["made", "mine", "theirs"]


def test_the_readers_that_are_there():
    assert {"an4", "kaldi", "librispeech", "synthetic", "table"} <= set(reader_names())
    assert reader_exists("table")
    assert not any(map(reader_exists, ("farfield", "../table", "", "__init__")))


def test_an_unknown_reader_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"table.*not 'tabel' \(did you mean 'table'\?\)"):
        CorpusConfig("tabel")


def test_without_readers_any_name_will_do(monkeypatch):
    monkeypatch.setattr("toolkit.corpus.readers.find_spec", lambda name: None)
    assert CorpusConfig("mine").name == "mine"
