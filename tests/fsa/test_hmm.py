"""Training and decoding graphs accept exactly the pdf sequences of their transcripts."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.fsa.expand import expand_phones_to_pdfs
from toolkit.fsa.fst import FINAL, connect, fst_from_arcs
from toolkit.fsa.lexicon import unpack_label
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Leaf, Root, Split, Tree

FORMS = ("plain", "onset", "kaldi")


def paths(graph, frames):
    """(labels, output labels, scores, LM scores) of every path of `frames` frames."""
    outgoing = {}
    words = [w.tolist() for w in np.split(graph.words, graph.splits[1:-1])]
    lm_scores = [0.0] * len(words) if graph.lm_scores is None else graph.lm_scores.tolist()
    arcs = zip(graph.source.tolist(), graph.target.tolist(), graph.labels.tolist(), strict=True)
    annotations = zip(words, graph.scores.tolist(), lm_scores, strict=True)
    for (source, *arc), annotation in zip(arcs, annotations, strict=True):
        outgoing.setdefault(source, []).append((*arc, *annotation))
    open_paths = [(0, (), (), 0.0, 0.0)]
    for _ in range(frames):
        open_paths = [
            (to, (*read, label), (*wrote, *words), total + score, lm + part)
            for state, read, wrote, total, lm in open_paths
            for to, label, words, score, part in outgoing.get(state, ())
            if label != FINAL
        ]
    return [
        (read, (*wrote, *words), total + score, lm + part)
        for state, read, wrote, total, lm in open_paths
        for _, label, words, score, part in outgoing.get(state, ())
        if label == FINAL
    ]


def read_by_training(graph, frames):
    return [tuple(x - 1 for x in read) for read, *_ in paths(graph, frames)]


def sentence(words):
    """A grammar of one sentence."""
    arcs = [(i, i + 1, word, word, 0.0) for i, word in enumerate(words)]
    return fst_from_arcs(arcs, [len(words)])


@pytest.mark.parametrize("variants", [1, 3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("words", [[], [1], [2], [3, 3], [2, 1]])
def test_a_training_graph_accepts_what_its_transcript_may_be_and_nothing_else(
    toy, form, words, variants
):
    hmms = toy.senones(form, variants)
    graph = toy.transcript(hmms, words)
    for frames in range(1, 8):
        expected = toy.sentence_paths(hmms, words, frames)
        assert {*read_by_training(graph, frames)} == expected
    assert expected


@settings(deadline=None, max_examples=30)
@given(
    words=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3),
    form=st.sampled_from(FORMS),
    variants=st.integers(1, 4),
    frames=st.integers(1, 7),
)
def test_training_and_decoding_accept_the_same(toy, words, form, variants, frames):
    """The decoding graph of a grammar of one sentence, and that sentence's training graph."""
    hmms = toy.senones(form, variants)
    decoding = paths(toy.decoding_graph(hmms, sentence(words)), frames)
    training = read_by_training(toy.transcript(hmms, words), frames)
    assert {tuple(x - 1 for x in read) for read, *_ in decoding} == {*training}
    assert all(wrote == tuple(words) for _, wrote, *_ in decoding)
    # Every choice between silence and none costs log 2.
    choices = (len(words) + 1) * math.log(0.5)
    assert all(total == pytest.approx(choices, abs=1e-4) for _, _, total, _ in decoding)


