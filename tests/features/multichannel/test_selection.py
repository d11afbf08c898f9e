"""The choice of a beam, on bursts that are louder in one of them."""

import numpy as np
import pytest

from toolkit.features.multichannel.selection import BeamSelector, SelectionConfig

BLOCK, RATE = 256, 16000


def chosen(loudness, seed=1):
    """Feed blocks of noise with the given loudness [blocks][beams]; return the choices."""
    rng = np.random.default_rng(seed)
    selector = BeamSelector(len(loudness[0]), BLOCK, RATE, SelectionConfig())
    shared = rng.standard_normal((len(loudness), 1, BLOCK))
    blocks = np.array(loudness)[:, :, None] * shared
    return [selector.choose(block) for block in blocks]


QUIET = [0.01, 0.01, 0.01]


def test_the_beam_with_the_talker_is_chosen_and_kept_in_pauses():
    speech = [0.1, 0.1, 0.3]
    found = chosen([QUIET] * 60 + [speech] * 30 + [QUIET] * 60)
    assert found[:60] == [0] * 60
    assert set(found[65:]) == {2}


def test_it_follows_a_talker_who_moves():
    found = chosen([QUIET] * 60 + [[0.1, 0.3, 0.1]] * 40 + [QUIET] * 40 + [[0.3, 0.1, 0.1]] * 40)
    assert found[90] == 1
    assert found[-1] == 0


def test_a_beam_that_is_always_loud_is_not_a_talker():
    noisy = [[0.01, 0.5, 0.01]] * 200 + [[0.2, 0.52, 0.1]] * 40
    assert chosen(noisy)[-1] == 0


def test_beams_that_are_hardly_better_do_not_take_over():
    found = chosen([QUIET] * 60 + [[0.30, 0.10, 0.10]] * 20 + [[0.30, 0.31, 0.10]] * 40)
    assert set(found) == {0}


def test_silence_changes_nothing():
    assert set(chosen([[0.0, 0.0]] * 50)) == {0}


@pytest.mark.parametrize("wrong", [{"smoothing": 0.0}, {"band_hertz": (500.0, 500.0)}])
def test_refuses_impossible_settings(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SelectionConfig(**wrong)
