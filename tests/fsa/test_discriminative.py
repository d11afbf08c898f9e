import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fsa.lattices import lattice_from_arcs
from toolkit.fsa.config import Beam, Criterion
from toolkit.fsa.discriminative import (
    LatticeMismatchError,
    PdfClasses,
    lattice_frames,
    sequence_objective,
)
from toolkit.fsa.fst import Lattice, fst_from_arcs
from toolkit.fsa.search import search_lattice

PDFS = 6
# pdfs 0 and 1 are silence, phones have two pdfs each
CLASSES = PdfClasses(torch.tensor([1, 1, 0, 0, 0, 0]).bool(), torch.tensor([1, 1, 2, 2, 3, 3]))
VARIANTS = [
    Criterion("smbr", acoustic_scale=0.7),
    Criterion("smbr", acoustic_scale=1.3, lm_scale=0.4, one_silence_class=False),
    Criterion("mpfe", acoustic_scale=0.5, lm_scale=2.0),
    Criterion("mpfe", one_silence_class=False),
    Criterion("mmi", acoustic_scale=0.9, lm_scale=0.0),
    Criterion("mmi", boost=0.5, drop_frames=False),
    Criterion("mmi", boost=0.2, drop_frames=True),
]
names = [f"{c.kind}{i}" for i, c in enumerate(VARIANTS)]


def random_lattice(seed, frames=4, width=3):
    """Random arcs between layers of states, one layer per frame; every state is on a path."""
    g = torch.Generator().manual_seed(seed)
    layers = [[0], *([1 + t * width + i for i in range(width)] for t in range(frames))]
    arcs = []
    for sources, targets in itertools.pairwise(layers):
        pairs = {(a, targets[i % width]) for i, a in enumerate(sources * width)}
        pairs |= {(sources[i % len(sources)], b) for i, b in enumerate(targets)}
        for a, b in sorted(pairs):
            for _ in range(1 + int(torch.randint(2, (), generator=g))):
                pdf = int(torch.randint(PDFS, (), generator=g))
                arcs.append((a, b, pdf + 1, 0, 2 * float(torch.randn((), generator=g))))
    return lattice_from_arcs(arcs, layers[-1], [t for t, layer in enumerate(layers) for _ in layer])


def random_likelihoods(seed, frames=4):
    """Likelihoods [frames, P] and a reference."""
    g = torch.Generator().manual_seed(1000 + seed)
    scores = 2 * torch.randn(frames, PDFS, generator=g)
    return scores, torch.randint(PDFS, (frames,), generator=g)


def paths(fsa):
    """Every path as (pdfs, graph score in float64)."""
    leaving = {}
    for a, b, label, score, _ in zip(*(x.tolist() for x in columns(fsa)), strict=True):
        leaving.setdefault(a, []).append((b, label, score))
    complete = []

    def walk(state, pdfs, score):
        for to, label, arc_score in leaving.get(state, []):
            if label == -1:
                complete.append((pdfs, score + arc_score))
            else:
                walk(to, [*pdfs, label - 1], score + arc_score)

    walk(0, [], 0.0)
    return complete


def accuracy(pdf, reference, criterion):
    """Kaldi's frame_acc."""
    sil, phones = CLASSES.silence.tolist(), CLASSES.phones.tolist()
    same = pdf == reference if criterion.kind == "smbr" else phones[pdf] == phones[reference]
    if criterion.one_silence_class:
        return float(same or (sil[pdf] and sil[reference]))
    return float(same and not sil[pdf])


