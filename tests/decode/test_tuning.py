"""Tuning against made-up numbers of errors."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.decode.search import DecodeConfig
from toolkit.decode.tune import MOST_SEARCHES, MOST_WIDENINGS, Count, Grid, Untuned, tune
from toolkit.fsa.lattice import Weights

SCALES, PENALTIES = (0.2, 0.3, 0.4), (-2.0, -1.0, 0.0)


class Landscape:
    """Errors by the scale of the search and the weights in its lattices; notes the searches."""

    def __init__(self, errors):
        self.errors, self.scales = errors, []

    def __call__(self, scale, grid):
        self.scales.append(scale)
        return [Count.of([self.errors(scale, pair)], 1000) for pair in grid.pairs()]


def valley(scale, penalty):
    """Fewest errors, 10, at these weights."""

    def errors(searched, pair):
        away = 40 * abs(math.log2(pair.acoustic_scale / scale))
        return round(10 + away + 5 * abs(pair.word_penalty - penalty))

    return errors


def tuned(errors, start=0.3, scales=SCALES, penalties=PENALTIES):
    searched = Landscape(errors)
    return tune(searched, start, Grid(scales, penalties)), searched.scales


def test_a_grid_needs_values_above_zero():
    for wrong in (
        {"scales": ()},
        {"penalties": ()},
        {"scales": (0.0, 1.0)},
        {"acoustic_scale": 0.0},
    ):
        with pytest.raises(ValueError, match="scales"):
            DecodeConfig(**wrong)


def test_weights_inside_the_grid_are_found_by_a_search_at_their_scale():
    found, scales = tuned(valley(0.4, -1.0), scales=(0.2, 0.3, 0.4, 0.5))
    assert found.best == Weights(0.4, -1.0)
    assert scales == [0.3, 0.4]
    assert found.at_edge == []


def test_weights_beyond_a_side_of_the_grid_are_found():
    """0.05 and 3 lie outside; a grid that is not widened ends with 0.2 and 0."""
    found, _ = tuned(valley(0.0593, 3.0))
    assert found.best.word_penalty == 3.0
    assert found.best.acoustic_scale == min(
        found.grid.scales, key=lambda scale: abs(math.log(scale / 0.0593))
    )
    assert found.best.acoustic_scale < 0.1
    assert found.at_edge == []


def test_a_side_that_cannot_be_widened_any_more_is_told():
    found, scales = tuned(lambda searched, pair: round(1000 * pair.acoustic_scale))
    assert len(found.grid.scales) <= len(SCALES) + MOST_WIDENINGS
    assert found.at_edge == ["lowest scale"]
    assert len(scales) <= MOST_SEARCHES


def test_what_only_lattices_promise_does_not_count():
    """Lattices of the first search promise 1 error at 0.2, where a search finds 50."""

    def errors(searched, pair):
        if pair.acoustic_scale == 0.2:
            return 50 if searched == 0.2 else 1
        return 20 + (pair.acoustic_scale != 0.3)

    found, scales = tuned(errors)
    assert 0.2 in scales
    assert found.best.acoustic_scale == 0.3
    assert found.tried[Weights(0.2, 0.0)] == (0.2, Count.of([50], 1000))


def test_a_set_without_differences_leaves_the_scale_where_it_was():
    found, scales = tuned(lambda searched, pair: 3)
    assert found.best == Weights(0.3, 0.0)
    assert set(scales) == {0.3}


def test_a_single_pair_is_taken_as_it_is():
    found, scales = tuned(lambda searched, pair: 3, scales=(0.1,), penalties=(-1.0,))
    assert found.best == Weights(0.1, -1.0)
    assert scales == [0.3, 0.1]
    assert found.at_edge == []


@given(st.integers(0, 2**32), st.sampled_from([0.1, 0.3, 0.37]))
def test_of_all_searched_at_their_own_scale_none_is_better(seed, start):
    def errors(searched, pair):
        return hash((seed, searched, pair.acoustic_scale, pair.word_penalty)) % 100

    found, scales = tuned(errors, start)
    own = {pair: count for pair, (scale, count) in found.tried.items()
           if scale == pair.acoustic_scale}  # fmt: skip
    assert own[found.best] == min(own.values())
    assert found.best.acoustic_scale in scales
    assert found.best in found.grid.pairs()
    assert len(scales) <= MOST_SEARCHES


class Utterances:
    """Errors of 100 utterances, one in each; certain weights save some of them."""

    def __init__(self, weights, saved, spoiled):
        self.weights, self.scales = weights, []
        self.better = [0] * saved + [2] * spoiled + [1] * (100 - saved - spoiled)

    def __call__(self, scale, grid):
        self.scales.append(scale)
        return [
            Count.of(self.better if pair == self.weights else [1] * 100, 1000)
            for pair in grid.pairs()
        ]


@pytest.mark.parametrize(
    ("saved", "spoiled", "significant"),
    # The difference, 2 or 8 errors, and twice its standard error, by the variance of -1, 0 and 1.
    [(2, 0, False), (3, 0, False), (5, 0, True), (20, 12, False), (30, 10, True)],
)
def test_other_weights_count_where_they_save_more_than_chance_would(saved, spoiled, significant):
    mean = (saved - spoiled) / 100
    deviation = math.sqrt((saved + spoiled - 100 * mean**2) / 99)
    assert (100 * mean > 2 * 10 * deviation) == significant
    searched, other = Utterances(Weights(0.4, -1.0), saved, spoiled), Weights(0.4, -1.0)
    untuned = Untuned(Weights(0.3, 0.0), standard_errors=2.0)
    found = tune(searched, 0.3, Grid(SCALES, PENALTIES), untuned)
    assert found.best == (other if significant else untuned.weights)
    # The search that others would need is not even made.
    assert set(searched.scales) == ({0.3, 0.4} if significant else {0.3})
    assert tune(searched, 0.3, Grid(SCALES, PENALTIES)).best == other


def test_without_standard_errors_ties_alone_stay_untuned():
    untuned = Untuned(Weights(0.3, -1.0), standard_errors=0.0)
    for saved, best in ((0, untuned.weights), (1, Weights(0.2, 0.0))):
        searched = Utterances(Weights(0.2, 0.0), saved, 0)
        assert tune(searched, 0.3, Grid(SCALES, PENALTIES), untuned).best == best


def test_one_utterance_tells_nothing_of_chance():
    one, other = Count.of([3], 10), Count.of([0], 10)
    assert not other.significantly_below(one, 1.0)
    assert other.significantly_below(one, 0.0)
    assert not one.significantly_below(other, 0.0)
    assert not Count.of([], 0).significantly_below(Count.of([], 0), 0.0)


def test_settings_name_the_weights_that_are_kept():
    config = DecodeConfig(acoustic_scale=1.0, scales=(0.7, 1.4), penalties=(-2.0, 1.0))
    assert config.untuned is None
    assert 1.0 not in config.grid.scales
    kept = replace(config, untuned_within=2.0)
    assert kept.untuned == Untuned(Weights(1.0, 1.0), 2.0)
    assert kept.grid == Grid((0.7, 1.0, 1.4), (-2.0, 1.0))
    with pytest.raises(ValueError, match="untuned_within"):
        replace(config, untuned_within=-1.0)


def test_a_single_scale_is_kept_though_the_first_search_has_another():
    config = DecodeConfig(acoustic_scale=1.0, scales=(0.8,), untuned_within=2.0)
    searched = Utterances(Weights(0.8, -1.0), 2, 0)
    found = tune(searched, config.acoustic_scale, config.grid, config.untuned)
    assert found.best == Weights(0.8, 0.0)
    assert searched.scales == [1.0, 0.8]
