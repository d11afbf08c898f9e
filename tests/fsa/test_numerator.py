"""Numerators equal the enumeration of all paths near an alignment."""

import itertools

import numpy as np
import pytest
import torch

from tests.fsa.test_denominator import weights_of_pdfs
from toolkit.features.low_frame_rate import centre
from toolkit.fsa.config import PhoneNgramConfig
from toolkit.fsa.denominator import make_denominator, phone_ngram
from toolkit.fsa.forward_backward import pack, total_scores
from toolkit.fsa.lfmmi import leaky_forward_backward, lfmmi
from toolkit.fsa.numerator import Chunk, NumeratorMaker, PhoneAlternatives, PhoneTimes

SENTENCES = [[1, 2, 3, 1], [1, 3, 3, 2, 1], [2, 2, 1, 3], [1, 2, 3, 3, 1]]
TIMES = PhoneTimes(np.array([1, 3, 3, 2, 1], np.int32), np.array([0, 4, 9, 12, 20], np.int32), 24)


@pytest.fixture
def system(toy):
    senones = toy.senones("onset", variants=2)
    return senones, make_denominator(phone_ngram(SENTENCES, PhoneNgramConfig(3)), senones)


def near_paths(senones, times, piece, tolerance):
    """The pdfs of a piece on every path through the phones of an utterance within tolerance."""
    middle = centre(times.frames, piece.offset).tolist()
    ends = [*times.begins.tolist()[1:], times.frames]
    phone_paths = set()
    count = len(times.phones)
    for cuts in itertools.combinations(range(1, len(middle)), count - 1):
        path, fits = [], True
        for k, (a, b) in enumerate(itertools.pairwise((0, *cuts, len(middle)))):
            begin, end = times.begins[k] - tolerance, ends[k] + tolerance
            fits &= all(begin <= middle[t] < end for t in range(a, b))
            path += [(k, t > a) for t in range(a, b)]
        if fits:
            phone_paths.add(tuple(path[piece.start : piece.start + piece.length]))
    around = [1, *times.phones.tolist(), 1]
    pdfs = []
    for path in phone_paths:
        states = [(2 * (around[k + 1] - 1) + r, around[k], around[k + 2]) for k, r in path]
        pdfs.append(tuple(int(senones.table[state]) for state in states))
    return pdfs


def from_anywhere(hmm, frames):
    """The summed weight of all paths of a denominator by pdf sequence, from any state."""
    arcs = {}
    columns = (hmm.source, hmm.target, hmm.pdf[hmm.target], hmm.weight)
    for source, target, pdf, weight in zip(*(x.tolist() for x in columns), strict=True):
        arcs.setdefault(source, []).append((target, pdf, weight))
    total = {}
    for state, share in enumerate(hmm.initial):
        for pdfs, weight in weights_of_pdfs(arcs, state, frames).items():
            total[pdfs] = total.get(pdfs, 0) + share * weight
    return total


@pytest.mark.parametrize(
    "piece",
    [Chunk(0, 0, 8), Chunk(2, 0, 8), Chunk(0, 0, 5), Chunk(1, 3, 4), Chunk(2, 4, 4)],
    ids=str,
)
@pytest.mark.parametrize("tolerance", [0, 2, 5])
def test_sums_over_all_paths_near_the_alignment(system, piece, tolerance):
    senones, hmm = system
    lattice = NumeratorMaker(senones, hmm, tolerance).lattice(TIMES, piece)
    scores = torch.randn(piece.length, senones.num_pdfs, dtype=torch.float64)
    weights = from_anywhere(hmm, piece.length)
    paths = near_paths(senones, TIMES, piece, tolerance)
    assert len(paths) > (tolerance > 0)
    expected = sum(
        weights.get(pdfs, 0) * torch.exp(sum(scores[t, p] for t, p in enumerate(pdfs)))
        for pdfs in paths
    )
    packed = pack([lattice], torch.device("cpu"))
    acoustic_scores = scores[packed.frame, packed.pdf]
    total = total_scores(packed, packed.scores.index_add(0, packed.emitting, acoustic_scores))
    torch.testing.assert_close(total[0], expected.log(), rtol=1e-5, atol=1e-5)
    everything, _ = leaky_forward_backward(hmm, scores[None], torch.tensor([piece.length]), 0.0)
    assert total[0] < everything[0]