@pytest.mark.parametrize("variants", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_an_open_end_accepts_the_beginnings_of_all_paths(toy, form, variants):
    hmms = toy.senones(form, variants)
    graph = toy.transcript(hmms, [2, 3], open_end=True)
    for frames in range(1, 7):
        expected = toy.sentence_paths(hmms, [2, 3], frames, whole=False)
        assert {*read_by_training(graph, frames)} == expected
    assert expected > toy.sentence_paths(hmms, [2, 3], 6)


@pytest.mark.parametrize("form", FORMS)
def test_an_open_end_aligns_the_beginning_of_a_transcript(toy, form):
    from toolkit.align.config import AlignConfig
    from toolkit.align.force_align import force_align

    hmms = toy.senones(form, 2)
    graph = toy.training_graph(hmms, [2, 3], open_end=True)
    columns = {pdf: column for column, pdf in enumerate(graph.pdfs.tolist())}
    generator = torch.Generator().manual_seed(5)
    for frames in (1, 3, 5):
        scores = torch.randn(frames, len(graph.pdfs), generator=generator) * 3
        best = max(
            float(scores[range(frames), [columns[pdf] for pdf in read]].sum())
            for read in read_by_training(toy.transcript(hmms, [2, 3], open_end=True), frames)
        )
        (alignment,) = force_align([scores], [graph], hmms, AlignConfig())
        assert alignment.score * frames == pytest.approx(best, abs=1e-3)
        assert [2, 3][: len(alignment.words)] == alignment.words


@pytest.mark.parametrize("form", FORMS)
def test_phones_and_words_are_written_in_the_frames_in_which_they_begin(toy, form):
    hmms = toy.senones(form, 3)
    for read, wrote, *_ in paths(toy.transcript(hmms, [2, 1]), 7):
        pdfs = torch.tensor([x - 1 for x in read])
        phones, words = zip(*map(unpack_label, wrote), strict=True)
        assert [word for word in words if word] == [2, 1]
        phones_read = [int(p) for p in hmms.phone_of_pdf[pdfs]]
        assert [phone for phone, _ in itertools.groupby(phones_read)] == [
            phone for phone, _ in itertools.groupby(phones)
        ]


def test_lm_scores_stay_with_their_words(toy):
    """The score of each path, minus that of its silences, is its LM score."""
    arcs = [(0, 1, 1, 1, -0.5), (0, 1, 2, 2, -1.5), (1, 2, 3, 3, -2.0), (1, 2, 2, 2, -3.0)]
    arcs += [(0, 2, 3, 3, -0.25), (2, 0, 4, 0, -0.7)]  # the last is the back-off
    step = {(source, word): (target, score) for source, target, word, _, score in arcs}

    def lm_score(words):
        total, state = 0.0, 0
        for word in words:
            if state == 2:
                state, total = 0, total - 0.7
            state, score = step.get((state, word), (None, 0.0))
            total += score
        return total if state == 2 else None

    graph = toy.decoding_graph(toy.senones("plain", 3), fst_from_arcs(arcs, [2]))
    word_sequences = set()
    for _, words, total, lm in paths(graph, 7):
        assert lm == pytest.approx(lm_score(words), abs=1e-4)
        assert total - lm == pytest.approx((len(words) + 1) * math.log(0.5), abs=1e-4)
        word_sequences.add(words)
    frames = {1: 4, 2: 2, 3: 2}
    candidates = [words for n in (1, 2, 3) for words in itertools.product(frames, repeat=n)]
    short = {words for words in candidates if sum(map(frames.get, words)) <= 7}
    assert word_sequences == {words for words in short if lm_score(words) is not None}


def test_graphs_have_no_epsilons_and_only_states_that_lead_somewhere(toy):
    hmms = toy.senones("kaldi", 4)
    for graph in (
        toy.transcript(hmms, [1, 2, 3]),
        toy.transcript(hmms, [1, 2, 3], open_end=True),
        toy.decoding_graph(hmms, sentence([1, 2, 3])),
    ):
        assert (graph.labels != 0).all()
        assert connect(graph).num_arcs == graph.num_arcs


def test_an_empty_transcript_reads_silence(toy):
    """Silence of one state may last any number of frames."""
    hmms = toy.senones()
    graph = toy.transcript(hmms, [])
    assert read_by_training(graph, 3) == [(0, 0, 0)]


def test_context_reaches_across_words_and_silences():
    """The pdf of B depends on whether A precedes it."""
    topology = Topology(("SIL", "A", "B"), ("SIL",), states=1, silence_states=1)
    after_a = Split("left", frozenset({2}), 0.0, 0, Leaf(2, 0), Leaf(3, 0))
    tree = Tree(
        topology.phones,
        (Root((1,), 0, Leaf(0, 0)), Root((2,), 0, Leaf(1, 0)), Root((3,), 0, after_a)),
    )
    hmms = Senones(topology, tree)
    arcs = [(0, 1, 2, 2, 0.0), (1, 2, 1, 0, 0.0), (1, 3, 3, 3, 0.0), (2, 3, 3, 3, 0.0)]
    graph = expand_phones_to_pdfs(fst_from_arcs(arcs, [3]), hmms)
    assert {*read_by_training(graph, 2)} == {(1, 2)}  # A B
    assert {*read_by_training(graph, 3)} == {(1, 1, 2), (1, 2, 2), (1, 0, 3)}  # A SIL B
