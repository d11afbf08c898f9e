import math

import pytest

from toolkit.align.config import AlignConfig
from toolkit.fsa.config import MAX_ACTIVE, Beam


@pytest.mark.parametrize("name", ["search", "output"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_beams_are_numbers_above_zero(name, value):
    with pytest.raises(ValueError, match=f"`{name}` is .* but must be (above 0|a number)"):
        Beam(**{name: value})


def test_a_search_without_a_beam_is_refused():
    with pytest.raises(ValueError, match="`search` is infinite"):
        Beam(search=math.inf)
    with pytest.raises(ValueError, match="`search` is infinite"):
        AlignConfig(beam=math.inf)


def test_retries_keep_the_numbers_of_states_in_range():
    first, wide, narrow = Beam(10.0, 5.0, 30, MAX_ACTIVE).with_retries((2.0, 1e-9))
    assert first.max_active == MAX_ACTIVE
    assert (wide.search, wide.min_active, wide.max_active) == (20.0, 60, MAX_ACTIVE)
    assert (narrow.min_active, narrow.max_active) == (1, 2)
    assert [beam.max_active for beam in AlignConfig(max_active=MAX_ACTIVE).beams()] == [
        MAX_ACTIVE
    ] * 3
    assert Beam(10.0, 5.0, 30, 4000).widened(2.0) == Beam(20.0, 5.0, 60, 8000)