def test_phone_times_are_those_of_an_alignment(toy):
    topology = toy.senones("plain").topology  # silence has one state, A and B two: ids 0, 1-2, 3-4
    states = torch.tensor([0, 0, 1, 2, 2, 1, 2, 3, 3, 4, 0])
    times = PhoneTimes.of(states, topology)
    assert times.phones.tolist() == [1, 2, 2, 3, 1]
    assert times.begins.tolist() == [0, 2, 5, 7, 10]
    assert times.frames == 11
    # The middles of the low-rate frames at offset 0 are frames 1, 4, 7 and 10.
    longer = PhoneTimes(times.phones, 3 * times.begins, 33)
    # Middles: 1, 4, ... 31. Phones begin in 0, 6, 15, 21 and 30.
    assert longer.windows(0, 0).tolist() == [[0, 2], [2, 5], [5, 7], [7, 10], [10, 11]]
    assert longer.windows(0, 5).tolist() == [[0, 4], [1, 7], [3, 9], [5, 10], [8, 11]]


def test_too_narrow_windows_are_widened(system):
    senones, hmm = system
    # The low-rate frames have their middles in 1, 4, 7 and 10; the second phone must be in 4.
    times = PhoneTimes(np.array([1, 2, 3, 1], np.int32), np.array([0, 8, 9, 10], np.int32), 12)
    lattice = NumeratorMaker(senones, hmm, 1).lattice(times, Chunk(0, 0, 4))
    assert lattice.labels[lattice.frame == 1].tolist() == [int(senones.table[2, 1, 3]) + 1]
    assert NumeratorMaker(senones, hmm, 0).lattice(times, Chunk(0, 0, 4)) is None


def test_phones_that_the_denominator_lacks_have_no_numerator(system):
    senones, hmm = system
    times = PhoneTimes(np.array([3, 1, 1, 1], np.int32), np.array([0, 5, 8, 12], np.int32), 15)
    assert NumeratorMaker(senones, hmm, 5).lattice(times, Chunk(0, 0, 5)) is None
    crowded = PhoneTimes(np.array([1, 2, 3], np.int32), np.array([0, 1, 2], np.int32), 5)
    assert NumeratorMaker(senones, hmm, 5).lattice(crowded, Chunk(0, 0, 2)) is None
    far = PhoneTimes(np.array([1, 1], np.int32), np.array([60, 62], np.int32), 90)
    assert NumeratorMaker(senones, hmm, 0).lattice(far, Chunk(0, 0, 2)) is None


OTHER = PhoneTimes(np.array([1, 3, 3, 1], np.int32), np.array([0, 4, 9, 18], np.int32), 24)
"""Differs from `TIMES` from the fourth phone on."""


@pytest.mark.parametrize("piece", [Chunk(0, 0, 8), Chunk(2, 0, 4), Chunk(1, 3, 4)], ids=str)
def test_alternatives_add_their_paths_each_with_its_weight(system, piece):
    senones, hmm = system
    maker = NumeratorMaker(senones, hmm, 2)
    weights = np.array([0.6, 0.3])
    combined = maker.lattice(PhoneAlternatives((TIMES, OTHER), weights), piece)
    singles = [maker.lattice(times, piece) for times in (TIMES, OTHER)]
    scores = torch.randn(1, piece.length, senones.num_pdfs, dtype=torch.float64)

    def total(lattice):
        packed = pack([lattice], torch.device("cpu"))
        acoustic_scores = scores[0, packed.frame, packed.pdf]
        return total_scores(packed, packed.scores.index_add(0, packed.emitting, acoustic_scores))[0]

    totals = torch.stack([total(lattice) for lattice in singles])
    expected = (totals + torch.from_numpy(weights).log()).logsumexp(0)
    torch.testing.assert_close(total(combined), expected, rtol=1e-5, atol=1e-5)
    lengths = torch.tensor([piece.length])

    def objective(scores):
        return lfmmi(scores, lengths, [combined], hmm, leak=0.1).objective

    assert torch.autograd.gradcheck(objective, scores.requires_grad_(), eps=1e-5, atol=1e-6)
    assert (objective(scores) < 0).all()


