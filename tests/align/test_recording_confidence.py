"""Posteriors against a direct computation in float64."""

import itertools
import math

import pytest
import torch

from toolkit.align.recording import (
    PhonePosteriors,
    RecordingScores,
    samples_among,
    span_confidences,
)
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Leaf, Root, Tree

SENONES = Senones.monophone(Topology(("SIL", "A", "B"), ("SIL",), silence_states=3))
PHONE = [1, 1, 1, 2, 2, 2, 3, 3, 3]


def scores(frames, seed=0):
    return torch.randn(frames, 9, generator=torch.Generator().manual_seed(seed)) * 3


def test_posteriors_are_scaled_sums_over_the_pdfs_of_a_phone():
    x = scores(7).double()
    posteriors = PhonePosteriors(SENONES, scale=0.5)(x.float().clone())
    likelihood = x.exp().reshape(7, 3, 3).sum(2).sqrt()
    expected = likelihood / likelihood.sum(1, keepdim=True)
    assert torch.allclose(posteriors[:, 1:].double(), expected, atol=1e-6)
    assert posteriors[:, 0].tolist() == [0.0] * 7


def test_variants_of_a_phone_are_summed():
    topology = Topology(("SIL", "AH0", "AH1", "B"), ("SIL",), states=1, silence_states=1)
    leaves = [Root((phone,), 0, Leaf(phone - 1, 0)) for phone in (1, 2, 3, 4)]
    posteriors = PhonePosteriors(Senones(topology, Tree(topology.phones, tuple(leaves))), 1.0)
    shares = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    assert torch.allclose(posteriors(shares.log()), torch.tensor([[0, 0.1, 0.5, 0, 0.4]]))
    assert posteriors.phone_of_pdf.tolist() == [1, 2, 2, 4]


def test_an_impossible_phone_has_posterior_zero_and_a_finite_logarithm():
    x = torch.full((2, 9), -500.0)
    x[:, 0] = 0.0
    recording = recording_of(x)
    recording.window(0, 2, torch.tensor([8]), 2.0)
    assert recording.log_posteriors(0, torch.tensor([8, 8])).tolist() == [
        pytest.approx(math.log(1e-30))
    ]


def recording_of(x):
    return RecordingScores(
        lambda begin, end: x[begin:end],
        lambda rows, pdfs: rows[:, pdfs],
        len(x),
        PhonePosteriors(SENONES, 0.5),
    )


@pytest.mark.parametrize("cuts", [(0, 20), (0, 1, 2, 3, 20), (0, 7, 9, 11, 20), (0, 10, 20)])
def test_windows_do_not_change_scores_and_posteriors(cuts, monkeypatch):
    monkeypatch.setattr("toolkit.align.recording.BLOCK_FRAMES", 4)
    x = scores(20)
    pdfs = torch.tensor([0, 4, 8])
    aligned = pdfs[torch.arange(20) // 7]
    recording = recording_of(x)
    log_posteriors = []
    for begin, end in itertools.pairwise(cuts):
        window = recording.window(begin, end, pdfs, 2.0)
        assert torch.equal(window[:, :-1], x[begin:end, pdfs])
        assert torch.equal(window[:, -1], x[begin:end].max(dim=1).values - 2.0)
        log_posteriors += recording.log_posteriors(begin, aligned[begin:end]).tolist()
    posteriors = PhonePosteriors(SENONES, 0.5)(x.clone())
    expected = [
        math.log(posteriors[frame, PHONE[aligned[frame]]]) for frame in (1, 4, 7, 10, 13, 16, 19)
    ]
    assert log_posteriors == pytest.approx(expected, abs=1e-5)


def test_samples_are_counted_as_they_lie():
    for begin, end in itertools.combinations(range(13), 2):
        expected = [n for n in range(5) if begin <= 3 * n + 1 < end]
        assert list(samples_among(begin, end)) == expected


def test_a_span_has_the_geometric_mean_of_its_samples():
    logs = torch.tensor([0.1, 0.4, 0.9, 0.5]).log()  # frames 1, 4, 7, 10
    assert span_confidences(logs, [0, 2, 0], [2, 9, 12]) == pytest.approx(
        [0.1, math.sqrt(0.4 * 0.9), (0.1 * 0.4 * 0.9 * 0.5) ** 0.25]
    )
    assert span_confidences(logs, [2, 11], [4, 12]) == pytest.approx([0.4, 0.5])  # no sample inside
