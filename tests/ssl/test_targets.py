import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from toolkit.ssl.targets import KBest, TargetError, k_best


def logits(frames=40, senones=50, scale=4.0, seed=0):
    return torch.randn(frames, senones, generator=torch.Generator().manual_seed(seed)) * scale


def test_all_logits_give_the_full_posteriors():
    x = logits()
    rebuilt = k_best(x, 50).rebuild(50).softmax(dim=-1)
    full = x.double().softmax(dim=-1)
    # a log posterior of -l is stored to 2^-11 of l, so p to a relative 2^-11 of l
    bound = full * (full.log().abs() + 1) * 2**-10
    assert bool(((rebuilt - full).abs() <= bound).all())
    assert torch.equal(k_best(x, 99).rebuild(50), k_best(x, 50).rebuild(50))


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 1000), st.floats(0.1, 8))
def test_k_best_equals_sorting_in_float64(k, seed, scale):
    x = logits(6, 12, scale, seed)
    best = k_best(x, k)
    full = x.double().log_softmax(dim=-1).numpy()
    for frame in range(6):
        order = sorted(range(12), key=lambda s: -full[frame, s])[:k]
        assert best.ids[frame].tolist() == order
        log_posteriors = full[frame, order]
        np.testing.assert_allclose(best.logits[frame], log_posteriors, rtol=2**-10, atol=1e-3)
        tail = np.exp(np.delete(full[frame], order)).sum()
        assert best.tail[frame] == pytest.approx(tail, rel=0.01, abs=1e-6)


def test_missing_senones_get_no_probability_and_the_ratios_of_the_others_stay():
    x = logits()
    best = k_best(x, 5)
    rebuilt = best.rebuild(50).softmax(dim=-1)
    ids = torch.from_numpy(best.ids.astype(np.int64))
    k_best_posteriors = x.softmax(dim=-1).gather(1, ids)
    expected = k_best_posteriors / k_best_posteriors.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(rebuilt.gather(1, ids), expected, rtol=0.01, atol=1e-4)
    assert float(rebuilt.sum()) == pytest.approx(40, rel=1e-5)
    assert int((rebuilt > 0).sum()) <= 40 * 5


def test_cross_entropy_over_k_best_equals_that_over_all_senones():
    best, student = k_best(logits(), 7), logits(seed=1).log_softmax(dim=-1)
    whole = functional.cross_entropy(student, best.rebuild(50).softmax(dim=-1), reduction="none")
    ids = torch.from_numpy(best.ids.astype(np.int64))
    few = -(best.probabilities() * student.gather(1, ids)).sum(dim=-1)
    torch.testing.assert_close(few, whole)


def test_every_bit_comes_back_and_a_frame_has_82_bytes():
    best = k_best(logits(), 20)
    packed = best.pack()
    again = KBest.unpack(packed)
    assert packed.dtype == np.uint16
    assert packed.nbytes == 40 * 82
    assert len(again) == 40
    assert again.k == 20
    for name in ("ids", "logits", "log_tail"):
        original, stored = getattr(best, name), getattr(again, name)
        assert original.dtype == stored.dtype
        assert original.tobytes() == stored.tobytes()


def test_a_shift_of_the_logits_changes_nothing():
    x = logits()
    best, shifted = k_best(x, 5), k_best(x + 300.0, 5)
    assert np.array_equal(best.ids, shifted.ids)
    np.testing.assert_allclose(best.logits, shifted.logits, rtol=2**-9, atol=1e-3)


def test_no_frames_give_empty_targets():
    best = k_best(torch.zeros(0, 50), 20)
    assert best.pack().shape == (0, 41)
    assert best.rebuild(50).shape == (0, 50)


def test_invalid_targets_are_refused():
    with pytest.raises(TargetError, match="16-bit"):
        k_best(torch.zeros(1, 70000), 20)
    with pytest.raises(TargetError, match="k is 0"):
        k_best(logits(), 0)
    with pytest.raises(TargetError, match="finite"):
        k_best(torch.full((1, 4), float("nan")), 2)
    with pytest.raises(TargetError, match="senone"):
        k_best(logits(), 50).rebuild(20)
    with pytest.raises(TargetError, match="cannot contain targets"):
        KBest.unpack(np.zeros((3, 4), np.uint16))