def test_alternatives_that_are_equal_near_a_piece_are_merged(system):
    maker = NumeratorMaker(*system, 2)
    piece = Chunk(0, 0, 3)  # up to frame 9; the third phone goes on in both, but not as long
    longer = PhoneTimes(np.array([1, 3, 3, 2, 3], np.int32), np.array([0, 4, 9, 16, 22]), 24)
    combined = maker.lattice(PhoneAlternatives((TIMES, longer), np.array([0.75, 0.25])), piece)
    single = maker.lattice(TIMES, piece)
    assert combined.num_arcs == single.num_arcs
    np.testing.assert_array_equal(combined.scores, single.scores)


def test_alternatives_without_a_path_are_left_out(system):
    maker = NumeratorMaker(*system, 2)
    unknown = PhoneTimes(np.array([3, 1, 1, 1], np.int32), np.array([0, 5, 8, 12], np.int32), 24)
    piece = Chunk(0, 0, 8)
    assert maker.lattice(unknown, piece) is None
    lattice = maker.lattice(PhoneAlternatives((unknown, TIMES), np.array([0.5, 0.5])), piece)
    single = maker.lattice(TIMES, piece)
    assert lattice.num_arcs == single.num_arcs
    starts = lattice.source == 0
    np.testing.assert_allclose(lattice.scores, single.scores + np.log(0.5) * starts, rtol=1e-6)
    none = PhoneAlternatives((unknown, unknown), np.array([0.5, 0.5]))
    assert maker.lattice(none, piece) is None


@pytest.fixture
def batch(system):
    """Scores of three pieces [3, 8, P], their lengths and numerators."""
    senones, hmm = system
    pieces = [Chunk(0, 0, 8), Chunk(2, 0, 5), Chunk(1, 3, 4)]  # k2 wants the longest first
    maker = NumeratorMaker(senones, hmm, 5)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 8, senones.num_pdfs, generator=generator).double()
    return (
        scores,
        torch.tensor([piece.length for piece in pieces]),
        [maker.lattice(TIMES, piece) for piece in pieces],
        hmm,
    )


def test_the_gradient_equals_finite_differences(batch):
    scores, lengths, numerators, hmm = batch
    scores, lengths, numerators = scores[1:, :5], lengths[1:], numerators[1:]
    scores = scores.clone().requires_grad_()

    def objective(scores):
        return lfmmi(scores, lengths, numerators, hmm, leak=0.1).objective

    assert torch.autograd.gradcheck(objective, scores, eps=1e-5, atol=1e-6)
    assert (objective(scores) < 0).all()


def test_a_boost_raises_the_paths_of_the_denominator_by_their_wrong_frames(system):
    senones, hmm = system
    # At 30 ms a frame, phones of as many frames: a single path within no tolerance.
    times = PhoneTimes(np.array([1, 2, 3, 1], np.int32), np.array([0, 3, 6, 9], np.int32), 12)
    lattice = NumeratorMaker(senones, hmm, 0).lattice(times, Chunk(0, 0, 4))
    (reference,) = near_paths(senones, times, Chunk(0, 0, 4), 0)
    scores = torch.randn(1, 4, senones.num_pdfs, dtype=torch.float64, requires_grad=True)
    boost = 0.7

    def objective(scores):
        return lfmmi(scores, torch.tensor([4]), [lattice], hmm, 0.0, boost).objective

    weights = from_anywhere(hmm, 4)

    def score(pdfs):
        num_errors = sum(a != b for a, b in zip(pdfs, reference, strict=True))
        acoustic_score = sum(scores[0, t, pdf] for t, pdf in enumerate(pdfs))
        return np.log(weights[pdfs]) + acoustic_score + boost * num_errors

    expected = score(reference) - torch.stack([score(pdfs) for pdfs in weights]).logsumexp(0)
    torch.testing.assert_close(objective(scores)[0], expected, rtol=1e-5, atol=1e-5)
    assert torch.autograd.gradcheck(objective, scores, eps=1e-5, atol=1e-6)