def enumerate_criterion(fsa, scores, reference, criterion):
    """The criterion in float64, by enumeration of all paths."""
    reference_pdfs = reference.tolist()
    lattice_paths = paths(fsa)
    used = scores
    if criterion.kind == "mmi" and criterion.drop_frames:
        frame_pdfs = [{p[t] for p, _ in lattice_paths} for t in range(len(reference_pdfs))]
        is_missing = torch.tensor(
            [r not in s for r, s in zip(reference_pdfs, frame_pdfs, strict=True)]
        )
        used = torch.where(is_missing[:, None], scores.detach(), scores)
    totals, counts = [], []
    for pdfs, graph_score in lattice_paths:
        total = criterion.lm_scale * graph_score
        for t, pdf in enumerate(pdfs):
            total = total + criterion.acoustic_scale * used[t, pdf]
            if criterion.kind == "mmi" and CLASSES.phones[pdf] != CLASSES.phones[reference_pdfs[t]]:
                total = total + criterion.boost * float(not CLASSES.silence[pdf])
        totals.append(total)
        pairs = zip(pdfs, reference_pdfs, strict=True)
        counts.append(sum(accuracy(p, r, criterion) for p, r in pairs))
    totals = torch.stack(totals)
    if criterion.kind == "mmi":
        numerator = sum(used[t, r] for t, r in enumerate(reference_pdfs)) * criterion.acoustic_scale
        return numerator - totals.logsumexp(0)
    return (totals.softmax(0) * torch.tensor(counts).double()).sum()


def columns(fsa):
    return fsa.source, fsa.target, fsa.labels, fsa.scores, fsa.frame


def value_and_gradient(fsa, scores, reference, criterion):
    """Value and gradient of the code under test."""
    scores = scores.float().detach().requires_grad_()
    original_columns = [x.copy() for x in columns(fsa)]
    value = sequence_objective([fsa], scores[None], [reference], criterion, CLASSES)
    (gradient,) = torch.autograd.grad(value.objective.sum(), scores)
    assert all(map(np.array_equal, columns(fsa), original_columns))  # the lattice can be used again
    return value.objective[0].detach(), gradient


def check_against_enumeration(seed, frames, criterion):
    fsa = random_lattice(seed, frames)
    scores, reference = random_likelihoods(seed, frames)
    exact = scores.double().requires_grad_()
    expected = enumerate_criterion(fsa, exact, reference, criterion)
    (expected_gradient,) = torch.autograd.grad(expected, exact)
    value, gradient = value_and_gradient(fsa, scores, reference, criterion)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(expected.item(), abs=1e-5)
    torch.testing.assert_close(gradient.double(), expected_gradient, atol=2e-6, rtol=1e-5)
    return gradient


@pytest.mark.parametrize("criterion", VARIANTS, ids=names)
def test_value_and_gradient_equal_the_sum_over_all_paths(criterion):
    gradients = [check_against_enumeration(seed, 4, criterion) for seed in range(3)]
    assert max(gradient.abs().max() for gradient in gradients) > 1e-2


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    frames=st.integers(1, 4),
    kind=st.sampled_from(["smbr", "mpfe", "mmi"]),
    acoustic_scale=st.floats(0.05, 2),
    lm_scale=st.floats(0, 2),
    one_silence_class=st.booleans(),
    boost=st.floats(0, 1),
    drop_frames=st.booleans(),
)
def test_any_lattice_and_settings(seed, frames, **settings):
    check_against_enumeration(seed, frames, Criterion(**settings))


