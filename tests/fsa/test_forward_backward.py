"""Forward-backward equals the enumeration of paths, finite differences and k2."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fsa.lattices import lattice_from_arcs
from toolkit.fsa import forward_backward
from toolkit.fsa.forward_backward import expected_sums, pack, pdf_posteriors, total_scores

CPU = torch.device("cpu")


def random_lattice(seed, frames, width, parallel=2):
    """Random arcs between the states of neighbouring frames; some are dead ends."""
    g = torch.Generator().manual_seed(seed)
    layers = [[0], *(range(1 + t * width, 1 + (t + 1) * width) for t in range(frames))]
    arcs = []
    for t in range(frames):
        for a in layers[t]:
            for _ in range(parallel):
                b = layers[t + 1][int(torch.randint(width, (), generator=g))]
                arcs.append((a, b, 1, 0, 3 * float(torch.randn((), generator=g))))
    end = 0
    while end not in layers[-1]:
        end = next(b for a, b, *_ in arcs if a == end)
    finals = {end, layers[-1][0]}  # the second perhaps at the end of no path
    return lattice_from_arcs(arcs, sorted(finals), [t for t, x in enumerate(layers) for _ in x])


def random_batch(seed, sizes=((4, 3), (1, 2), (6, 2))):
    return [random_lattice(seed + n, *size) for n, size in enumerate(sizes)]


def random_values(seed, lattices):
    size = sum(x.num_arcs for x in lattices)
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()


def sums_over_paths(lattices, scores, values):
    """Total score and expected sum of each lattice, by enumeration of its paths."""
    totals, sums, first = [], [], 0
    for x in lattices:
        arcs = list(zip(x.source.tolist(), x.target.tolist(), strict=True))
        whole, open_paths = [], [(0, [])]
        while open_paths:
            state, path = open_paths.pop()
            if state == x.num_states - 1:
                whole.append(path)
            open_paths += [(b, [*path, first + k]) for k, (a, b) in enumerate(arcs) if a == state]
        score = torch.stack([scores[path].sum() for path in whole])
        value = torch.stack([values[path].sum() for path in whole])
        totals.append(score.logsumexp(0))
        sums.append((score.softmax(0) * value).sum())
        first += x.num_arcs
    return torch.stack(totals), torch.stack(sums)


@pytest.fixture(params=["compiled", "by_frame"])
def recursion(request, monkeypatch):
    """Run the test with both recursions: the CPU's and, on the CPU, that of other devices."""
    monkeypatch.setattr(forward_backward, "runs_compiled", lambda _: request.param == "compiled")


def with_gradients(function, scores):
    scores = scores.detach().requires_grad_()
    results = function(scores)
    values_and_gradients = []
    for result in results:
        weighted = result * torch.arange(1, 1 + len(result))  # which utterance's gradient is which
        (gradient,) = torch.autograd.grad(weighted.sum(), scores, retain_graph=True)
        values_and_gradients.append((result.detach(), gradient))
    return values_and_gradients


@pytest.mark.parametrize("seed", range(5))
def test_sums_and_gradients_are_those_of_all_paths(recursion, seed):
    lattices = random_batch(seed)
    packed, values = pack(lattices, CPU), random_values(seed, lattices)
    expected = with_gradients(lambda x: sums_over_paths(lattices, x, values), packed.scores)
    computed = with_gradients(
        lambda x: (total_scores(packed, x), expected_sums(packed, x, values)), packed.scores
    )
    for (value, gradient), (expected_value, expected_gradient) in zip(
        computed, expected, strict=True
    ):
        assert value.dtype == torch.float64
        torch.testing.assert_close(value, expected_value, atol=1e-10, rtol=0)
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=0)
        assert expected_gradient.abs().max() > 1e-2


