"""Results as segments of a recording."""

from toolkit.align.ctm_textgrid import TimedToken
from toolkit.decode.decoded import DecodedUtterance


def test_words_end_with_their_segment():
    words = (
        TimedToken("a", 0.0, 0.3, 0.9),
        TimedToken("b", 0.3, 0.6, 0.8),
        TimedToken("c", 0.6, 0.63, 0.7),
    )
    utterance = DecodedUtterance("a b c", words).placed(2.0, 2.59)
    assert [word[1:3] for word in utterance.words] == [
        (2.0, 2.3),
        (2.3, 2.59),
        (2.59, 2.59),
    ]
    assert (utterance.start_s, utterance.end_s, utterance.text) == (2.0, 2.59, "a b c")
    assert DecodedUtterance("a").placed(1.00004, 2.0) == DecodedUtterance("a", None, 1.0, 2.0)


def test_words_are_moved_into_their_utterance():
    words = TimedToken("a", 0.0, 0.3, 0.9), TimedToken("b", 0.3, 0.63, 0.8)
    utterance = DecodedUtterance("a b", words).placed(1.0, 1.6100000000000003)
    assert [word[1:3] for word in utterance.words] == [(1.0, 1.3), (1.3, 1.61)]
    assert DecodedUtterance("a").placed(1.0, 2.0).words is None
