from pathlib import Path

import pytest

from toolkit.config.settings import apply_overrides
from toolkit.lang.config import LangConfig, NgramConfig


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (LangConfig, {"vocabulary_size": -1}, "`vocabulary_size` is -1"),
        (LangConfig, {"max_unknown": 1.5}, "`max_unknown` is 1.5"),
        (LangConfig, {"normaliser": "german"}, "`normaliser` is 'german'"),
        (NgramConfig, {"order": 0}, "`order` is 0"),
        (NgramConfig, {"prune": -1e-9}, "`prune` is -1e-09"),
        (NgramConfig, {"min_counts": (2,)}, "must start with 1"),
        (NgramConfig, {"min_counts": (1, 3, 2)}, "not decrease"),
        (NgramConfig, {"min_counts": ()}, "must start with 1"),
        (NgramConfig, {"estimator": "srilm"}, "'srilm'"),
    ],
)
def test_invalid_values_are_refused(config, changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_valid_values_are_accepted():
    assert NgramConfig(text=Path("a"), order=4, min_counts=(1, 1, 2)).min_counts == (1, 1, 2)
    assert LangConfig(vocabulary_size=None).vocabulary_size is None


def test_the_list_of_words_is_a_file_or_the_lexicon(tmp_path):
    lexicon = apply_overrides(LangConfig(), ["words=lexicon"], tmp_path)
    assert (lexicon.words, lexicon.words_file) == ("lexicon", None)
    custom = apply_overrides(LangConfig(), ["words=mine.txt"], tmp_path)
    assert custom.words == custom.words_file == tmp_path / "mine.txt"


def test_the_lexicon_is_a_word_or_a_file(tmp_path):
    graphemes = apply_overrides(LangConfig(), ["lexicon=graphemes"], tmp_path)
    assert (graphemes.lexicon, graphemes.lexicon_file) == ("graphemes", None)
    custom = apply_overrides(LangConfig(), ["lexicon=mine.txt"], tmp_path)
    assert custom.lexicon == custom.lexicon_file == tmp_path / "mine.txt"
