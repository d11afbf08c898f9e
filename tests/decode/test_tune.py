"""Tuning against made-up numbers of errors."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.decode.config import DecodeConfig
from toolkit.decode.search import first_axes, smallest_change, weight_axes, weights_to_keep
from toolkit.decode.tune import Axis, ErrorCount, Keep, choose, tune
from toolkit.fsa.lattice import Weights

SCALES, PENALTIES = (0.2, 0.3, 0.4), (-2.0, -1.0, 0.0)


class Landscape:
    """Errors by the scale of the search and the weights in its lattices; notes the searches."""

    def __init__(self, errors):
        self.errors, self.scales = errors, []

    def __call__(self, scale, points):
        self.scales.append(scale)
        return [ErrorCount.of([self.errors(scale, Weights(*point))], 1000) for point in points]


def valley(scale, penalty):
    """Fewest errors, 10, at these weights."""

    def errors(searched, pair):
        away = 40 * abs(math.log2(pair.acoustic_scale / scale))
        return round(10 + away + 5 * abs(pair.word_penalty - penalty))

    return errors


def tuned(errors, start=0.3, scales=SCALES, penalties=PENALTIES):
    searched = Landscape(errors)
    return tuned_on(searched, weight_axes(scales, penalties), start), searched.scales


def tuned_on(searched, axes, start=0.3, keep=None):
    return tune(axes, searched, smallest_change, first_search=start, keep=keep)


def test_a_grid_needs_values_above_zero():
    for wrong in (
        {"scales": ()},
        {"penalties": ()},
        {"scales": (0.0, 1.0)},
        {"acoustic_scale": 0.0},
    ):
        with pytest.raises(ValueError, match=r"scales?"):
            DecodeConfig(**wrong)


def test_weights_inside_the_grid_are_found_by_a_search_at_their_scale():
    tuning, scales = tuned(valley(0.4, -1.0), scales=(0.2, 0.3, 0.4, 0.5))
    assert tuning.best == (0.4, -1.0)
    assert scales == [0.3, 0.4]
    assert tuning.at_edge == []


def test_weights_beyond_a_side_of_the_grid_are_found():
    """0.05 and 3 lie outside; a grid that is not widened ends with 0.2 and 0."""
    tuning, _ = tuned(valley(0.0593, 3.0))
    assert tuning.best[1] == 3.0
    assert tuning.best[0] == min(
        tuning.axes[0].values, key=lambda scale: abs(math.log(scale / 0.0593))
    )
    assert tuning.best[0] < 0.1
    assert tuning.at_edge == []


def test_a_side_that_cannot_be_widened_further_is_reported():
    tuning, scales = tuned(lambda searched, pair: round(1000 * pair.acoustic_scale))
    assert len(tuning.axes[0].values) <= len(SCALES) + 6
    assert tuning.at_edge == ["lowest scale"]
    assert len(scales) <= 10


def test_errors_that_only_lattices_promise_do_not_count():
    """Lattices of the first search promise 1 error at 0.2, where a search finds 50."""

    def errors(searched, pair):
        if pair.acoustic_scale == 0.2:
            return 50 if searched == 0.2 else 1
        return 20 + (pair.acoustic_scale != 0.3)

    tuning, scales = tuned(errors)
    assert 0.2 in scales
    assert tuning.best[0] == 0.3
    assert tuning.tried[0.2, 0.0] == (0.2, ErrorCount.of([50], 1000))


def test_a_set_without_differences_leaves_the_scale_where_it_was():
    tuning, scales = tuned(lambda searched, pair: 3)
    assert tuning.best == (0.3, 0.0)
    assert set(scales) == {0.3}


def test_a_single_pair_is_taken_as_it_is():
    tuning, scales = tuned(lambda searched, pair: 3, scales=(0.1,), penalties=(-1.0,))
    assert tuning.best == (0.1, -1.0)
    assert scales == [0.3, 0.1]
    assert tuning.at_edge == []


@given(st.integers(0, 2**32), st.sampled_from([0.1, 0.3, 0.37]))
def test_the_best_of_all_pairs_searched_at_their_scale_is_chosen(seed, start):
    def errors(searched, pair):
        return hash((seed, searched, pair.acoustic_scale, pair.word_penalty)) % 100

    tuning, scales = tuned(errors, start)
    searched_counts = {
        pair: count for pair, (scale, count) in tuning.tried.items() if scale == pair[0]
    }
    assert searched_counts[tuning.best] == min(searched_counts.values())
    assert tuning.best[0] in scales
    assert all(x in axis.values for axis, x in zip(tuning.axes, tuning.best, strict=True))
    assert len(scales) <= 10


class Utterances:
    """Errors of 100 utterances, one in each; certain weights save some of them."""

    def __init__(self, weights, saved, spoiled):
        self.weights, self.scales = weights, []
        self.better = [0] * saved + [2] * spoiled + [1] * (100 - saved - spoiled)

    def __call__(self, scale, points):
        self.scales.append(scale)
        return [
            ErrorCount.of(self.better if point == self.weights else [1] * 100, 1000)
            for point in points
        ]


@pytest.mark.parametrize(
    ("saved", "spoiled", "significant"),
    # The difference, 2 or 8 errors, and twice its standard error, by the variance of -1, 0 and 1.
    [(2, 0, False), (3, 0, False), (5, 0, True), (20, 12, False), (30, 10, True)],
)
def test_other_weights_win_only_when_significantly_better(saved, spoiled, significant):
    mean = (saved - spoiled) / 100
    deviation = math.sqrt((saved + spoiled - 100 * mean**2) / 99)
    assert (100 * mean > 2 * 10 * deviation) == significant
    searched, better_pair = Utterances((0.4, -1.0), saved, spoiled), (0.4, -1.0)
    axes, keep = weight_axes(SCALES, PENALTIES), Keep((0.3, 0.0), standard_errors=2.0)
    tuning = tuned_on(searched, axes, keep=keep)
    assert tuning.best == (better_pair if significant else keep.point)
    # The search that others would need is not even made.
    assert set(searched.scales) == ({0.3, 0.4} if significant else {0.3})
    assert tuned_on(searched, axes).best == better_pair


def test_without_standard_errors_ties_alone_stay_untuned():
    axes, keep = weight_axes(SCALES, PENALTIES), Keep((0.3, -1.0), standard_errors=0.0)
    for saved, best in ((0, keep.point), (1, (0.2, 0.0))):
        searched = Utterances((0.2, 0.0), saved, 0)
        assert tuned_on(searched, axes, keep=keep).best == best


def test_one_utterance_gives_no_standard_error():
    three_errors, no_errors = ErrorCount.of([3], 10), ErrorCount.of([0], 10)
    assert not no_errors.significantly_below(three_errors, 1.0)
    assert no_errors.significantly_below(three_errors, 0.0)
    assert not three_errors.significantly_below(no_errors, 0.0)
    assert not ErrorCount.of([], 0).significantly_below(ErrorCount.of([], 0), 0.0)


def test_settings_name_the_weights_that_are_kept():
    config = DecodeConfig(acoustic_scale=1.0, scales=(0.7, 1.4), penalties=(-2.0, 1.0))
    assert weights_to_keep(config) is None
    assert [axis.values for axis in first_axes(config)] == [(0.7, 1.4), (-2.0, 1.0)]
    cautious = replace(config, untuned_within=2.0)
    assert weights_to_keep(cautious) == Keep((1.0, 1.0), 2.0)
    assert [axis.values for axis in first_axes(cautious)] == [(0.7, 1.0, 1.4), (-2.0, 1.0)]
    with pytest.raises(ValueError, match="untuned_within"):
        replace(config, untuned_within=-1.0)


def test_a_single_scale_is_kept_though_the_first_search_has_another():
    config = DecodeConfig(acoustic_scale=1.0, scales=(0.8,), untuned_within=2.0)
    searched = Utterances((0.8, -1.0), 2, 0)
    tuning = tuned_on(searched, first_axes(config), config.acoustic_scale, weights_to_keep(config))
    assert tuning.best == (0.8, 0.0)
    assert searched.scales == [1.0, 0.8]


def test_exact_counts_are_made_once_for_each_point():
    counted_points = []

    def count_errors(scale, points):
        assert scale is None
        counted_points.extend(points)
        return [
            ErrorCount.of([round(100 * abs(a - 0.1)) + round(abs(b - 3))], 50) for a, b in points
        ]

    halves = Axis("a", (0.4, 0.8), below=lambda v: v[0] / 2, above=lambda v: 2 * v[-1])
    steps = Axis("b", (0.0, 1.0), below=lambda v: v[0] - 1, above=lambda v: v[-1] + 1)
    tuning = tune((halves, steps), count_errors, lambda point, scale: point)
    assert tuning.best == (0.1, 3.0)
    assert tuning.at_edge == []
    assert len(counted_points) == len(set(counted_points)) == len(tuning.tried)
    assert {scale for scale, _ in tuning.tried.values()} == {None}


def test_of_equals_the_first_by_the_tie_break_is_chosen():
    counts = {name: ErrorCount.of([n], 9) for name, n in (("b", 1), ("a", 1), ("c", 2))}
    assert choose(counts, lambda name: name) == "a"
    assert choose(counts, lambda name: name, Keep("c", 1.0)) == "c"
