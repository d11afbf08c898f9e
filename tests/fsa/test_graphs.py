"""Graphs and search against exhaustive enumeration on a language of two phones and three words."""

import itertools
import math

import pytest
import torch

k2 = pytest.importorskip("k2")

from toolkit.fsa.alignment import AlignConfig, force_align, force_align_batch  # noqa: E402
from toolkit.fsa.arcs import dump_fsa, load_fsa, load_graph  # noqa: E402
from toolkit.fsa.decoding_graph import compile_decoding_graph  # noqa: E402
from toolkit.fsa.grammar import GrammarError, grammar_acceptor  # noqa: E402
from toolkit.fsa.hmm import hmm_transducer  # noqa: E402
from toolkit.fsa.lattice import Weights, acoustic_scores, reweighted_best_path  # noqa: E402
from toolkit.fsa.lexicon import lexicon_transducer  # noqa: E402
from toolkit.fsa.search import (  # noqa: E402
    Beam,
    GraphMismatchError,
    best_path,
    search_lattice,
)
from toolkit.fsa.transcript import training_graph, transcript_graph  # noqa: E402
from toolkit.hmm.topology import Topology  # noqa: E402

SIL, A, B = 1, 2, 3
LEXICON = {1: [(A, B)], 2: [(A,), (B, B)], 3: [(B,)]}  # word id -> pronunciations
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
NAMES = {1: "AB", 2: "A", 3: "B"}


def topology(onset: bool = False) -> Topology:
    plain = Topology(("SIL", "A", "B"), ("SIL",), states=2, silence_states=1)
    return plain.at_low_rate() if onset else plain


def pdf_paths(topo: Topology, phones: tuple[int, ...], frames: int) -> set[tuple[int, ...]]:
    """All frame-by-frame pdf sequences of a phone sequence, by enumeration."""
    found = set()
    for cuts in itertools.combinations(range(1, frames), len(phones) - 1):
        lengths = [b - a for a, b in itertools.pairwise((0, *cuts, frames))]
        parts = [within(topo, p, n) for p, n in zip(phones, lengths, strict=True)]
        found |= {tuple(itertools.chain(*path)) for path in itertools.product(*parts)}
    return found


def within(topo: Topology, phone: int, frames: int) -> list[list[int]]:
    """All pdf sequences of one phone that lasts `frames` frames."""
    states = topo.num_states(phone)
    if topo.onset:
        return [[topo.pdf(phone, 0)] + [topo.pdf(phone, 1)] * (frames - 1)]
    return [
        [topo.pdf(phone, state) for state in path]
        for path in itertools.combinations_with_replacement(range(states), frames)
        if set(path) == set(range(states))
    ]


def with_silences(words_phones):
    """Phone sequences of a word sequence with silence optional at every boundary, and how often."""
    for pauses in itertools.product([False, True], repeat=len(words_phones) + 1):
        phones = [SIL] if pauses[0] else []
        for word, pause in zip(words_phones, pauses[1:], strict=True):
            phones += list(word) + ([SIL] if pause else [])
        yield tuple(phones)


