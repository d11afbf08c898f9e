"""fMLLR from the posteriors of lattices."""

import numpy as np
import pytest
import torch

from toolkit.align.adapt import (
    SILENCE_WEIGHT,
    LatticeSearch,
    accumulate_on_lattices,
    compose,
    refine_on_lattices,
)
from toolkit.align.force_align import TranscriptGraphs
from toolkit.features.gmm_features import load_transforms, save_transforms
from toolkit.fsa.config import Beam
from toolkit.fsa.expand import expand_phones_to_pdfs
from toolkit.fsa.fst import EPSILON, Fst, dump_fst, fst_from_arcs
from toolkit.hmm.transforms import FmllrStatistics, estimate_fmllr
from toolkit.lang.lang import Lang

WIDE = (Beam(1000.0, 1000.0, 1, 10**6),)
FEW = 4


def speaker_of(utterance):
    return utterance.partition("-")[0]


def lattice_search(tmp_path, graph: Fst, scale=0.1, beams=WIDE):
    path = tmp_path / "graph.safetensors"
    path.write_bytes(dump_fst(graph))
    return LatticeSearch(path, scale, beams)


def single_path_graph(system, states) -> Fst:
    """The graph of one path: the pdf of every frame."""
    pdfs = system.senones.pdfs(states).tolist()
    arcs = [(t, t + 1, pdf + 1, EPSILON, 0.0) for t, pdf in enumerate(pdfs)]
    return fst_from_arcs(arcs, [len(pdfs)])


def any_sentence(system, lang) -> Fst:
    """The graph of any words of the language in any order, silence where it may be."""
    arcs, count = [(0, 0, lang.phones["SIL"], EPSILON, -1.0)], 1
    for word in lang.vocabulary:
        for phones in lang.pronunciation_ids(word):
            states = [0, *range(count, count + len(phones) - 1), 0]
            count += len(phones) - 1
            arcs += [
                (states[i], states[i + 1], phone, EPSILON if i else lang.words[word], -1.0)
                for i, phone in enumerate(phones)
            ]
    return expand_phones_to_pdfs(fst_from_arcs(arcs, [0]), system.senones)


def test_on_one_path_statistics_equal_those_of_an_alignment(training, speech, tmp_path):
    system = training.system("tri")
    utterance = next(iter(speech.states))
    states = speech.states[utterance]
    search = lattice_search(tmp_path, single_path_graph(system, states))
    [(speaker, statistics)] = accumulate_on_lattices(
        (0, [utterance]), system, search
    ).by_speaker.items()
    assert speaker == speaker_of(utterance)
    silent = states < 10  # two silences of five states
    weights = torch.where(silent, SILENCE_WEIGHT, 1.0)
    expected = FmllrStatistics.zeros(system.features.dimension)
    x, pdfs = system.features.load(utterance), system.senones.pdfs(states)
    expected.accumulate(system.gmm, x[~silent], pdfs[~silent])
    silence = FmllrStatistics.zeros(system.features.dimension)
    silence.accumulate(system.gmm, x[silent], pdfs[silent])
    assert statistics.beta == pytest.approx(float(weights.sum()))
    for name in ("linear", "quadratic"):
        one_best = getattr(expected, name) + SILENCE_WEIGHT * getattr(silence, name)
        torch.testing.assert_close(getattr(statistics, name), one_best, rtol=1e-5, atol=1e-4)


def test_two_paths_are_weighted_by_their_posteriors(training, speech, tmp_path):
    system, scale = training.system("tri"), 0.02
    utterance = next(iter(speech.states))
    x = system.features.load(utterance)
    compiler = TranscriptGraphs(Lang.load(speech.lang), system.senones)
    paths = [
        system.senones.pdfs(compiler.equal_alignment(words, len(x)))
        for words in (["AX", "BY"], ["BX", "AY"])
    ]
    n = len(x)
    arcs = [
        (0 if t == 0 else k * n + t, k * n + t + 1, int(pdf) + 1, EPSILON, 0.0)
        for k, path in enumerate(paths)
        for t, pdf in enumerate(path)
    ]
    search = lattice_search(tmp_path, fst_from_arcs(arcs, [n, 2 * n]), scale)
    sums = accumulate_on_lattices((0, [utterance]), system, search)
    scores = system.gmm.log_likelihoods(x).double()
    totals = torch.stack([scale * scores[range(n), path].sum() for path in paths])
    silent = torch.tensor([p in (1, 2) for p in system.senones.phone_of_pdf.tolist()])
    expected = FmllrStatistics.zeros(system.features.dimension)
    for path, share in zip(paths, totals.softmax(0).tolist(), strict=True):
        weights = share * torch.where(silent[path], SILENCE_WEIGHT, 1.0)
        expected.accumulate(system.gmm, x, path, weights)
    [statistics] = sums.by_speaker.values()
    assert min(totals.softmax(0)) > 1e-6
    assert statistics.beta == pytest.approx(expected.beta)
    torch.testing.assert_close(statistics.linear, expected.linear, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(statistics.quadratic, expected.quadratic, rtol=1e-4, atol=1e-3)


def test_transforms_are_refined_by_speaker(training, speech, tmp_path):
    system = training.system("sat")
    lang = Lang.load(speech.lang)
    search = lattice_search(tmp_path, any_sentence(system, lang), 0.1, (Beam(13.0, 4.0, 1, 500),))
    initial = dict(load_transforms(training.root / "sat" / "fmllr.safetensors"))
    initial["absent"] = torch.eye(5, 6)
    save_transforms(tmp_path / "first.safetensors", initial)
    first = system.adapted(load_transforms(tmp_path / "first.safetensors"))
    for jobs in (1, 2):
        refine_on_lattices(first, search, tmp_path / f"{jobs}.safetensors", jobs)
    assert np.array_equal(*(np.fromfile(tmp_path / f"{n}.safetensors", np.uint8) for n in (1, 2)))
    refined = load_transforms(tmp_path / "1.safetensors")
    assert torch.equal(refined.pop("absent"), initial["absent"])
    ids = [u for shard in system.features.store.shards for u in shard]
    sums = accumulate_on_lattices((0, ids), system, search).by_speaker
    assert sorted(refined) == sorted(sums)
    for speaker, statistics in sums.items():
        new, gain = estimate_fmllr(statistics)
        assert gain >= 0
        expected = compose(new, initial[speaker].double()).float()
        torch.testing.assert_close(refined[speaker], expected, rtol=1e-3, atol=1e-3)


def test_an_utterance_without_a_path_does_not_count(training, speech, tmp_path):
    system = training.system("tri")
    utterance = next(iter(speech.states))
    search = lattice_search(tmp_path, single_path_graph(system, speech.states[utterance][:FEW]))
    assert accumulate_on_lattices((0, [utterance]), system, search).by_speaker == {}
