import pickle

import pytest
import scipy.optimize
import torch

from toolkit.hmm.gmm import Gmm
from toolkit.hmm.transforms import (
    MlltError,
    MlltStatistics,
    estimate_mllt,
    mllt_objective,
    update_mllt_row,
)


def model(dimension=3, seed=1):
    """A model of two pdfs, with one Gaussian and three."""
    generator = torch.Generator().manual_seed(seed)
    owner, weights = torch.tensor([0, 1, 1, 1]), torch.tensor([1.0, 0.2, 0.5, 0.3])
    means = torch.randn(4, dimension, generator=generator)
    return Gmm(owner, weights, means, 0.5 + torch.rand(4, dimension, generator=generator))


def frames(count=300, dimension=3, seed=2):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dimension, dimension, generator=generator)
    x = torch.randn(count, dimension, generator=generator) @ mixing
    return x, torch.randint(2, (count,), generator=generator)


def statistics_of(gmm, x, pdfs):
    statistics = MlltStatistics.zeros(x.shape[1])
    statistics.accumulate(gmm, x, pdfs)
    return statistics


def test_statistics_equal_the_written_out_sum():
    gmm, (x, pdfs) = model(), frames(20)
    expected = torch.zeros(3, 3, 3, dtype=torch.float64)
    for t in range(20):
        members = [g for g in range(4) if gmm.owner[g] == pdfs[t]]
        normal = torch.distributions.Normal(gmm.means[members], gmm.variances[members].sqrt())
        scores = gmm.weights[members].log() + normal.log_prob(x[t]).sum(1)
        for g, posterior in zip(members, scores.softmax(0), strict=True):
            offset = (x[t] - gmm.means[g]).double()
            for d in range(3):
                expected[d] += posterior / gmm.variances[g, d] * torch.outer(offset, offset)
    statistics = statistics_of(gmm, x, pdfs)
    torch.testing.assert_close(statistics.scatter, expected, rtol=1e-5, atol=1e-5)
    assert statistics.beta == 20


def test_parts_merge_and_pickle():
    gmm, (x, pdfs) = model(), frames()
    whole, merged = statistics_of(gmm, x, pdfs), statistics_of(gmm, x[:100], pdfs[:100])
    merged.add(pickle.loads(pickle.dumps(statistics_of(gmm, x[100:], pdfs[100:]))))
    torch.testing.assert_close(merged.scatter, whole.scatter, rtol=1e-5, atol=1e-5)
    assert merged.beta == 300


def test_each_row_update_reaches_a_local_maximum_of_the_objective():
    statistics = statistics_of(model(), *frames())
    inverses = torch.linalg.inv(statistics.scatter)
    matrix = torch.eye(3, dtype=torch.float64)
    objective = mllt_objective(statistics, matrix)
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        d = step % 3
        update_mllt_row(matrix, d, inverses[d], statistics.beta)
        previous, objective = objective, mllt_objective(statistics, matrix)
        assert objective >= previous - 1e-9
        for _ in range(10):
            changed = matrix.clone()
            changed[d] += 1e-3 * torch.randn(3, generator=generator)
            assert mllt_objective(statistics, changed) < objective


def test_equals_a_numeric_optimiser():
    statistics = statistics_of(model(), *frames())
    matrix, gain = estimate_mllt(statistics)
    start = mllt_objective(statistics, torch.eye(3, dtype=torch.float64))
    best = scipy.optimize.minimize(
        lambda m: -mllt_objective(statistics, torch.from_numpy(m).view(3, 3)) / statistics.beta,
        torch.eye(3, dtype=torch.float64).flatten().numpy(),
    )
    assert gain == pytest.approx(-best.fun - start / statistics.beta, abs=1e-6)
    assert gain > 0.01
    torch.testing.assert_close(matrix.flatten(), torch.from_numpy(best.x), atol=1e-3, rtol=1e-3)


def test_finds_the_known_axes():
    generator = torch.Generator().manual_seed(4)
    pdfs = torch.arange(20_000) % 6
    deviations = 0.3 + 2 * torch.rand(6, 4, generator=generator)
    source = deviations[pdfs] * torch.randn(20_000, 4, generator=generator)
    mixing = torch.eye(4) + 0.6 * torch.randn(4, 4, generator=generator)
    x, total, floor = source @ mixing.T, torch.eye(4).double(), torch.full((4,), 1e-4)
    for _ in range(15):
        y = (x.double() @ total.T).float()
        count = torch.bincount(pdfs).double()
        first, second = (
            torch.zeros(6, 4).double().index_add_(0, pdfs, z.double()) for z in (y, y**2)
        )
        gmm = Gmm.from_moments(count, first, second, floor)
        matrix, gain = estimate_mllt(statistics_of(gmm, y, pdfs))
        assert gain > -1e-12
        total = matrix @ total
    assert gain < 1e-3
    unmixed = (total.float() @ mixing).abs()
    unmixed = unmixed / unmixed.amax(1, keepdim=True)
    assert sorted(unmixed.argmax(1).tolist()) == [0, 1, 2, 3]
    assert unmixed.sort(1).values[:, -2].max() < 0.1  # a single large entry in every row


def test_refuses_too_few_frames():
    with pytest.raises(MlltError, match="29 frames"):
        estimate_mllt(statistics_of(model(), *frames(29)))
    x, pdfs = frames()
    x[:, 2] = model().means[0, 2]
    with pytest.raises(MlltError):
        estimate_mllt(statistics_of(model(), x[pdfs == 0], pdfs[pdfs == 0]))
