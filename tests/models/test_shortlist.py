import json
import math

import pytest

from toolkit.models.neural_lm import Shortlist, ShortlistError

COUNTS = {"A": 5, "B": 3, "C": 3, "FOREIGN": 4, "D": 1, "<UNK>": 2}
VOCABULARY = ["A", "B", "C", "D", "NEVER"]


def test_the_most_frequent_words_of_the_recogniser_have_ids():
    shortlist = Shortlist.of(COUNTS, VOCABULARY, 2)
    assert shortlist.words == ("<s>", "</s>", "<UNK>", "A", "B")
    assert shortlist.ids(["B", "C", "FOREIGN", "A", "</s>"]) == [4, 2, 2, 3, 1]
    assert Shortlist.of(COUNTS, VOCABULARY, None).words[3:] == ("A", "B", "C", "D")


def test_words_outside_the_shortlist_share_the_unknown_word():
    shortlist = Shortlist.of(COUNTS, VOCABULARY, 2)
    # C, D and NEVER by count plus one; 6 tokens are no words of the recogniser, one is to spare
    total = 4 + 2 + 1 + 6 + 1
    assert shortlist.log_shares(["A", "C", "NEVER", "WHAT"]) == pytest.approx(
        [0.0, math.log(4 / total), math.log(1 / total), math.log(1 / total)]
    )
    assert sum(shortlist.shares.values()) == pytest.approx(7 / total)


def test_save_and_load_round_trip(tmp_path):
    shortlist = Shortlist.of(COUNTS, VOCABULARY, 2)
    shortlist.save(tmp_path / "s.json")
    assert Shortlist.load(tmp_path / "s.json") == shortlist


@pytest.mark.parametrize(
    "change",
    [
        {"words": ["A"]},
        {"words": ["<s>", "</s>", "<UNK>", "A", "A"]},
        {"shares": {"C": 0}},
        {"shares": {"C": "x"}},
        {"smallest_share": -1.0},
        {"smallest_share": None},
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_file(tmp_path, change):
    path = tmp_path / "s.json"
    Shortlist.of(COUNTS, VOCABULARY, 2).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ShortlistError, match=r"s\.json.*train"):
        Shortlist.load(path)
