"""Graphs and search equal exhaustive enumeration on a language of three words."""

import itertools
import math

import pytest
import torch

from toolkit.align.config import AlignConfig
from toolkit.align.force_align import force_align
from toolkit.fsa.config import Beam
from toolkit.fsa.fst import dump_fst, load_fst
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.lattice import ScoredLattice, Weights, acoustic_scores, best_path
from toolkit.fsa.search import GraphMismatchError, search_lattice

pytestmark = pytest.mark.usefixtures("engine")  # each test with each engine
WIDE = Beam(1000.0, 1000.0, 1, 10**6)
ARPA = """\\data\\
ngram 1=5
ngram 2=4

\\1-grams:
-99\t<s>\t-0.30
-0.8\t</s>
-0.6\tAB\t-0.2
-0.5\tA\t-0.1
-0.9\tB\t-0.4

\\2-grams:
-0.3\t<s> A
-0.2\tA B
-0.7\tB AB
-0.4\tAB </s>

\\end\\
"""
UNIGRAM = {"</s>": -0.8, "AB": -0.6, "A": -0.5, "B": -0.9}
BACKOFF = {"<s>": -0.3, "AB": -0.2, "A": -0.1, "B": -0.4}
BIGRAM = {("<s>", "A"): -0.3, ("A", "B"): -0.2, ("B", "AB"): -0.7, ("AB", "</s>"): -0.4}


def align(toy, hmms, scores: list[torch.Tensor], transcripts: list[list[int]]):
    graphs = [toy.training_graph(hmms, words) for words in transcripts]
    pdf_scores = [x[:, g.pdfs] for x, g in zip(scores, graphs, strict=True)]
    return force_align(pdf_scores, graphs, hmms, AlignConfig())


@pytest.mark.parametrize("variants", [1, 2, 4])
@pytest.mark.parametrize("form", ["plain", "onset", "kaldi"])
@pytest.mark.parametrize("seed", range(3))
def test_alignment_equals_exhaustive_search(toy, form, seed, variants):
    hmms = toy.senones(form, variants)
    words = [2, 3]
    scores = torch.randn(8, hmms.num_pdfs, generator=torch.Generator().manual_seed(seed)) * 3
    [alignment] = align(toy, hmms, [scores], [words])
    paths = torch.tensor(sorted(toy.sentence_paths(hmms, words, 8)))
    best = float(scores[torch.arange(8), paths].sum(1).max())
    assert alignment.score * 8 == pytest.approx(best, abs=1e-3)
    assert float(scores[range(8), alignment.pdfs.long()].sum()) == pytest.approx(best, abs=1e-3)
    assert alignment.words == words
    # The states read off the path say the same as its pdfs, and so do phones and their frames.
    assert torch.equal(hmms.pdfs(alignment.states.long()), alignment.pdfs.long())
    assert (
        alignment.phone_frames
        == hmms.topology.phone_starts(alignment.states.long()).nonzero()[:, 0].tolist()
    )
    spoken = [alignment.phones[i] for i in alignment.word_phones]
    for word, phone in zip(words, spoken, strict=True):
        assert phone in {first for first, *_ in toy.lexicon[word]}


def test_too_few_frames_give_no_alignment(toy):
    hmms = toy.senones()
    graph = toy.training_graph(hmms, [1])
    assert align(toy, hmms, [torch.zeros(3, hmms.num_pdfs)], [[1]]) == [None]
    assert search_lattice(torch.zeros(3, len(graph.pdfs)), graph.fst, WIDE) is None
    assert align(toy, hmms, [torch.zeros(4, hmms.num_pdfs)], [[1]]) != [None]


def test_batch_alignments_equal_single_ones(toy):
    hmms = toy.senones()
    transcripts = [[2, 3], [1], [1, 1, 1], [3]]
    generator = torch.Generator().manual_seed(4)
    scores = [torch.randn(n, hmms.num_pdfs, generator=generator) for n in (9, 15, 6, 0)]
    batch = align(toy, hmms, scores, transcripts)
    singles = [
        align(toy, hmms, [x], [words])[0] for x, words in zip(scores, transcripts, strict=True)
    ]
    assert [b is None for b in batch] == [False, False, True, True]  # 6 frames for 12 states
    for batched, single in zip(batch[:2], singles[:2], strict=True):
        assert torch.equal(batched.pdfs, single.pdfs)
        assert (batched.words, batched.word_frames) == (single.words, single.word_frames)
        assert batched.score == pytest.approx(single.score, abs=1e-5)


@pytest.fixture
def grammar(tmp_path):
    (tmp_path / "words.txt").write_text("<eps> 0\nAB 1\nA 2\nB 3\n#0 4\n<s> 5\n</s> 6\n")
    (tmp_path / "g.arpa").write_text(ARPA)
    return grammar_acceptor(tmp_path / "g.arpa", tmp_path / "words.txt")


def lm_score(words) -> float:
    history, total = "<s>", 0.0
    for word in [*words, "</s>"]:
        backed_off = BACKOFF[history] + UNIGRAM[word]
        # G is a graph: its best path may back off although the bigram exists.
        total += max(BIGRAM.get((history, word), -math.inf), backed_off)
        history = word
    return total * math.log(10)