@pytest.mark.parametrize("criterion", VARIANTS[:4], ids=names[:4])
def test_gradient_is_kaldis_closed_form(criterion):
    """kappa * gamma * (c - c_hat) by the recursions of LatticeForwardBackwardMpeVariants."""
    fsa = random_lattice(7, frames=12, width=5)
    scores, reference = random_likelihoods(7, 12)
    arcs = list(zip(*(x.tolist() for x in columns(fsa)), strict=True))  # sorted by state: by time
    weight, accuracies = [], []
    for _, _, label, score, t in arcs:
        acoustic_score = (
            criterion.acoustic_scale * scores[t, label - 1].item() if label > 0 else 0.0
        )
        weight.append(criterion.lm_scale * score + acoustic_score)
        accuracies.append(accuracy(label - 1, int(reference[t]), criterion) if label > 0 else 0.0)
    states = fsa.num_states
    alpha, beta = [-math.inf] * states, [-math.inf] * states
    alpha[0], beta[-1] = 0.0, 0.0
    alpha_accuracy, beta_accuracy = [0.0] * states, [0.0] * states

    def log_add(a, b):
        return max(a, b) + math.log1p(math.exp(-abs(a - b))) if min(a, b) > -math.inf else max(a, b)

    for (a, b, *_), w in zip(arcs, weight, strict=True):
        alpha[b] = log_add(alpha[b], alpha[a] + w)
    for (a, b, *_), w in zip(reversed(arcs), reversed(weight), strict=True):
        beta[a] = log_add(beta[a], beta[b] + w)
    assert alpha[-1] == pytest.approx(beta[0], abs=1e-9)
    for (a, b, *_), w, r in zip(arcs, weight, accuracies, strict=True):
        alpha_accuracy[b] += math.exp(alpha[a] + w - alpha[b]) * (alpha_accuracy[a] + r)
    for (a, b, *_), w, r in zip(*map(reversed, (arcs, weight, accuracies)), strict=True):
        beta_accuracy[a] += math.exp(beta[b] + w - beta[a]) * (beta_accuracy[b] + r)
    assert alpha_accuracy[-1] == pytest.approx(beta_accuracy[0], abs=1e-9)
    expected = torch.zeros(12, PDFS, dtype=torch.float64)
    for (a, b, label, _, t), w, r in zip(arcs, weight, accuracies, strict=True):
        if label > 0:
            gamma = math.exp(alpha[a] + w + beta[b] - alpha[-1])
            advantage = alpha_accuracy[a] + r + beta_accuracy[b] - alpha_accuracy[-1]
            expected[t, label - 1] += criterion.acoustic_scale * gamma * advantage
    value, gradient = value_and_gradient(fsa, scores, reference, criterion)
    assert value.item() == pytest.approx(alpha_accuracy[-1], abs=1e-5)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(gradient.double(), expected, atol=5e-6, rtol=0)


@pytest.mark.parametrize("criterion", VARIANTS[:6], ids=names[:6])
def test_gradient_equals_finite_differences(criterion):
    fsa = random_lattice(3, frames=20, width=6)
    scores, reference = random_likelihoods(3, 20)
    if criterion.kind == "mmi":  # has a slope where the reference is missing unless dropped
        criterion = Criterion("mmi", boost=criterion.boost, drop_frames=False)
    _, gradient = value_and_gradient(fsa, scores, reference, criterion)
    step = 0.05
    for t, pdf in [(0, 1), (7, 2), (11, 5), (19, 4)]:
        moved = [scores.clone(), scores.clone()]
        moved[0][t, pdf] += step
        moved[1][t, pdf] -= step
        up, down = (value_and_gradient(fsa, x, reference, criterion)[0] for x in moved)
        slope = (up - down).item() / (2 * step)
        assert gradient[t, pdf].item() == pytest.approx(slope, abs=2e-3)


@pytest.mark.parametrize("criterion", VARIANTS, ids=names)
def test_a_constant_added_to_a_frame_does_not_matter(criterion):
    fsa = random_lattice(5, frames=8)
    scores, reference = random_likelihoods(5, 8)
    value, gradient = value_and_gradient(fsa, scores, reference, criterion)
    shifted, same = value_and_gradient(fsa, scores + torch.arange(8)[:, None], reference, criterion)
    assert shifted.item() == pytest.approx(value.item(), abs=1e-4)
    torch.testing.assert_close(same, gradient, atol=1e-5, rtol=0)
    assert gradient.sum(dim=1).abs().max() < 1e-6


@pytest.mark.parametrize("criterion", VARIANTS, ids=names)
def test_a_batch_equals_its_utterances_and_padding_is_not_read(criterion):
    lengths = [5, 2, 4]
    fsas = [random_lattice(seed, n) for seed, n in enumerate(lengths)]
    drawn = [random_likelihoods(seed, n) for seed, n in enumerate(lengths)]
    padded = torch.full((3, 6, PDFS), math.nan)
    for row, (scores, _) in zip(padded, drawn, strict=True):
        row[: len(scores)] = scores
    padded.requires_grad_()
    references = [reference for _, reference in drawn]
    batch = sequence_objective(fsas, padded, references, criterion, CLASSES)
    batch.objective.sum().backward()
    for n, (fsa, (scores, reference)) in enumerate(zip(fsas, drawn, strict=True)):
        value, gradient = value_and_gradient(fsa, scores, reference, criterion)
        assert batch.objective[n].item() == pytest.approx(value.item(), abs=1e-9)
        assert torch.equal(padded.grad[n, : lengths[n]], gradient)
        assert not padded.grad[n, lengths[n] :].any()
        single = sequence_objective([fsa], scores[None], [reference], criterion, CLASSES)
        assert batch.missing[n] == single.missing[0] <= lengths[n]


