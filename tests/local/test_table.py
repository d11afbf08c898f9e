import pytest

from local import table
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError


def test_missing_splits_are_held_out(audio, tmp_path):
    lines = ["audio,text,speaker"]
    for number in range(20):
        audio(tmp_path / f"{number}.wav", seconds=0.2, seed=number)
        lines.append(f"{number}.wav,hello,s{number % 5}")
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    corpus = CorpusConfig("table", path, dev_speakers=1, test_speakers=1)
    splits = table.manifests(corpus, path)
    assert {name: len(cuts) for name, cuts in splits.items()} == {"train": 12, "dev": 4, "test": 4}


def test_a_folder_instead_of_a_table_is_an_error(tmp_path):
    with pytest.raises(ManifestError, match="no table in"):
        table.manifests(CorpusConfig("table"), tmp_path)