def test_the_boost_uses_the_numerator_posteriors(batch):
    scores, lengths, numerators, hmm = batch
    scores = scores.requires_grad_()
    value = lfmmi(scores, lengths, numerators, hmm, 0.1, boost=0.5)
    (gradient,) = torch.autograd.grad(value.objective.sum(), scores)
    boosted_scores = scores.detach() + 0.5 * (1 - value.numerator_posteriors)
    denominator_totals, denominator_posteriors = leaky_forward_backward(
        hmm, boosted_scores, lengths, 0.1
    )
    torch.testing.assert_close(gradient, value.numerator_posteriors - denominator_posteriors)
    unboosted = lfmmi(scores, lengths, numerators, hmm, 0.1)
    assert (value.objective < unboosted.objective).all()
    totals = unboosted.objective + leaky_forward_backward(hmm, scores.detach(), lengths, 0.1)[0]
    torch.testing.assert_close(value.objective, totals - denominator_totals)


def test_posteriors_add_up_and_padding_has_none(batch):
    scores, lengths, numerators, hmm = batch
    scores.requires_grad_()
    value = lfmmi(scores, lengths, numerators, hmm, leak=0.1)
    real = torch.arange(8) < lengths[:, None]
    torch.testing.assert_close(value.numerator_posteriors.sum(2), real.double())
    assert not value.numerator_posteriors.requires_grad
    (gradient,) = torch.autograd.grad(value.objective.sum(), scores)
    torch.testing.assert_close(gradient.sum(2), torch.zeros(3, 8).double())
    assert not gradient[~real].any()
    single = scores.detach().float().requires_grad_()
    value = lfmmi(single, lengths, numerators, hmm, leak=0.1)
    (lower,) = torch.autograd.grad(value.objective.sum(), single)
    torch.testing.assert_close(lower.double(), gradient, rtol=1e-3, atol=1e-5)


def test_the_numerator_equals_k2(batch):
    k2 = pytest.importorskip("k2")
    from toolkit.fsa.k2_engine import to_k2

    scores, lengths, numerators, hmm = batch
    value = lfmmi(scores, lengths, numerators, hmm, leak=0.0)
    everything, _ = leaky_forward_backward(hmm, scores, lengths, 0.0)
    padded = torch.cat([torch.full((3, 8, 1), -1e10), scores.float()], 2).requires_grad_()
    rows = [[n, 0, t] for n, t in enumerate(lengths.tolist())]
    k2_lattices = k2.intersect_dense(
        k2.create_fsa_vec([to_k2(x) for x in numerators]),
        k2.DenseFsaVec(padded, torch.tensor(rows, dtype=torch.int32)),
        output_beam=1e4,
    )
    expected = k2_lattices.get_tot_scores(log_semiring=True, use_double_scores=True)
    torch.testing.assert_close(value.objective + everything, expected.detach())
    (gradient,) = torch.autograd.grad(expected.sum(), padded)
    torch.testing.assert_close(
        value.numerator_posteriors.float(), gradient[:, :, 1:], rtol=1e-3, atol=1e-5
    )


def test_autocast_does_not_round_the_criterion(system):
    senones, hmm = system
    lattice = NumeratorMaker(senones, hmm, 2).lattice(TIMES, Chunk(0, 0, 8))
    scores = torch.randn(1, 8, senones.num_pdfs, requires_grad=True)

    def gradient():
        value = lfmmi(scores, torch.tensor([8]), [lattice], hmm, 0.1)
        (score_gradient,) = torch.autograd.grad(value.objective.sum(), scores)
        return value.objective.detach(), score_gradient

    expected = gradient()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = gradient()
    torch.testing.assert_close(under_autocast, expected, rtol=0, atol=0)
