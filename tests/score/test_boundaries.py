import dataclasses

import numpy as np
import pytest

from toolkit.align.ctm_textgrid import CtmEntry
from toolkit.score.boundaries import BoundaryError, compare_boundaries


def entries(utterance, text, step=0.5, channel="1"):
    return [
        CtmEntry(utterance, channel, number * step, step, word)
        for number, word in enumerate(text.split())
    ]


def move_boundaries(entry, start_ms, end_ms):
    start = entry.start + start_ms / 1000
    return dataclasses.replace(entry, start=start, duration=entry.end + end_ms / 1000 - start)


def test_an_alignment_compared_with_itself_has_no_deviation():
    words = entries("a", "ONE TWO THREE") + entries("b", "ONE")
    report = compare_boundaries(words, words)
    assert (report.num_compared, report.num_reference_only, report.num_hypothesis_only) == (4, 0, 0)
    for deviation in (report.boundaries, report.starts, report.ends):
        assert (deviation.median_ms, deviation.mean_ms, deviation.bias_ms) == (0, 0, 0)
        assert deviation.within == {25: 1.0, 50: 1.0, 100: 1.0}


def test_statistics_are_those_of_the_planted_differences():
    rng = np.random.default_rng(3)
    reference = [entry for n in range(30) for entry in entries(f"u{n:02d}", "A B C D E")]
    planted = np.round(rng.laplace(5.0, 40.0, (len(reference), 2)).clip(-200, 200), 3)
    hypothesis = [move_boundaries(e, *row) for e, row in zip(reference, planted, strict=True)]
    order = rng.permutation(len(hypothesis))
    # The order of lines does not matter as long as the words' order in time is the same.
    report = compare_boundaries(reference, [hypothesis[i] for i in order])
    assert report.num_compared == 150
    for deviation, values in (
        (report.starts, planted[:, 0]),
        (report.ends, planted[:, 1]),
        (report.boundaries, planted),
    ):
        assert deviation.median_ms == pytest.approx(np.median(np.abs(values)))
        assert deviation.mean_ms == pytest.approx(np.mean(np.abs(values)))
        assert deviation.bias_ms == pytest.approx(np.median(values))
        for limit in (25, 50, 100):
            assert deviation.within[limit] == pytest.approx(np.mean(np.abs(values) <= limit))
    means = np.abs(planted).reshape(30, -1).mean(axis=1)
    worst = np.argsort(-means)[:5]
    assert [row.utterance for row in report.worst] == [f"u{n:02d}" for n in worst]
    assert report.worst[0].mean_ms == pytest.approx(means[worst[0]])
    largest = np.abs(planted).reshape(30, 5, 2)[worst[0]].max(axis=1)
    assert report.worst[0].max_ms == pytest.approx(largest.max())
    assert report.worst[0].token == "ABCDE"[np.argmax(largest)]


def test_a_limit_itself_is_within():
    reference = entries("a", "ONE TWO", step=0.7)
    report = compare_boundaries(reference, [move_boundaries(e, 25, -50) for e in reference])
    assert report.starts.within[25] == 1.0
    assert report.ends.within == {25: 0.0, 50: 1.0, 100: 1.0}


def test_repeated_words_are_paired_in_order():
    reference = entries("a", "THE THE THE")
    report = compare_boundaries(reference, [move_boundaries(e, 10, 10) for e in reference])
    assert (report.num_compared, report.boundaries.mean_ms) == (3, pytest.approx(10))


def test_words_of_one_side_are_counted_and_left_out():
    reference = entries("a", "ONE TWO THREE FOUR") + entries("only-ref", "X Y")
    hypothesis = [
        *entries("a", "ONE TOO THREE"),
        CtmEntry("a", "1", 1.5, 0.1, "UH"),
        CtmEntry("a", "1", 1.6, 0.4, "FOUR"),
        *entries("only-hyp", "X"),
    ]
    report = compare_boundaries(reference, hypothesis)
    assert report.num_compared == 3
    assert report.num_reference_only == 1 + 2
    assert report.num_hypothesis_only == 2 + 1
    assert report.starts.mean_ms == pytest.approx(100 / 3)
    assert report.ends.mean_ms == pytest.approx(0)


def test_channels_are_compared_separately():
    reference = entries("call", "HELLO", channel="A") + entries("call", "THERE", channel="B")
    assert compare_boundaries(reference, reference).num_compared == 2
    swapped = entries("call", "HELLO", channel="B") + entries("call", "HELLO", channel="A")
    report = compare_boundaries(reference, swapped)
    assert (report.num_compared, report.num_reference_only) == (1, 1)


@pytest.mark.parametrize("hypothesis", [[], entries("b", "ONE"), entries("a", "one")])
def test_nothing_in_common_is_an_error(hypothesis):
    with pytest.raises(BoundaryError, match="no word in common"):
        compare_boundaries(entries("a", "ONE"), hypothesis)


def test_text_has_one_number_per_line():
    reference = entries("a", "ONE TWO")
    hypothesis = [move_boundaries(reference[0], 30, 0), move_boundaries(reference[1], -32, 0)]
    lines = compare_boundaries(reference, hypothesis).text().splitlines()
    assert "words compared: 2" in lines
    assert "starts, median absolute difference in ms: 31.0" in lines
    assert "starts, median difference in ms: -1.0" in lines
    assert "boundaries, within 25 ms in %: 50.0" in lines
    assert lines[-1] == "a, mean absolute difference in ms: 15.5 (at most 32.0, TWO)"
    assert all(line.count(": ") == 1 for line in lines)