def test_gradients_equal_finite_differences(recursion):
    lattices = random_batch(11)
    packed, values = pack(lattices, CPU), random_values(11, lattices)
    scores = packed.scores.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: total_scores(packed, x), scores)
    assert torch.autograd.gradcheck(lambda x: expected_sums(packed, x, values), scores)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6)), min_size=1, max_size=5),
    spread=st.sampled_from([0.1, 1.0, 30.0, 1000.0]),
)
def test_both_recursions_agree(seed, sizes, spread):
    lattices = random_batch(seed, sizes)
    packed, values = pack(lattices, CPU), random_values(seed, lattices)
    scores = packed.scores * spread

    def run(compiled):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forward_backward, "runs_compiled", lambda _: compiled)
            return with_gradients(
                lambda x: (total_scores(packed, x), expected_sums(packed, x, values)), scores
            )

    for compiled, fallback in zip(run(True), run(False), strict=True):
        for a, b in zip(compiled, fallback, strict=True):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


def test_posteriors_of_a_frame_sum_to_one(recursion):
    lattices = random_batch(2, [(200, 5), (120, 4)])
    packed = pack(lattices, CPU)
    scores = (50 * packed.scores).requires_grad_()
    (posterior,) = torch.autograd.grad(total_scores(packed, scores).sum(), scores)
    for n, frames in enumerate((200, 120)):
        of_frame = torch.zeros(frames, dtype=torch.float64)
        in_utterance = packed.utterance[packed.emitting] == n
        of_frame.index_add_(0, packed.frame[in_utterance], posterior[packed.emitting[in_utterance]])
        torch.testing.assert_close(of_frame, torch.ones_like(of_frame), atol=1e-9, rtol=0)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_scores_that_are_not_finite(recursion, bad):
    """NaN affects its utterance alone; an arc of score -inf counts as absent."""
    lattices = random_batch(3, [(3, 2), (3, 2)])
    packed, values = pack(lattices, CPU), random_values(3, lattices)
    scores = packed.scores.clone()
    scores[0] = bad
    remaining = [lattices[0].select_arcs(lattices[0].graph_arc > 0), lattices[1]]
    packed_remaining = pack(remaining, CPU)
    expected = expected_sums(packed_remaining, packed_remaining.scores, values[1:])
    sums = expected_sums(packed, scores.requires_grad_(), values)
    (gradient,) = torch.autograd.grad(sums.sum(), scores)
    if math.isnan(bad):
        assert sums.isnan().tolist() == [True, False]
    else:
        torch.testing.assert_close(sums, expected)
        assert gradient[0] == 0
        assert gradient.isfinite().all()
    assert sums[1] == expected[1]


def test_posteriors_equal_k2(recursion):
    pytest.importorskip("k2")
    from toolkit.fsa.k2_engine import total_scores_and_posteriors

    lattices = random_batch(5, [(40, 6), (25, 3), (7, 9)])
    packed = pack(lattices, CPU)
    total, posterior = total_scores_and_posteriors(lattices)
    scores = packed.scores.clone().requires_grad_()
    computed_total = total_scores(packed, scores)
    torch.testing.assert_close(computed_total, total, atol=1e-9, rtol=0)
    (gradient,) = torch.autograd.grad(computed_total.sum(), scores)
    torch.testing.assert_close(gradient, posterior, atol=1e-9, rtol=0)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3))
def test_posteriors_of_pdfs_by_enumeration(seed, frames, pdfs):
    lattice = random_lattice(seed, frames, width=3)
    emitting = lattice.labels > 0
    rng = np.random.default_rng(seed)
    lattice.labels[emitting] = rng.integers(1, 1 + pdfs, emitting.sum())
    scores = torch.from_numpy(lattice.scores).double()
    posteriors = torch.zeros(frames, pdfs, dtype=torch.float64)
    frame_ids, pdf_ids, weights = pdf_posteriors(lattice)
    posteriors[frame_ids, pdf_ids] = weights
    assert len({*zip(frame_ids.tolist(), pdf_ids.tolist(), strict=True)}) == len(frame_ids)
    for frame in range(frames):
        for pdf in range(pdfs):
            is_selected = emitting & (lattice.frame == frame) & (lattice.labels == pdf + 1)
            values = torch.from_numpy(is_selected).double()
            expected = sums_over_paths([lattice], scores, values)[1]
            assert float(posteriors[frame, pdf]) == pytest.approx(float(expected), abs=1e-9)
