import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.pipeline.steps import select as sampling

HOUR = 3600 * sampling.MICROSECONDS


def test_random_numbers_are_uniform_and_depend_on_the_seed():
    numbers = [sampling.random_numbers(1)(f"id-{n:06d}") for n in range(20000)]
    assert len(set(numbers)) == len(numbers)
    tenths = [0] * 10
    for number in numbers:
        tenths[number * 10 // sampling.RANGE] += 1
    # chi-square of 9 degrees of freedom: 27.9 is passed once in a thousand
    assert sum((count - 2000) ** 2 / 2000 for count in tenths) < 27.9
    other_seed = [sampling.random_numbers(2)(f"id-{n:06d}") for n in range(20000)]
    middle = sampling.RANGE // 2
    agree = sum((a < middle) == (b < middle) for a, b in zip(numbers, other_seed, strict=True))
    assert abs(agree - 10000) < 4 * 71
    assert sampling.random_numbers(1)("id-000000") == numbers[0]


@given(st.text(min_size=1))
def test_the_id_is_read_like_json(id):
    for line in (
        json.dumps({"id": id, "speaker": "s"}),
        json.dumps({"id": id, "speaker": "s"}, ensure_ascii=False),
        json.dumps({"speaker": "s", "id": id}),
    ):
        try:
            encoded = line.encode()
        except UnicodeEncodeError:  # half a surrogate pair
            continue
        assert sampling.id_of(encoded) == id


@pytest.mark.parametrize("line", [b"", b"x", b'{"id": "a', b'{"speaker": "a"}', b"[1]"])
def test_a_line_without_an_id_is_an_error(line):
    with pytest.raises((ValueError, KeyError, TypeError)):
        sampling.id_of(line)


def test_the_threshold_reaches_the_target():
    draw, top = sampling.random_numbers(0), sampling.RANGE // 3
    lengths = {f"u{n}": 1 + n % 7 for n in range(30000)}
    sampled = {id: s for id, s in lengths.items() if draw(id) < top}
    bins = [0] * sampling.BINS
    for id, seconds in sampled.items():
        bins[sampling.bin_of(draw(id), top)] += seconds * sampling.MICROSECONDS
    halves = [b // 2 for b in bins]
    histogram = sampling.merge_histograms(
        [halves, [b - h for b, h in zip(bins, halves, strict=True)]], top
    )
    assert histogram.hours == pytest.approx(sum(sampled.values()) / 3600, rel=1e-12)
    target_hours = 0.7 * histogram.hours
    threshold = histogram.threshold(target_hours)
    hours = sum(s for id, s in sampled.items() if draw(id) < threshold) / 3600
    assert hours == pytest.approx(target_hours, rel=1e-3)
    assert histogram.threshold(histogram.hours * 1.001) is None
    assert histogram.threshold(histogram.hours) <= top


def test_the_first_sample_exceeds_the_target():
    assert sampling.first_threshold(10, 100, 1.02) == pytest.approx(0.102 * sampling.RANGE)
    assert sampling.first_threshold(200, 100, 1.02) == sampling.RANGE
