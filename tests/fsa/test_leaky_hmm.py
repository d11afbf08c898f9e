"""Forward-backward with a leaky HMM equals the enumeration of paths and k2."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fsa.chains import random_denominator, sum_over_paths
from toolkit.fsa.lfmmi import leaky_forward_backward


def random_scores(seed, rows, frames, pdfs=3):
    g = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, frames, pdfs, dtype=torch.float64, generator=g)


@pytest.mark.parametrize("leak", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(2))
def test_sums_over_all_paths(seed, leak):
    hmm, lengths = random_denominator(seed, states=2), torch.tensor([3, 2, 1])
    scores = random_scores(seed, 3, 3)
    totals, posteriors = leaky_forward_backward(hmm, scores, lengths, leak)
    for n, length in enumerate(lengths.tolist()):
        row = scores[n, :length].clone().requires_grad_()
        expected = sum_over_paths(hmm, row, leak)
        torch.testing.assert_close(totals[n], expected.detach(), rtol=1e-12, atol=1e-12)
        (gradient,) = torch.autograd.grad(expected, row)
        torch.testing.assert_close(posteriors[n, :length], gradient, rtol=1e-10, atol=1e-12)
        assert not posteriors[n, length:].any()


@given(st.integers(0, 1000), st.integers(1, 20), st.floats(0, 1))
@settings(max_examples=20)
def test_posteriors_add_up_to_one_in_either_precision(seed, rows, leak):
    hmm = random_denominator(seed, states=7, pdfs=4)
    lengths = torch.from_numpy(np.random.default_rng(seed).integers(1, 9, rows))
    scores = random_scores(seed, rows, int(lengths.max()), pdfs=4)
    totals, posteriors = leaky_forward_backward(hmm, scores, lengths, leak)
    real = torch.arange(scores.shape[1]) < lengths[:, None]
    torch.testing.assert_close(posteriors.sum(2), real.double())
    single = leaky_forward_backward(hmm, scores.float(), lengths, leak)
    torch.testing.assert_close(single[0], totals, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(single[1].double(), posteriors, rtol=1e-3, atol=1e-5)
    assert single[1].dtype == torch.float32


def test_padding_and_a_constant_added_to_a_frame_do_not_matter():
    hmm, lengths = random_denominator(5), torch.tensor([6, 3])
    scores = random_scores(5, 2, 6)
    totals, posteriors = leaky_forward_backward(hmm, scores, lengths, 0.1)
    moved = scores + torch.arange(6.0)[:, None] * 300
    moved[1, 3:] = 1e4
    shifted_totals, shifted_posteriors = leaky_forward_backward(hmm, moved, lengths, 0.1)
    torch.testing.assert_close(shifted_posteriors, posteriors)
    torch.testing.assert_close(shifted_totals - totals, torch.tensor([4500.0, 900.0]).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_pdf_that_no_state_reads_does_not_matter_however_high_it_is(dtype):
    hmm, lengths = random_denominator(8, pdfs=3), torch.tensor([6, 3])
    hmm = replace(hmm, pdf=hmm.pdf + 1)
    scores = random_scores(8, 2, 6, pdfs=5).to(dtype)
    totals, posteriors = leaky_forward_backward(hmm, scores, lengths, 1e-5)
    scores[:, :, [0, 4]] += 2000
    shifted_totals, shifted_posteriors = leaky_forward_backward(hmm, scores, lengths, 1e-5)
    assert torch.isfinite(shifted_totals).all()
    torch.testing.assert_close(shifted_totals, totals)
    torch.testing.assert_close(shifted_posteriors, posteriors)
    assert not shifted_posteriors[:, :, [0, 4]].any()


def test_results_do_not_depend_on_the_number_of_threads():
    hmm, lengths = random_denominator(6, states=300), torch.full((50,), 12)
    scores = random_scores(6, 50, 12).float()
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = leaky_forward_backward(hmm, scores, lengths, 0.1)
        torch.set_num_threads(4)
        threaded = leaky_forward_backward(hmm, scores, lengths, 0.1)
    finally:
        torch.set_num_threads(num_threads)
    assert torch.equal(single[0], threaded[0])
    assert torch.equal(single[1], threaded[1])


def test_without_leaks_totals_and_posteriors_equal_k2():
    k2 = pytest.importorskip("k2")
    from toolkit.fsa.fst import fst_from_arcs
    from toolkit.fsa.k2_engine import to_k2

    hmm, lengths = random_denominator(7, states=12, pdfs=5), torch.tensor([9, 9, 5])
    scores = random_scores(7, 3, 9, pdfs=5).float()
    totals, posteriors = leaky_forward_backward(hmm, scores, lengths, 0.0)
    arcs = [
        (0, s + 1, int(hmm.pdf[s]) + 1, 0, float(np.log(w)))
        for s, w in enumerate(hmm.begin)
        if w > 0
    ]
    columns = (hmm.source + 1, hmm.target + 1, hmm.pdf[hmm.target] + 1)
    table = zip(*(x.tolist() for x in columns), np.log(hmm.weight).tolist(), strict=True)
    arcs += [(a, b, label, 0, w) for a, b, label, w in table]
    graph = to_k2(fst_from_arcs(arcs, range(1, 13)))
    padded = torch.cat([torch.full((3, 9, 1), -1e10), scores], 2).requires_grad_()
    segments = torch.tensor([[n, 0, t] for n, t in enumerate(lengths.tolist())], dtype=torch.int32)
    k2_lattices = k2.intersect_dense(
        k2.create_fsa_vec([graph] * 3), k2.DenseFsaVec(padded, segments), output_beam=1e4
    )
    expected = k2_lattices.get_tot_scores(log_semiring=True, use_double_scores=True)
    torch.testing.assert_close(totals, expected.detach(), rtol=1e-5, atol=1e-4)
    (gradient,) = torch.autograd.grad(expected.sum(), padded)
    torch.testing.assert_close(posteriors, gradient[:, :, 1:], rtol=1e-3, atol=1e-5)
