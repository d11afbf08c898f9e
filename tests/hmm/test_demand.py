import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.hmm.gmm import Gmm, GmmError, LazyGmmScores
from toolkit.hmm.gmm_kernels import demanded_score


def mixtures(sizes, dimension, seed, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    weights = torch.rand(len(owner), generator=generator) + 0.01
    weights /= torch.zeros(len(sizes)).index_add_(0, owner, weights)[owner]
    means = spread * torch.randn(len(owner), dimension, generator=generator)
    variances = torch.rand(len(owner), dimension, generator=generator) + 0.1
    return Gmm(owner, weights, means, variances)


def by_definition(gmm, x, pdf):
    """The log-density in float64."""
    of_pdf = gmm.owner == pdf
    normal = torch.distributions.Normal(
        gmm.means[of_pdf].double(), gmm.variances[of_pdf].double().sqrt()
    )
    return (gmm.weights[of_pdf].double().log() + normal.log_prob(x.double()).sum(1)).logsumexp(0)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    dimension=st.integers(1, 40),
    seed=st.integers(0, 999),
    spread=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_scores_equal_float64_log_densities(sizes, dimension, seed, spread):
    gmm = mixtures(sizes, dimension, seed, spread)
    generator = torch.Generator().manual_seed(seed + 1)
    x = (1 + spread) * torch.randn(6, dimension, generator=generator)
    pdfs = torch.randint(len(sizes), (4,), generator=generator)
    arrays = LazyGmmScores(gmm, x, pdfs).arrays()
    for frame in range(6):
        for column, pdf in enumerate(pdfs.tolist()):
            score = demanded_score(arrays, frame, column)
            expected = by_definition(gmm, x[frame], pdf)
            assert score == pytest.approx(float(expected), rel=1e-4, abs=1e-3)


def test_lazy_scores_scale_like_a_tensor():
    gmm = mixtures([2, 1, 3], 5, 0)
    x, pdfs = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([2, 0])
    scores = LazyGmmScores(gmm, x, pdfs)
    tensor = gmm.log_likelihoods(x, pdfs)
    assert (len(scores), scores.shape) == (len(tensor), tensor.shape)
    torch.testing.assert_close((scores * 0.5 * 0.2).dense(), tensor * 0.1)
    arrays = (scores * 0.5 * 0.2).arrays()
    demanded = [[demanded_score(arrays, t, column) for column in range(2)] for t in range(7)]
    torch.testing.assert_close(torch.tensor(demanded), tensor * 0.1)


def test_gaussians_without_weight_and_pdfs_without_any_score_nothing():
    gmm = mixtures([2, 1], 3, 2)
    gmm = Gmm(gmm.owner, torch.tensor([0.0, 1.0, 0.0]), gmm.means, gmm.variances)
    x = torch.zeros(1, 3)
    arrays = LazyGmmScores(gmm, x, torch.tensor([0, 1])).arrays()
    assert demanded_score(arrays, 0, 0) == pytest.approx(float(gmm.log_likelihoods(x)[0, 0]))
    assert demanded_score(arrays, 0, 1) == -float("inf")


def test_frames_and_pdfs_of_another_model_are_refused():
    gmm = mixtures([2, 3], 5, 0)
    with pytest.raises(GmmError, match=r"frames have 6 values.* have 5 dimensions"):
        LazyGmmScores(gmm, torch.zeros(4, 6), torch.arange(2))
    for pdfs in ([0, 2], [-1, 1]):
        with pytest.raises(GmmError, match="only 2 pdfs: senones and mixtures"):
            LazyGmmScores(gmm, torch.zeros(4, 5), torch.tensor(pdfs))
    assert len(LazyGmmScores(gmm, torch.zeros(4, 5), torch.zeros(0, dtype=torch.int64))) == 4
