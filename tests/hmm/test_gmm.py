import itertools
import math

import pytest
import torch
from safetensors.torch import save_file

from toolkit.hmm.gmm import Gmm, GmmError, GmmStatistics


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


def exact_posteriors(gmm: Gmm, x: torch.Tensor, pdfs: torch.Tensor):
    """In float64: posteriors [T, G] of the Gaussians, and the sum of the log-likelihoods."""
    normal = torch.distributions.Normal(gmm.means.double(), gmm.variances.double().sqrt())
    scores = gmm.weights.double().log() + normal.log_prob(x.double()[:, None]).sum(2)
    scores = scores.masked_fill(gmm.owner != pdfs[:, None], -torch.inf)
    return scores.softmax(1), float(scores.logsumexp(1).sum())


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
    statistics = GmmStatistics.zeros(6, 4)
    gmm.accumulate(x[:11], pdfs[:11], statistics)
    second_part = GmmStatistics.zeros(6, 4)
    gmm.accumulate(x[11:], pdfs[11:], second_part)
    statistics.add(second_part)
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


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_sums_of_many_frames_are_those_of_float64(gmm, offset):
    frames_per_pdf = 20_000  # float32 adds up less and less of each
    x = torch.randn(3 * frames_per_pdf, 4, generator=torch.Generator().manual_seed(3)) + offset
    pdfs = torch.arange(len(x)) % 3
    gmm = Gmm(gmm.owner, gmm.weights, gmm.means + offset, gmm.variances)
    statistics = GmmStatistics.zeros(6, 4)
    gmm.accumulate(x, pdfs, statistics)
    posteriors, likelihood = exact_posteriors(gmm, x, pdfs)
    exact = {"rtol": 2e-5, "atol": 1e-2}
    torch.testing.assert_close(statistics.occupancy, posteriors.sum(0), **exact)
    torch.testing.assert_close(statistics.first, posteriors.T @ x.double(), **exact)
    torch.testing.assert_close(statistics.second, posteriors.T @ x.double() ** 2, **exact)
    assert statistics.log_likelihood == pytest.approx(likelihood, rel=1e-5)


def test_em_never_lowers_the_likelihood(gmm):
    x = frames(400)
    pdfs = torch.arange(400) % 3
    likelihoods = []
    for _ in range(8):
        statistics = GmmStatistics.zeros(gmm.num_gaussians, 4)
        gmm.accumulate(x, pdfs, statistics)
        likelihoods.append(statistics.log_likelihood)
        gmm = gmm.maximise(statistics, 0.0, torch.full((4,), 1e-4))
    assert all(later >= earlier - 1e-2 for earlier, later in itertools.pairwise(likelihoods))
    assert likelihoods[-1] > likelihoods[0] + 10


def test_starved_gaussians_are_removed_but_every_pdf_keeps_one(gmm):
    x = frames(40)
    statistics = GmmStatistics.zeros(6, 4)
    gmm.accumulate(x, torch.zeros(40, dtype=torch.long), statistics)  # pdfs 1 and 2 never seen
    updated = gmm.maximise(statistics, 3.0, torch.full((4,), 1e-4))
    assert updated.owner.tolist() == [0, 1, 2]
    torch.testing.assert_close(updated.means[0], x.mean(0), atol=1e-4, rtol=1e-4)
    assert torch.isfinite(updated.log_likelihoods(x)).all()


def test_variances_are_floored(gmm):
    x = torch.zeros(20, 4)
    statistics = GmmStatistics.zeros(6, 4)
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
    loaded = Gmm.load(tmp_path / "gmm.safetensors")
    assert torch.equal(loaded.log_likelihoods(frames()), gmm.log_likelihoods(frames()))


@pytest.mark.parametrize(
    ("name", "value"), [("variances", 1e-44), ("weights", 0.0), ("means", 1e38)]
)
def test_mixtures_whose_densities_are_no_numbers_are_refused(tmp_path, name, value):
    path = tmp_path / "gmm.safetensors"
    tensors = {"weights": torch.ones(2), "means": torch.ones(2, 3), "variances": torch.ones(2, 3)}
    save_file({"owner": torch.arange(2), **tensors}, path)
    Gmm.load(path)
    tensors[name].view(-1)[1] = value
    save_file({"owner": torch.arange(2), **tensors}, path)
    with pytest.raises(GmmError, match=r"gmm\.safetensors"):
        Gmm.load(path)


def test_scores_of_some_pdfs_equal_those_among_all(gmm):
    x = frames()
    pdfs = torch.tensor([2, 0, 1, 0])
    torch.testing.assert_close(gmm.log_likelihoods(x, pdfs), gmm.log_likelihoods(x)[:, pdfs])
    assert gmm.log_likelihoods(x[:0], pdfs).shape == (0, 4)


def test_scores_do_not_depend_on_the_memory_bound(gmm, monkeypatch):
    x = frames()
    whole = gmm.log_likelihoods(x)
    monkeypatch.setattr("toolkit.hmm.gmm.MAX_SCORES", 40)
    torch.testing.assert_close(gmm.log_likelihoods(x), whole)
    torch.testing.assert_close(gmm.log_likelihoods(x, torch.tensor([1, 2])), whole[:, 1:])


def test_posteriors_are_sorted_by_pdf_and_time(gmm):
    x = frames(9)
    pdfs = torch.tensor([2, 0, 2, 0, 0, 2, 2, 2, 0])  # no frame of pdf 1
    blocks = list(gmm.posteriors(x, pdfs))
    assert [b.gaussians for b in blocks] == [slice(0, 1), slice(3, 6)]
    for pdf, block in zip((0, 2), blocks, strict=True):
        assert torch.equal(block.x, x[pdfs == pdf])
        torch.testing.assert_close(block.posteriors.sum(1), torch.ones(len(block.x)))
        torch.testing.assert_close(
            block.log_likelihoods[:, 0], gmm.log_likelihoods(x)[pdfs == pdf, pdf]
        )


