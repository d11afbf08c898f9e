import itertools
import math

import pytest
import torch

from toolkit.hmm.gmm import Gmm, Statistics


@pytest.fixture
def gmm() -> Gmm:
    generator = torch.Generator().manual_seed(1)
    owner = torch.tensor([0, 1, 1, 2, 2, 2])
    weights = torch.tensor([1.0, 0.3, 0.7, 0.2, 0.5, 0.3])
    means = torch.randn(6, 4, generator=generator)
    variances = 0.5 + torch.rand(6, 4, generator=generator)
    return Gmm(owner, weights, means, variances)


def frames(count: int = 50) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(2))


def density(gmm: Gmm, x: torch.Tensor, pdf: int) -> float:
    total = 0.0
    for g in range(gmm.num_gaussians):
        if int(gmm.owner[g]) == pdf:
            value = float(gmm.weights[g])
            for d in range(4):
                v, m = float(gmm.variances[g, d]), float(gmm.means[g, d])
                value *= math.exp(-((float(x[d]) - m) ** 2) / (2 * v)) / math.sqrt(2 * math.pi * v)
            total += value
    return total


def test_log_likelihoods_equal_the_written_out_density(gmm):
    x = frames(5)
    scores = gmm.log_likelihoods(x)
    assert scores.shape == (5, 3)
    for t in range(5):
        for pdf in range(3):
            assert float(scores[t, pdf]) == pytest.approx(
                math.log(density(gmm, x[t], pdf)), abs=1e-4
            )


def test_statistics_are_posterior_weighted_sums(gmm):
    x = frames(30)
    pdfs = torch.arange(30) % 3
    statistics = Statistics.zeros(6, 4)
    gmm.accumulate(x[:11], pdfs[:11], statistics)
    rest = Statistics.zeros(6, 4)
    gmm.accumulate(x[11:], pdfs[11:], rest)
    statistics.add(rest)
    occupancy, first = torch.zeros(6).double(), torch.zeros(6, 4).double()
    likelihood = 0.0
    for t in range(30):
        members = [g for g in range(6) if int(gmm.owner[g]) == int(pdfs[t])]
        densities = torch.distributions.Normal(gmm.means[members], gmm.variances[members].sqrt())
        scores = (gmm.weights[members].log() + densities.log_prob(x[t]).sum(1)).double()
        likelihood += float(scores.logsumexp(0))
        for g, posterior in zip(members, scores.softmax(0), strict=True):
            occupancy[g] += posterior
            first[g] += posterior * x[t]
    torch.testing.assert_close(statistics.occupancy, occupancy, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(statistics.first, first, atol=1e-4, rtol=1e-4)
    assert statistics.log_likelihood == pytest.approx(likelihood, rel=1e-5)
    assert statistics.frames == 30


def test_em_never_lowers_the_likelihood(gmm):
    x = frames(400)
    pdfs = torch.arange(400) % 3
    likelihoods = []
    for _ in range(8):
        statistics = Statistics.zeros(gmm.num_gaussians, 4)
        gmm.accumulate(x, pdfs, statistics)
        likelihoods.append(statistics.log_likelihood)
        gmm = gmm.maximise(statistics, 0.0, torch.full((4,), 1e-4))
    assert all(later >= earlier - 1e-2 for earlier, later in itertools.pairwise(likelihoods))
    assert likelihoods[-1] > likelihoods[0] + 10


def test_starved_gaussians_go_but_every_pdf_keeps_one(gmm):
    x = frames(40)
    statistics = Statistics.zeros(6, 4)
    gmm.accumulate(x, torch.zeros(40, dtype=torch.long), statistics)  # pdfs 1 and 2 never seen
    updated = gmm.maximise(statistics, 3.0, torch.full((4,), 1e-4))
    assert updated.owner.tolist() == [0, 1, 2]
    torch.testing.assert_close(updated.means[0], x.mean(0), atol=1e-4, rtol=1e-4)
    assert torch.isfinite(updated.log_likelihoods(x)).all()


def test_variances_are_floored(gmm):
    x = torch.zeros(20, 4)
    statistics = Statistics.zeros(6, 4)
    gmm.accumulate(x, torch.zeros(20, dtype=torch.long), statistics)
    updated = gmm.maximise(statistics, 3.0, torch.full((4,), 0.25))
    assert updated.variances[0].tolist() == [0.25] * 4


def test_split_follows_occupancy_and_keeps_weights_normalised(gmm):
    grown = gmm.split(30, torch.tensor([10.0, 1000.0, 1000.0]).double())
    counts = torch.bincount(grown.owner)
    assert 25 <= grown.num_gaussians <= 30
    assert counts[0] < counts[1] == counts[2]
    totals = torch.zeros(3).index_add_(0, grown.owner, grown.weights)
    torch.testing.assert_close(totals, torch.ones(3))
    pairs = (grown.means[:, None] - grown.means[None]).abs().sum(-1) + torch.eye(len(grown.owner))
    assert pairs.min() > 1e-3  # no two Gaussians alike


def test_save_and_load(gmm, tmp_path):
    gmm.save(tmp_path / "gmm.safetensors")
    again = Gmm.load(tmp_path / "gmm.safetensors")
    assert torch.equal(again.log_likelihoods(frames()), gmm.log_likelihoods(frames()))
