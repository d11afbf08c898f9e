import tracemalloc

import pytest

from toolkit.train.errors import TrainingDataError
from toolkit.train.language_model import Sentences, prepare_text

TEXT = [f"{a} {b}".split() for a in "ABCDEFGH" for b in ("X Y", "Z", "X")] * 2


def held_out(text):
    return [tuple(text.valid[n]) for n in range(len(text.valid))]


def test_sentences_are_stored_one_after_another():
    sentences = Sentences.of([[5, 3], [], [4]])
    assert [sentences[n].tolist() for n in range(3)] == [[5, 3], [], [4]]
    assert sentences.lengths.tolist() == [2, 0, 1]
    assert len(sentences) == 3
    assert len(Sentences.of([])) == 0


def test_copies_are_held_out_together_in_any_order():
    text = prepare_text(lambda: TEXT, [*"ABCDEFGHXYZ"], None, 3)
    assert 0 < len(text.valid) < len(TEXT) / 2
    assert len(text.train) + len(text.valid) == len(TEXT)
    train = {tuple(text.train[n]) for n in range(len(text.train))}
    assert not train & set(held_out(text))
    again = prepare_text(lambda: reversed(TEXT), [*"ABCDEFGHXYZ"], None, 3)
    assert sorted(held_out(again)) == sorted(held_out(text))


def test_memory_grows_only_with_the_words():
    sentences = 3000
    text = [["A", "B", "A"]] * sentences + [[letter] for letter in "CDEFGH"] * 5
    tracemalloc.start()
    prepared = prepare_text(lambda: text, [*"ABCDEFGH"], None, 4)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(prepared.train) + len(prepared.valid) == len(text)
    assert most < 70 * sentences  # 20 bytes are kept of each


def test_words_are_counted_as_they_are_predicted():
    text = prepare_text(lambda: TEXT, [*"ABCXYZ", "NEVER"], 3, 3)
    assert len(text.shortlist.words) == 6
    tokens = text.train.words.tolist()
    assert text.counts.tolist() == [0, len(text.train), *(tokens.count(n) for n in range(2, 6))]
    assert text.counts[2] > 0  # the words beyond the shortlist


@pytest.mark.parametrize("sentences", [[], [["A"]]])
def test_too_little_text_is_an_error(sentences):
    with pytest.raises(TrainingDataError, match=r"lm\.text"):
        prepare_text(lambda: sentences, ["A"], None, 2)
