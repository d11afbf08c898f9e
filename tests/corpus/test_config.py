"""Settings of corpora, and the readers in `local`."""

import pytest

from toolkit.corpus.config import CheckConfig, CorpusConfig, reader_exists, reader_names


def test_defaults_are_the_demo_corpus():
    assert CorpusConfig().name == "synthetic"
    assert CorpusConfig().allow_pipes is False


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "timit"),
        ("dev_speakers", 0),
        ("test_speakers", 0),
        ("rotation", -1),
        ("hours", 0.0),
        ("hold_out", "recordings"),
        ("held_out_share", 0.5),
    ],
)
def test_invalid_corpus_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        CorpusConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("alphabet", ""), ("listed", 0), ("max_seconds", -1.0), ("max_excluded", 1.5)],
)
def test_invalid_check_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        CheckConfig(**{field: value})


def test_readers_are_the_modules_that_read(tmp_path):
    (tmp_path / "mine.py").write_text('"""Mine."""\n\n\ndef manifests(corpus, root):\n    ...\n')
    (tmp_path / "theirs.py").write_text("manifests = mine.manifests\n")
    (tmp_path / "helper.py").write_text("def sounds():\n    manifests = 1\n")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "__init__.py").write_text("manifests = mine.manifests\n")
    (tmp_path / "made" / "sounds.py").write_text("manifests = mine.manifests\n")
    assert reader_names(tmp_path) == ["made", "mine", "theirs"]


def test_available_readers_are_listed():
    assert {"an4", "kaldi", "librispeech", "synthetic", "table"} <= set(reader_names())
    assert reader_exists("table")
    assert not any(map(reader_exists, ("farfield", "../table", "", "__init__")))


def test_an_unknown_reader_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"table.*not 'tabel' \(did you mean 'table'\?\)"):
        CorpusConfig("tabel")


def test_without_readers_any_name_will_do(monkeypatch):
    monkeypatch.setattr("toolkit.corpus.config.find_spec", lambda name: None)
    assert CorpusConfig("mine").name == "mine"