def chain(pdfs, scores=None):
    """A lattice of one path."""
    scores = scores or [0.0] * len(pdfs)
    arcs = [(t, t + 1, p + 1, 0, s) for t, (p, s) in enumerate(zip(pdfs, scores, strict=True))]
    return lattice_from_arcs(arcs, [len(pdfs)], range(len(pdfs) + 1))


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [  # of pdfs 0 1 2 3 4 where 0 0 2 2 0 are right: two silences, a hit, a phone, a false alarm
        (Criterion("smbr"), 3),
        (Criterion("smbr", one_silence_class=False), 1),
        (Criterion("mpfe"), 4),
        (Criterion("mpfe", one_silence_class=False), 2),
    ],
)
def test_which_frames_count_as_correct(criterion, expected):
    reference = torch.tensor([0, 0, 2, 2, 0])
    value, gradient = value_and_gradient(
        chain([0, 1, 2, 3, 4]), random_likelihoods(0, 5)[0], reference, criterion
    )
    assert value.item() == pytest.approx(expected, abs=1e-9)
    assert gradient.abs().max() < 1e-6  # nothing to choose from


def test_mmi_of_the_only_path_is_minus_its_graph_score():
    criterion = Criterion("mmi", lm_scale=0.5)
    fsa, reference = chain([2, 3, 0], [-1.0, -2.0, -4.0]), torch.tensor([2, 3, 0])
    value, gradient = value_and_gradient(fsa, random_likelihoods(1, 3)[0], reference, criterion)
    assert value.item() == pytest.approx(3.5, abs=1e-5)
    assert gradient.abs().max() < 1e-6


def test_frames_without_their_reference_are_counted_and_dropped():
    scores, _ = random_likelihoods(2, 3)
    pdfs = [(2, 3), (2, 3), (2, 0)]
    arcs = [(t, t + 1, pdf + 1, 0, 0.0) for t, pair in enumerate(pdfs) for pdf in pair]
    fsa = lattice_from_arcs(arcs, [3], range(4))
    reference = torch.tensor([2, 5, 1])  # in the lattice, absent, another silence than pdf 0
    for criterion in VARIANTS:
        value = sequence_objective([fsa], scores[None], [reference], criterion, CLASSES)
        assert value.missing.tolist() == [2]
    _, full_gradient = value_and_gradient(
        fsa, scores, reference, Criterion("mmi", 0.5, drop_frames=False)
    )
    _, dropped_gradient = value_and_gradient(
        fsa, scores, reference, Criterion("mmi", 0.5, drop_frames=True)
    )
    assert torch.equal(dropped_gradient[0], full_gradient[0])
    assert dropped_gradient[0].abs().max() > 0.05
    assert not dropped_gradient[1:].any()
    posterior = (0.5 * scores[1, 2:4]).softmax(0)
    expected = torch.tensor([0, 0, -0.5 * posterior[0], -0.5 * posterior[1], 0, 0.5])
    torch.testing.assert_close(full_gradient[1], expected)
    # sMBR: nothing can be won in the second frame, the third is silence whatever its pdf
    value, _ = value_and_gradient(fsa, scores, reference, Criterion("smbr", 0.5))
    silence = (0.5 * scores[2, [2, 0]]).softmax(0)[1]
    first = (0.5 * scores[0, 2:4]).softmax(0)[0]
    assert value.item() == pytest.approx((first + silence).item(), abs=1e-6)


