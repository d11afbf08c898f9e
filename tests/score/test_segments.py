import math

import pytest

from toolkit.align.ctm_textgrid import CtmEntry
from toolkit.errors import ToolkitError
from toolkit.score.nist.formats import StmSegment, assign


def segment(start, end, text="x", recording="r", channel="A", speaker="s"):
    return StmSegment(recording, channel, speaker, start, end, text)


def word(start, token, duration=0.2, recording="r", channel="A"):
    return CtmEntry(recording, channel, start, duration, token)


def test_a_word_belongs_where_its_middle_lies_and_none_is_lost():
    segments = [segment(1, 2), segment(3, 4), segment(5, 6)]
    words = [
        word(0.0, "before"),
        word(1.85, "in"),  # its middle at 1.95
        word(1.9, "edge"),  # at 2.0, no longer in the first
        word(2.5, "between"),
        word(5.5, "last"),
        word(9.0, "after"),
    ]
    sides = assign(segments, reversed(words))
    assert sides.hyps == {
        "r-A_0001000-0002000": "before in",
        "r-A_0003000-0004000": "edge between",
        "r-A_0005000-0006000": "last after",
    }
    assert set(sides.speakers.values()) == {"s"}


def test_channels_and_recordings_are_separate():
    sides = assign(
        [segment(0, 1, "a"), segment(0, 1, "b", channel="B"), segment(0, 1, "c", recording="q")],
        [word(0.5, "b", channel="B"), word(0.1, "a"), word(0.1, "z", recording="z")],
    )
    assert sides.hyps == {"r-A_0000000-0001000": "a", "r-B_0000000-0001000": "b"}
    assert sides.refs["q-A_0000000-0001000"] == "c"  # missing: the CTM has nothing of q
    assert sides.unscored_channels == (("z A", 1),)


def test_segments_to_ignore_take_their_words_with_them():
    for mark in ("ignore_time_segment_in_scoring", "IGNORETIMESEGMENTINSCORING"):
        segments = [segment(0, 1), segment(1, 2, mark), segment(2, 3)]
        sides = assign(segments, [word(0.1, "a"), word(1.1, "b"), word(2.1, "c")])
        assert list(sides.hyps.values()) == ["a", "c"]
        assert (sides.ignored, sides.overlapping) == (1, 0)


def test_segments_that_overlap_in_a_channel_are_counted():
    segments = [segment(0, 3), segment(1, 2), segment(2.5, 4), segment(4, 5)]
    assert assign(segments, []).overlapping == 2


def test_segments_of_the_same_times_have_different_ids():
    sides = assign([segment(0, 1, "a"), segment(0, 1, "b")], [word(0.1, "a")])
    assert sides.refs == {"r-A_0000000-0001000": "a", "r-A_0000000-0001000#2": "b"}


def test_nothing_to_score_and_alternatives_without_an_end_are_errors():
    with pytest.raises(ToolkitError, match="no segment"):
        assign([], [word(0, "a")])
    with pytest.raises(ToolkitError, match=r"r A at 0.5 s: <ALT_BEGIN> without an <ALT_END>"):
        assign([segment(0, 1)], [word(0.5, "<ALT_BEGIN>")])


def test_alternatives_belong_where_the_last_of_their_middles_lies():
    words = [
        word(0.5, "a"),
        word(math.nan, "<ALT_BEGIN>"),
        word(0.7, "b"),
        word(math.nan, "<alt>"),
        word(0.7, "c"),
        word(1.0, "d"),
        word(math.nan, "<ALT_END>"),
        word(2.5, "e"),
    ]
    sides = assign([segment(0, 1), segment(1, 2), segment(2, 3)], words)
    assert list(sides.hyps.values()) == ["a", "{ b / c d }", "e"]


def test_names_that_differ_only_in_case_are_the_same():
    sides = assign(
        [segment(0, 1, "a", "R1", "a"), segment(1, 2, "b", "r1", "A")],
        [word(0.2, "a", recording="r1"), word(1.2, "b", recording="R1", channel="a")],
    )
    assert sides.hyps == {"R1-a_0000000-0001000": "a", "r1-A_0001000-0002000": "b"}
