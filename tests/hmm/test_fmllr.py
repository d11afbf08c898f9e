import pickle

import numpy as np
import pytest
import torch

from toolkit.features.gmm_features import apply_affine
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.transforms import (
    FmllrStatistics,
    estimate_fmllr,
    fmllr_objective,
    update_fmllr_row,
)


def single(pdfs=12, dimension=3, seed=1):
    """A model of one Gaussian per pdf: posteriors do not depend on the features."""
    generator = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(pdfs, dimension, generator=generator)
    variances = 0.3 + torch.rand(pdfs, dimension, generator=generator)
    return Gmm(torch.arange(pdfs), torch.ones(pdfs), means, variances)


def sampled(gmm, count=4000, seed=2):
    """Frames of a model of single Gaussians, and their pdfs."""
    generator = torch.Generator().manual_seed(seed)
    pdfs = torch.randint(gmm.num_pdfs, (count,), generator=generator)
    noise = torch.randn(count, gmm.means.shape[1], generator=generator)
    return gmm.means[pdfs] + gmm.variances[pdfs].sqrt() * noise, pdfs


def distortion(dimension=3, seed=3):
    """An affine transform [D, D+1] near the identity."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(dimension, dimension + 1, generator=generator).double()
    return torch.eye(dimension, dimension + 1).double() + 0.25 * noise


def distorted(gmm, transform):
    """Frames that the transform maps to frames of the model, and their pdfs."""
    y, pdfs = sampled(gmm)
    x = torch.linalg.solve(transform[:, :-1], (y.double() - transform[:, -1]).T).T
    return x.float(), pdfs


def statistics_of(gmm, x, pdfs):
    statistics = FmllrStatistics.zeros(x.shape[1])
    statistics.accumulate(gmm, x, pdfs)
    return statistics


def log_likelihood(gmm, x, pdfs, transform):
    """Differentiable log-likelihood of frames of single Gaussians, by definition."""
    y = x.double() @ transform[:, :-1].T + transform[:, -1]
    normal = torch.distributions.Normal(
        gmm.means[pdfs].double(), gmm.variances[pdfs].double().sqrt()
    )
    return normal.log_prob(y).sum() + len(x) * transform[:, :-1].det().abs().log()


def test_statistics_equal_the_written_out_sum():
    generator = torch.Generator().manual_seed(5)
    owner, weights = torch.tensor([0, 1, 1]), torch.tensor([1.0, 0.4, 0.6])
    means = torch.randn(3, 2, generator=generator)
    gmm = Gmm(owner, weights, means, 0.5 + torch.rand(3, 2, generator=generator))
    x, pdfs = torch.randn(15, 2, generator=generator), torch.arange(15) % 2
    linear = torch.zeros(2, 3, dtype=torch.float64)
    quadratic = torch.zeros(2, 3, 3, dtype=torch.float64)
    for t in range(15):
        members = [g for g in range(3) if owner[g] == pdfs[t]]
        normal = torch.distributions.Normal(gmm.means[members], gmm.variances[members].sqrt())
        scores = gmm.weights[members].log() + normal.log_prob(x[t]).sum(1)
        extended = torch.cat([x[t], torch.ones(1)]).double()
        for g, posterior in zip(members, scores.softmax(0), strict=True):
            for d in range(2):
                precision = posterior / gmm.variances[g, d]
                linear[d] += precision * gmm.means[g, d] * extended
                quadratic[d] += precision * torch.outer(extended, extended)
    statistics = statistics_of(gmm, x, pdfs)
    torch.testing.assert_close(statistics.linear, linear, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(statistics.quadratic, quadratic, rtol=1e-5, atol=1e-5)
    assert statistics.beta == 15


def test_the_objective_is_the_likelihood_up_to_a_constant():
    gmm = single()
    x, pdfs = sampled(gmm, 200)
    statistics = statistics_of(gmm, x, pdfs)
    first, second = distortion(seed=7), distortion(seed=8)
    difference = fmllr_objective(statistics, first) - fmllr_objective(statistics, second)
    expected = log_likelihood(gmm, x, pdfs, first) - log_likelihood(gmm, x, pdfs, second)
    assert difference == pytest.approx(float(expected), rel=1e-6)


def test_each_row_update_reaches_a_local_maximum_of_the_objective():
    gmm = single()
    statistics = statistics_of(gmm, *distorted(gmm, distortion()))
    inverses, linear = torch.linalg.inv(statistics.quadratic).numpy(), statistics.linear.numpy()
    transform = torch.eye(3, 4, dtype=torch.float64)
    square = np.eye(3)
    objective = fmllr_objective(statistics, transform)
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        d = step % 3
        update_fmllr_row(transform.numpy(), square, d, inverses[d], linear[d], statistics.beta)
        np.testing.assert_allclose(square @ transform.numpy()[:, :-1], np.eye(3), atol=1e-12)
        previous, objective = objective, fmllr_objective(statistics, transform)
        assert objective >= previous - 1e-9
        for _ in range(10):
            changed = transform.clone()
            changed[d] += 1e-3 * torch.randn(4, generator=generator)
            assert fmllr_objective(statistics, changed) < objective


def test_the_gradient_of_the_likelihood_vanishes_at_the_estimate():
    gmm = single()
    x, pdfs = distorted(gmm, distortion())
    transform, gain = estimate_fmllr(statistics_of(gmm, x, pdfs), iterations=100)
    variable = transform.clone().requires_grad_()
    (slope,) = torch.autograd.grad(log_likelihood(gmm, x, pdfs, variable) / len(x), variable)
    assert slope.abs().max() < 1e-5
    identity = torch.eye(3, 4, dtype=torch.float64)
    identity_log_likelihood = log_likelihood(gmm, x, pdfs, identity) / len(x)
    adapted_log_likelihood = log_likelihood(gmm, x, pdfs, transform) / len(x)
    assert gain == pytest.approx(float(adapted_log_likelihood - identity_log_likelihood), rel=1e-6)


def test_equals_a_generic_optimiser():
    gmm = single(dimension=2)
    x, pdfs = distorted(gmm, distortion(dimension=2))
    transform = torch.eye(2, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([transform], max_iter=200, line_search_fn="strong_wolfe")

    def loss():
        optimiser.zero_grad()
        value = -log_likelihood(gmm, x, pdfs, transform) / len(x)
        value.backward()
        return value

    optimiser.step(loss)
    estimated, _ = estimate_fmllr(statistics_of(gmm, x, pdfs))
    torch.testing.assert_close(estimated, transform.detach(), atol=1e-3, rtol=1e-3)


def test_undoes_a_known_distortion():
    gmm, true_transform = single(), distortion()
    x, pdfs = distorted(gmm, true_transform)
    estimated, gain = estimate_fmllr(statistics_of(gmm, x, pdfs))
    torch.testing.assert_close(estimated, true_transform, atol=0.05, rtol=0)
    assert gain > 0.1
    y = apply_affine(estimated, x)
    assert y.dtype == torch.float32
    residual_transform, residual_gain = estimate_fmllr(statistics_of(gmm, y, pdfs))
    torch.testing.assert_close(residual_transform, torch.eye(3, 4).double(), atol=1e-2, rtol=0)
    assert 0 <= residual_gain < 1e-4


def test_apply_affine_by_hand():
    transform = torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]])
    assert apply_affine(transform, torch.tensor([[10.0, 20.0]])).tolist() == [[53.0, -19.5]]


@pytest.mark.parametrize("fault", ["few frames", "no frames", "constant frames"])
def test_identity_where_the_frames_do_not_determine_a_transform(fault):
    gmm = single()
    x, pdfs = sampled(gmm, {"few frames": 499, "no frames": 0}.get(fault, 1000))
    if fault == "constant frames":
        x[:] = 0.0
    transform, gain = estimate_fmllr(statistics_of(gmm, x, pdfs))
    assert torch.equal(transform, torch.eye(3, 4, dtype=torch.float64))
    assert gain == 0.0


def test_parts_merge_and_pickle():
    gmm = single()
    x, pdfs = sampled(gmm, 300)
    whole, merged = statistics_of(gmm, x, pdfs), statistics_of(gmm, x[:100], pdfs[:100])
    merged.add(pickle.loads(pickle.dumps(statistics_of(gmm, x[100:], pdfs[100:]))))
    torch.testing.assert_close(merged.linear, whole.linear)
    torch.testing.assert_close(merged.quadratic, whole.quadratic)
    assert merged.beta == 300
