"""Results as segments of a recording."""

from toolkit.decode.decoded import Recognised, Utterance, Word


def test_words_end_with_their_segment():
    words = Word("a", 0.0, 0.3, 0.9), Word("b", 0.3, 0.6, 0.8), Word("c", 0.6, 0.63, 0.7)
    found = Recognised("a b c", words).utterance(2.0, 2.59)
    assert [(one.start, one.end) for one in found.words] == [(2.0, 2.3), (2.3, 2.59), (2.59, 2.59)]
    assert (found.start, found.end, found.text) == (2.0, 2.59, "a b c")
    assert Recognised("a").utterance(1.00004, 2.0) == Utterance(1.0, 2.0, "a", None)


def test_words_are_moved_into_their_utterance():
    words = Word("a", 0.0, 0.3, 0.9), Word("b", 0.3, 0.63, 0.8)
    found = Recognised("a b", words).within(1.0, 1.6100000000000003)
    assert [(one.start, one.end) for one in found.words] == [(1.0, 1.3), (1.3, 1.61)]
    assert Recognised("a").within(1.0, 2.0) == Recognised("a")
