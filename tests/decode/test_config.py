import math

import pytest

from toolkit.decode.config import DecodeConfig
from toolkit.fsa.config import Beam


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scales": ()}, "`scales` and `penalties` need at least one value each"),
        ({"acoustic_scale": 0.0}, "`acoustic_scale` is 0.0 but must be above 0"),
        ({"scales": (0.1, math.inf)}, "`scales` are .* but must be finite"),
        ({"penalties": (math.nan,)}, "`penalties` has a value that is nan but must be a number"),
        ({"retries": (2.0, 0.0)}, r"`retries` is \(2.0, 0.0\), but its factors must be positive"),
        ({"retries": (math.nan,)}, "`retries` has a value that is nan"),
        ({"retries": (math.inf,)}, "positive and finite"),
    ],
)
def test_settings_that_would_fail_in_the_search_are_refused_at_once(wrong, message):
    with pytest.raises(ValueError, match=message):
        DecodeConfig(**wrong)


def test_retries_are_factors_on_the_beam():
    config = DecodeConfig(beam=Beam(search=8.0, max_active=1000), retries=(2.0, 4.0))
    assert [beam.search for beam in config.beams()] == [8.0, 16.0, 32.0]
    assert DecodeConfig(retries=()).beams() == [DecodeConfig().beam]