def test_lattices_of_a_search(toy):
    """The graph scores and frames of a searched lattice give the lattice's total score."""
    hmms = toy.senones("onset", variants=2)
    grammar = fst_from_arcs([(0, 0, 1, 1, -0.5), (0, 0, 2, 2, -1.0), (0, 0, 3, 3, -1.5)], [0])
    graph = toy.decoding_graph(hmms, grammar)
    scores = 2 * torch.randn(9, hmms.num_pdfs, generator=torch.Generator().manual_seed(1))
    lattice = search_lattice(0.5 * scores, graph, Beam(20.0, 8.0, 30, 3000))
    lattice_paths = paths(lattice)
    total = torch.tensor([score for _, score in lattice_paths], dtype=torch.float64).logsumexp(0)
    reads = lattice.labels > 0
    acoustic_scores = np.zeros(lattice.num_arcs, np.float32)
    acoustic_scores[reads] = 0.5 * scores.numpy()[lattice.frame[reads], lattice.labels[reads] - 1]
    graph_alone = replace(lattice, scores=lattice.scores - acoustic_scores)
    reference = torch.tensor(max(lattice_paths, key=lambda path: path[1])[0])
    classes = PdfClasses.of(hmms)
    assert classes.silence.tolist() == [phone == 1 for phone in hmms.phone_of_pdf.tolist()]
    criterion = Criterion("mmi", 0.5)
    value = sequence_objective([graph_alone], scores[None], [reference], criterion, classes)
    numerator = 0.5 * scores[torch.arange(9), reference].double().sum()
    assert (numerator - value.objective).item() == pytest.approx(total.item(), abs=1e-4)
    assert value.missing.item() == 0
    assert lattice_frames(lattice) == lattice_frames(graph_alone) == 9


@pytest.mark.parametrize("criterion", [c for c in VARIANTS if c.kind != "mmi" or not c.drop_frames])
def test_dead_ends_change_nothing(criterion):
    """A pruned intersection has dead ends."""
    whole = random_lattice(4)
    scores, reference = random_likelihoods(4)
    expected, expected_gradient = value_and_gradient(whole, scores, reference, criterion)
    states = whole.num_states
    table = np.stack([whole.source, whole.target, whole.labels, whole.frame], axis=1)
    dead = np.int32([[1, states - 1, 3, 1], [states - 1, states, 3, 2]])
    table[table[:, 1] == states - 1, 1] = states + 1  # the final state stays the last
    table = np.concatenate([table, dead])
    order = table[:, 0].argsort(kind="stable")
    source, target, labels, frame = table[order].T
    fsa = Lattice(
        source=source,
        target=target,
        labels=labels,
        scores=np.append(whole.scores, np.float32([0, 0]))[order],
        splits=np.zeros(len(table) + 1, np.int32),
        words=np.zeros(0, np.int32),
        frame=frame,
        graph_arc=np.arange(len(table), dtype=np.int32),
    )
    value, gradient = value_and_gradient(fsa, scores, reference, criterion)
    assert value.item() == pytest.approx(expected.item(), abs=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-7, rtol=0)


def test_in_inference_mode():
    fsa, (scores, reference) = random_lattice(1), random_likelihoods(1)
    expected, _ = value_and_gradient(fsa, scores, reference, VARIANTS[0])
    with torch.inference_mode():
        value = sequence_objective([fsa], scores[None] * 1, [reference], VARIANTS[0], CLASSES)
    assert torch.equal(value.objective[0], expected)


def test_mismatched_lattices_scores_and_references_are_refused():
    fsa, (scores, reference) = random_lattice(1), random_likelihoods(1)

    def run(fsa, scores, reference):
        sequence_objective([fsa], scores[None], [reference], Criterion(), CLASSES)

    with pytest.raises(LatticeMismatchError, match="lattice has 4 frames, the reference 3"):
        run(fsa, scores, reference[:3])
    with pytest.raises(LatticeMismatchError, match="scores 3"):
        run(fsa, scores[:3], reference)
    with pytest.raises(LatticeMismatchError, match="2 outputs"):
        run(fsa, scores[:, :2], reference)
    empty = fsa.select_arcs(np.zeros(fsa.num_arcs, bool))
    assert lattice_frames(empty) == 0
    with pytest.raises(LatticeMismatchError, match="lattice has 0 frames"):
        run(empty, scores, reference)


@pytest.mark.parametrize(
    "options", [{"kind": "mwer"}, {"acoustic_scale": 0}, {"lm_scale": -1}, {"boost": -0.1}]
)
def test_impossible_criteria_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Criterion(**options)