def test_no_frames_leave_the_statistics_unchanged(gmm):
    statistics = GmmStatistics.zeros(6, 4)
    gmm.accumulate(frames(0), torch.zeros(0, dtype=torch.long), statistics)
    assert statistics.frames == 0
    assert statistics.log_likelihood == 0.0


def test_from_moments_has_the_moments_of_the_frames():
    x = frames(60).double()
    pdfs = torch.arange(60) % 2 * 2  # no frame of pdf 1
    count = torch.bincount(pdfs)
    first, second = (torch.zeros(3, 4).double().index_add_(0, pdfs, y) for y in (x, x**2))
    gmm = Gmm.from_moments(count, first, second, torch.tensor([0.0, 0.0, 0.0, 50.0]))
    assert gmm.owner.tolist() == [0, 1, 2]
    for pdf, pdf_frames in ((0, x[pdfs == 0]), (1, x), (2, x[pdfs == 2])):
        torch.testing.assert_close(gmm.means[pdf], pdf_frames.mean(0).float())
        torch.testing.assert_close(
            gmm.variances[pdf, :3], pdf_frames[:, :3].var(0, unbiased=False).float()
        )
    assert gmm.variances[:, 3].tolist() == [50.0] * 3


def test_split_gives_no_pdf_more_gaussians_than_its_frames_carry(gmm):
    # By power 0.25 alone pdf 1 stays below its six; with what pdf 0 may not have it does not.
    grown = gmm.split(48, torch.tensor([25.0, 62.0, 100_000.0]).double(), min_count=10)
    assert torch.bincount(grown.owner).tolist() == [2, 6, 40]
    scarce = gmm.split(40, torch.tensor([1.0, 20.0, 40.0]).double(), min_count=10)
    assert torch.bincount(scarce.owner).tolist() == [1, 2, 4]


def test_transformed_means_score_frames_like_transformed_frames(gmm):
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(3))).Q
    gmm = Gmm(gmm.owner, gmm.weights, gmm.means, torch.ones(6, 4))  # round: rotations keep them
    moved = gmm.transform_means(rotation.double())
    assert moved.means.dtype == torch.float32
    assert torch.equal(moved.variances, gmm.variances)
    x = frames()
    torch.testing.assert_close(
        moved.log_likelihoods(x @ rotation.T), gmm.log_likelihoods(x), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("distance", [1.0, 12.0, 14.0, 100.0])
def test_gaussians_far_from_a_frame_are_summed_as_in_float64(distance):
    # Log-densities 0.5, 72, 98 and 5000 below the nearest: the last two underflow in float32.
    means = torch.tensor([[0.0, 0.0], [distance, 0.0], [0.0, 0.0]])
    weights = torch.tensor([0.25, 0.75, 1.0])
    gmm = Gmm(torch.tensor([0, 0, 1]), weights, means, torch.ones(3, 2))
    x = torch.tensor([[0.0, 0.0], [distance, 1.0]])
    squares = ((x[:, None] - means) ** 2).sum(2).double()
    densities = weights.double().log() - 0.5 * squares - math.log(2 * math.pi)
    expected = torch.stack([densities[:, :2].logsumexp(1), densities[:, 2]], dim=1)
    torch.testing.assert_close(gmm.log_likelihoods(x).double(), expected, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 130])
def test_sums_near_and_far_from_a_whole_number_of_blocks(gmm, count):
    gmm.means[4] += 50  # more than float32 can tell beside the others
    gmm = Gmm(gmm.owner, gmm.weights, gmm.means, gmm.variances)
    x, pdfs = frames(3 * count), torch.arange(3).repeat(count)
    statistics = GmmStatistics.zeros(6, 4)
    gmm.accumulate(x, pdfs, statistics)
    posteriors, _ = exact_posteriors(gmm, x, pdfs)
    torch.testing.assert_close(statistics.occupancy, posteriors.sum(0), rtol=1e-4, atol=1e-4)
    expected = posteriors.T @ x.double() ** 2
    torch.testing.assert_close(statistics.second, expected, rtol=1e-4, atol=1e-3)


def test_mismatched_shapes_are_refused(gmm):
    x, pdfs, fitting = frames(4), torch.arange(4) % 3, GmmStatistics.zeros(6, 4)
    for frame_count, labels, into in (
        (3, pdfs, fitting),
        (4, pdfs + 1, fitting),
        (4, pdfs, GmmStatistics.zeros(5, 4)),
        (4, pdfs, GmmStatistics.zeros(6, 3)),
    ):
        with pytest.raises(ValueError, match="do not match"):
            gmm.accumulate(x[:frame_count], labels, into)
    with pytest.raises(ValueError, match="do not match"):
        gmm.accumulate(x[:, :3], pdfs, fitting)


def test_a_likelihood_that_is_no_number_is_an_error(gmm):
    x, pdfs = frames(4), torch.zeros(4, dtype=torch.long)
    x[2, 1] = torch.nan
    with pytest.raises(GmmError, match="features or mixtures are damaged"):
        gmm.accumulate(x, pdfs, GmmStatistics.zeros(6, 4))
    means = gmm.means.clone()
    means[2, 0] = torch.nan
    damaged = Gmm(gmm.owner, gmm.weights, means, gmm.variances)
    with pytest.raises(GmmError, match="features or mixtures are damaged"):
        damaged.accumulate(frames(4), pdfs + 1, GmmStatistics.zeros(6, 4))
