import pytest

from toolkit.corpus.config import CheckConfig, CorpusConfig


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
def test_a_corpus_that_cannot_be_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        CorpusConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("alphabet", ""), ("listed", 0), ("max_seconds", -1.0), ("max_excluded", 1.5)],
)
def test_a_check_that_cannot_be_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        CheckConfig(**{field: value})