def exhaustive(toy, hmms, scores, weights):
    """Best (score, words) over all word sequences of at most three words."""
    frames = len(scores)
    best = (-math.inf, None)
    for count in (1, 2, 3):
        for words in itertools.product(toy.lexicon, repeat=count):
            graph_score = lm_score([toy.names[w] for w in words]) + count * weights.word_penalty
            for phones in itertools.product(*(toy.lexicon[w] for w in words)):
                for sequence in toy.with_silences(phones):
                    if sum(hmms.topology.min_frames(p) for p in sequence) > frames:
                        continue
                    pauses = (count + 1) * math.log(0.5)
                    acoustic = max(
                        (
                            float(sum(scores[t, x] for t, x in enumerate(path)))
                            for path in toy.pdf_paths(hmms, sequence, frames)
                        ),
                        default=-math.inf,
                    )
                    total = acoustic * weights.acoustic_scale + graph_score + pauses
                    best = max(best, (total, list(words)), key=lambda pair: pair[0])
    return best


@pytest.mark.parametrize("variants", [1, 3])
@pytest.mark.parametrize("form", ["plain", "onset"])
@pytest.mark.parametrize("seed", range(3))
def test_decoding_equals_exhaustive_search(toy, grammar, form, seed, variants):
    hmms = toy.senones(form, variants)
    graph = toy.decoding_graph(hmms, grammar)
    scores = torch.randn(5, hmms.num_pdfs, generator=torch.Generator().manual_seed(seed)) * 4
    best = best_path(search_lattice(scores, graph, WIDE))
    score, words = exhaustive(toy, hmms, scores, Weights(1.0))
    if len(best.words) <= 3:
        assert best.score == pytest.approx(score, abs=1e-3)
        assert best.words == words
    else:  # the enumeration stops at three words
        assert best.score >= score


@pytest.mark.parametrize("weights", [Weights(0.2), Weights(1.0, -3.0), Weights(0.5, 1.0)])
def test_reweighting_a_lattice_equals_searching_with_those_weights(toy, grammar, weights):
    hmms = toy.senones()
    graph = toy.decoding_graph(hmms, grammar)
    scores = torch.randn(6, hmms.num_pdfs, generator=torch.Generator().manual_seed(7)) * 3
    lattice = search_lattice(scores, graph, WIDE)
    original_scores = lattice.scores.copy()
    hypothesis = ScoredLattice.of(lattice, scores, 1.0).best_path(weights)
    score, words = exhaustive(toy, hmms, scores, weights)
    assert hypothesis.score == pytest.approx(score, abs=1e-3)
    assert hypothesis.words == words == ScoredLattice.of(lattice, scores, 1.0).best_words(weights)
    assert (lattice.scores == original_scores).all()


def test_a_beam_that_loses_every_complete_path_gives_no_lattice(toy, grammar):
    hmms = toy.senones()
    scores = torch.full((6, hmms.num_pdfs), -100.0)
    # AB and silences to the last frame but one are certain; then only A's first state is.
    for frame, pdf in enumerate([1, 1, 2, 3, 4, 1]):
        scores[frame, pdf] = 0.0
    narrow = Beam(5.0, 5.0, 1, 2)
    assert search_lattice(scores, toy.decoding_graph(hmms, grammar), narrow) is None
    assert search_lattice(scores, toy.decoding_graph(hmms, grammar), WIDE) is not None


def test_lattice_scores_are_acoustic_plus_graph(toy, grammar):
    hmms = toy.senones()
    scores = torch.randn(6, hmms.num_pdfs, generator=torch.Generator().manual_seed(3))
    lattice = search_lattice(scores, toy.decoding_graph(hmms, grammar), WIDE)
    silent = search_lattice(torch.zeros_like(scores), toy.decoding_graph(hmms, grammar), WIDE)
    graph_scores = lattice.scores - acoustic_scores(lattice, scores)
    silent_scores = set(round(s, 3) for s in silent.scores.tolist())
    assert set(round(s, 3) for s in graph_scores.tolist()) <= silent_scores


def test_graph_files_round_trip(toy, grammar, tmp_path):
    graph = toy.decoding_graph(toy.senones(), grammar)
    (tmp_path / "graph.safetensors").write_bytes(dump_fst(graph))
    loaded = load_fst(tmp_path / "graph.safetensors")
    for name in ("source", "target", "labels", "scores", "splits", "words", "lm_scores"):
        assert getattr(loaded, name).tolist() == getattr(graph, name).tolist()
    hmms = toy.senones()
    scores = torch.randn(6, hmms.num_pdfs, generator=torch.Generator().manual_seed(1))
    hypothesis = best_path(search_lattice(scores, loaded, WIDE))
    assert hypothesis.score == best_path(search_lattice(scores, graph, WIDE)).score


def test_a_graph_of_another_model_is_refused(toy, grammar):
    with pytest.raises(GraphMismatchError, match="make the graph again"):
        search_lattice(torch.zeros(5, 3), toy.decoding_graph(toy.senones(), grammar), WIDE)