@pytest.mark.parametrize("onset", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_alignment_equals_exhaustive_search(onset, seed):
    topo = topology(onset)
    words = [2, 3]
    graph = training_graph(
        hmm_transducer(topo), transcript_graph(words, [LEXICON[w] for w in words], SIL)
    )
    scores = torch.randn(7, topo.num_pdfs, generator=torch.Generator().manual_seed(seed)) * 3
    found = force_align(scores, graph, AlignConfig())
    best = max(
        float(sum(scores[t, x] for t, x in enumerate(path)))
        for phones in itertools.product(*(LEXICON[w] for w in words))
        for sequence in with_silences(phones)
        for path in pdf_paths(topo, sequence, 7)
    )
    assert found.score * 7 == pytest.approx(best, abs=1e-3)
    assert float(scores[range(7), found.pdfs.long()].sum()) == pytest.approx(best, abs=1e-3)
    assert found.words == words


def test_alignment_of_too_few_frames_finds_nothing():
    topo = topology()
    graph = training_graph(hmm_transducer(topo), transcript_graph([1], [LEXICON[1]], SIL))
    assert force_align(torch.zeros(3, topo.num_pdfs), graph, AlignConfig()) is None
    assert search_lattice(torch.zeros(3, topo.num_pdfs), graph, WIDE) is None
    assert force_align(torch.zeros(4, topo.num_pdfs), graph, AlignConfig()) is not None


def test_a_batch_aligns_as_its_utterances_do():
    topo = topology()
    h = hmm_transducer(topo)
    transcripts = [[2, 3], [1], [1, 1, 1], [3]]
    graphs = [
        training_graph(h, transcript_graph(words, [LEXICON[w] for w in words], SIL))
        for words in transcripts
    ]
    generator = torch.Generator().manual_seed(4)
    scores = [torch.randn(n, topo.num_pdfs, generator=generator) for n in (9, 15, 6, 0)]
    batch = force_align_batch(scores, graphs, AlignConfig())
    alone = [force_align(x, g, AlignConfig()) for x, g in zip(scores, graphs, strict=True)]
    assert [b is None for b in batch] == [False, False, True, True]  # 6 frames for 12 states
    for one, other in zip(batch[:2], alone[:2], strict=True):
        assert torch.equal(one.pdfs, other.pdfs)
        assert (one.words, one.word_frames) == (other.words, other.word_frames)
        assert one.score == pytest.approx(other.score, abs=1e-5)


@pytest.fixture
def grammar(tmp_path):
    (tmp_path / "words.txt").write_text("<eps> 0\nAB 1\nA 2\nB 3\n#0 4\n<s> 5\n</s> 6\n")
    (tmp_path / "g.arpa").write_text(ARPA)
    return grammar_acceptor(tmp_path / "g.arpa", tmp_path / "words.txt")


def make_graph(topo, grammar):
    # phones 4.. are #0 (G's back-off), #1 (a tells from ab, and b from bb), #2 (after silence)
    entries = [(1, [A, B]), (2, [A, 5]), (2, [B, B]), (3, [B, 5])]
    lexicon = lexicon_transducer(entries, SIL, 4, 4, 6)
    return compile_decoding_graph(hmm_transducer(topo), lexicon, grammar, 4, 4)


def lm_score(words) -> float:
    history, total = "<s>", 0.0
    for word in [*words, "</s>"]:
        backed_off = BACKOFF[history] + UNIGRAM[word]
        # G is a graph: its best path may back off although the bigram exists.
        total += max(BIGRAM.get((history, word), -math.inf), backed_off)
        history = word
    return total * math.log(10)


def exhaustive(topo, scores, weights):
    """Best (score, words) over all word sequences of at most three words."""
    frames = len(scores)
    best = (-math.inf, None)
    for count in (1, 2, 3):
        for words in itertools.product(LEXICON, repeat=count):
            graph_score = lm_score([NAMES[w] for w in words]) + count * weights.word_penalty
            for phones in itertools.product(*(LEXICON[w] for w in words)):
                for sequence in with_silences(phones):
                    if sum(topo.min_frames(p) for p in sequence) > frames:
                        continue
                    pauses = (count + 1) * math.log(0.5)
                    acoustic = max(
                        (
                            float(sum(scores[t, x] for t, x in enumerate(path)))
                            for path in pdf_paths(topo, sequence, frames)
                        ),
                        default=-math.inf,
                    )
                    total = acoustic * weights.acoustic_scale + graph_score + pauses
                    best = max(best, (total, list(words)), key=lambda pair: pair[0])
    return best


@pytest.mark.parametrize("onset", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_decoding_equals_exhaustive_search(grammar, onset, seed):
    topo = topology(onset)
    graph = make_graph(topo, grammar)
    scores = torch.randn(5, topo.num_pdfs, generator=torch.Generator().manual_seed(seed)) * 4
    best = best_path(search_lattice(scores, graph, WIDE))
    score, words = exhaustive(topo, scores, Weights(1.0))
    if len(best.words) <= 3:
        assert best.score == pytest.approx(score, abs=1e-3)
        assert best.words == words
    else:  # the enumeration stops at three words
        assert best.score >= score


@pytest.mark.parametrize("weights", [Weights(0.2), Weights(1.0, -3.0), Weights(0.5, 1.0)])
def test_reweighting_a_lattice_equals_searching_with_those_weights(grammar, weights):
    topo = topology()
    graph = make_graph(topo, grammar)
    scores = torch.randn(6, topo.num_pdfs, generator=torch.Generator().manual_seed(7)) * 3
    lattice = search_lattice(scores, graph, WIDE)
    before = lattice.scores.clone()
    found = reweighted_best_path(lattice, scores, 1.0, weights)
    score, words = exhaustive(topo, scores, weights)
    assert found.score == pytest.approx(score, abs=1e-3)
    assert found.words == words
    assert torch.equal(lattice.scores, before)


def test_a_beam_that_loses_every_complete_path_gives_no_lattice(grammar):
    topo = topology()
    scores = torch.full((6, topo.num_pdfs), -100.0)
    # AB and silences to the last frame but one are certain; then only A's first state is.
    for frame, pdf in enumerate([1, 1, 2, 3, 4, 1]):
        scores[frame, pdf] = 0.0
    narrow = Beam(5.0, 5.0, 1, 2)
    assert search_lattice(scores, make_graph(topo, grammar), narrow) is None
    assert search_lattice(scores, make_graph(topo, grammar), WIDE) is not None


def test_lattice_scores_are_acoustic_plus_graph(grammar):
    topo = topology()
    scores = torch.randn(6, topo.num_pdfs, generator=torch.Generator().manual_seed(3))
    lattice = search_lattice(scores, make_graph(topo, grammar), WIDE)
    silent = search_lattice(torch.zeros_like(scores), make_graph(topo, grammar), WIDE)
    graph_scores = lattice.scores - acoustic_scores(lattice, scores)
    known = set(round(s, 3) for s in silent.scores.tolist())
    assert set(round(s, 3) for s in graph_scores.tolist()) <= known


def test_graph_files_round_trip(grammar, tmp_path):
    graph = make_graph(topology(), grammar)
    (tmp_path / "graph.safetensors").write_bytes(dump_fsa(graph))
    again = load_fsa(tmp_path / "graph.safetensors")
    assert k2.to_str_simple(again) == k2.to_str_simple(graph)
    assert torch.equal(again.lm_scores, graph.lm_scores)
    assert again.aux_labels.tolist() == graph.aux_labels.tolist()
    topo = topology()
    scores = torch.randn(6, topo.num_pdfs, generator=torch.Generator().manual_seed(1))
    once_copied = load_graph(tmp_path / "graph.safetensors")
    assert best_path(search_lattice(scores, once_copied, WIDE)).score == pytest.approx(
        best_path(search_lattice(scores, graph, WIDE)).score
    )


def test_a_graph_of_another_model_is_refused(grammar):
    with pytest.raises(GraphMismatchError, match="make the graph again"):
        search_lattice(torch.zeros(5, 3), make_graph(topology(), grammar), WIDE)


def test_broken_arpa_is_reported(tmp_path):
    (tmp_path / "words.txt").write_text("<eps> 0\nA 1\n#0 2\n")
    (tmp_path / "bad.arpa").write_text("this is not a language model\n")
    with pytest.raises(GrammarError, match=r"bad\.arpa"):
        grammar_acceptor(tmp_path / "bad.arpa", tmp_path / "words.txt")


def test_no_common_word_is_reported(tmp_path):
    (tmp_path / "words.txt").write_text("<eps> 0\nAB 1\nA 2\nB 3\n#0 4\n<s> 5\n</s> 6\n")
    (tmp_path / "g.arpa").write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-1 <s>\n-1 C\n\n\\end\\\n")
    with pytest.raises(GrammarError, match="spell words alike"):
        grammar_acceptor(tmp_path / "g.arpa", tmp_path / "words.txt")
