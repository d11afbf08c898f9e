import pickle

import pytest
import scipy.linalg
import torch

from toolkit.hmm.transforms import LdaError, LdaStatistics, estimate_lda


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(3)


def classes_in_space(generator, classes=8, dimension=6, frames=2000):
    """Frames with a full within-class covariance, and their classes."""
    labels = torch.randint(classes, (frames,), generator=generator)
    means = torch.randn(classes, dimension, generator=generator)
    mixing = torch.randn(dimension, dimension, generator=generator)
    return means[labels] + torch.randn(frames, dimension, generator=generator) @ mixing.T, labels


def statistics_of(x, labels, classes=8):
    statistics = LdaStatistics.zeros(classes, x.shape[1])
    statistics.accumulate(x, labels)
    return statistics


def covariances(x, labels):
    """Within-class and between-class covariance, by definition."""
    x = x.double()
    mean = x.mean(0)
    within, between = torch.zeros(2, x.shape[1], x.shape[1], dtype=torch.float64)
    for c in labels.unique():
        class_frames = x[labels == c]
        offset = class_frames - class_frames.mean(0)
        within += offset.T @ offset / len(x)
        class_offset = class_frames.mean(0) - mean
        between += torch.outer(class_offset, class_offset) * len(class_frames) / len(x)
    return within, between


def test_equals_the_generalised_eigenproblem(generator):
    x, labels = classes_in_space(generator)
    transform = estimate_lda(statistics_of(x, labels), 4)
    within, between = covariances(x, labels)
    values = scipy.linalg.eigh(between.numpy(), within.numpy(), eigvals_only=True)[::-1]
    torch.testing.assert_close(transform @ within @ transform.T, torch.eye(4).double())
    torch.testing.assert_close(
        transform @ between @ transform.T, torch.diag(torch.tensor(values[:4].copy()))
    )


def test_finds_the_known_plane(generator):
    labels = torch.randint(20, (20_000,), generator=generator)
    plane = torch.linalg.qr(torch.randn(9, 2, generator=generator)).Q
    x = torch.randn(20, 2, generator=generator)[labels] @ plane.T
    x = x + 0.3 * torch.randn(20_000, 9, generator=generator)
    estimated_plane = torch.linalg.qr(estimate_lda(statistics_of(x, labels, 20), 2).T).Q.float()
    assert torch.linalg.svdvals(plane.T @ estimated_plane).min() > 0.999


def test_does_not_depend_on_the_basis(generator):
    x, labels = classes_in_space(generator)
    matrix = torch.randn(6, 6, generator=generator).double()
    moved = x.double() @ matrix.T + 5.0
    lda = estimate_lda(statistics_of(x, labels), 3)
    transformed_lda = estimate_lda(statistics_of(moved, labels), 3) @ matrix
    signs = (lda * transformed_lda).sum(1, keepdim=True).sign()
    torch.testing.assert_close(signs * transformed_lda, lda, atol=1e-8, rtol=1e-8)


def test_the_largest_coefficient_of_a_row_is_positive(generator):
    transform = estimate_lda(statistics_of(*classes_in_space(generator)), 4)
    assert (transform.gather(1, transform.abs().argmax(1, keepdim=True)) > 0).all()


def test_dependent_and_constant_dimensions_change_nothing(generator):
    x, labels = classes_in_space(generator)
    copies = torch.cat([x, x[:, :2] - x[:, 2:4], torch.full((len(x), 1), 7.0)], dim=1)
    projected = x.double() @ estimate_lda(statistics_of(x, labels), 3).T
    projected_copies = copies.double() @ estimate_lda(statistics_of(copies, labels), 3).T
    offset = projected_copies - projected * (projected * projected_copies).sum(0).sign()
    assert (offset - offset.mean(0)).abs().max() < 1e-4


def test_merges_pickles_and_ignores_empty_classes(generator):
    x, labels = classes_in_space(generator)
    whole = statistics_of(x, labels)
    first = statistics_of(x[:700], labels[:700], 12)
    first.add(pickle.loads(pickle.dumps(statistics_of(x[700:], labels[700:], 12))))
    torch.testing.assert_close(first.count[:8], whole.count)
    torch.testing.assert_close(estimate_lda(first, 3), estimate_lda(whole, 3))


def test_refuses_too_few_classes_and_too_few_dimensions(generator):
    x, labels = classes_in_space(generator)
    with pytest.raises(LdaError, match="there are only 8"):
        estimate_lda(statistics_of(x, labels, 40), 8)
    flat = x[:, :2] @ torch.randn(2, 6, generator=generator)
    with pytest.raises(LdaError, match="only 2 dimensions"):
        estimate_lda(statistics_of(flat, labels), 3)
