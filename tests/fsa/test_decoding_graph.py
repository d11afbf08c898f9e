"""Decoding graphs equal the enumeration of all sentences and k2's operations."""

import itertools
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.fsa.transducers import assert_scores_equal, transductions
from toolkit.fsa.decoding_graph import compile_ctc_graph, compose_words, spelling_transducer
from toolkit.fsa.fst import FINAL, GraphError, dump_fst, fst_from_arcs, load_fst
from toolkit.fsa.lexicon import lexicon_transducer

# Words 1 (spoken 2 3), 2 (2, or 3 3) and 3 (3); phone 1 is silence; from 4 on symbols.
ENTRIES = [(1, [2, 3]), (2, [2, 5]), (2, [3, 3]), (3, [3, 5])]
SPOKEN = {1: [(2, 3)], 2: [(2,), (3, 3)], 3: [(3,)]}
# A bigram: state 0 starts, 1 and 2 follow words 1 and 2, 3 has no history; #0 is 4.
GRAMMAR = fst_from_arcs(
    [
        *[(0, 1, 1, 1, -0.5), (0, 3, 4, 0, -0.3), (1, 2, 2, 2, -0.25), (1, 3, 4, 0, -0.7)],
        *[(2, 1, 1, 1, -1.0), (2, 3, 4, 0, -0.1)],
        *[(3, 1, 1, 1, -1.5), (3, 2, 2, 2, -1.25), (3, 3, 3, 3, -2.0)],
    ],
    [3, 1],
)


def lexicon():
    return lexicon_transducer(ENTRIES, 1, 4, 4, 6)


def sentences(length):
    """The best score of every sentence of the grammar; back-off is free."""
    scores = transductions(GRAMMAR, 2 * length + 2)
    best = defaultdict(lambda: -math.inf)
    for (_, words), score in scores.items():
        if len(words) <= length:
            best[words] = max(best[words], score)
    return dict(best)


def test_phones_are_read_as_lexicon_and_grammar_allow():
    expected = defaultdict(lambda: -math.inf)
    for words, score in sentences(5).items():
        for phones in itertools.product(*(SPOKEN[w] for w in words)):
            for pauses in itertools.product([(), (1,)], repeat=len(words) + 1):
                parts = itertools.chain(*zip(pauses, [*phones, ()], strict=True))
                read = tuple(itertools.chain(*parts))
                if len(read) <= 5:
                    total = score + (len(words) + 1) * math.log(0.5)
                    expected[read, words] = max(expected[read, words], total)
    graph = compose_words(lexicon(), GRAMMAR, 4, 4)
    assert (graph.labels != 0).all()
    assert_scores_equal(transductions(graph, 6), dict(expected))


@pytest.mark.parametrize("between", [[], [1]])
def test_a_ctc_graph_reads_every_spelling_of_every_sentence(between):
    """Columns 0 (between words), 1, 2 and the blank 3; labels are columns + 1."""
    spelt = [(w, [6 if x == 5 else x for x in labels]) for w, labels in ENTRIES]
    spelling = spelling_transducer(spelt, between, 4, 5, 7)
    graph = compile_ctc_graph(4, 3, spelling, GRAMMAR, 5, 4)
    expected = defaultdict(lambda: -math.inf)
    scores = sentences(4)
    for frames in range(5):
        for path in itertools.product((1, 2, 3, 4), repeat=frames):
            labels = [x for x, _ in itertools.groupby(path) if x != 4]
            for words, score in scores.items():
                if may_spell(tuple(labels), words, bool(between)):
                    expected[path, words] = max(expected[path, words], score)
    assert_scores_equal(transductions(graph, 5), dict(expected))


def may_spell(labels, words, between):
    """Whether labels spell words, with some of label 1 between them and any at the edges."""
    if not between and 1 in labels:
        return False
    for spellings in itertools.product(*(SPOKEN[w] for w in words)):
        if not between and tuple(itertools.chain(*spellings)) == labels:
            return True
        if between:
            runs = itertools.groupby(labels, key=lambda x: x == 1)
            if [tuple(run) for edge, run in runs if not edge] == list(spellings):
                return True
    return False


def test_k2_agrees():
    k2 = pytest.importorskip("k2")
    import torch

    def to_k2(fst):
        table = np.stack((fst.source, fst.target, fst.labels, fst.scores.view(np.int32)), axis=1)
        aux = np.where(fst.labels == FINAL, FINAL, 0)
        aux[fst.word_counts > 0] = fst.words
        arcs = torch.from_numpy(table.astype(np.int32))
        return k2.arc_sort(k2.Fsa(arcs, aux_labels=torch.from_numpy(aux.astype(np.int32))))

    lg = k2.connect(k2.compose(to_k2(lexicon()), to_k2(GRAMMAR)))
    lg = k2.connect(k2.determinize(lg))
    arcs, words = lg.arcs.values().clone(), lg.aux_labels.values.clone()
    arcs[:, 2][arcs[:, 2] >= 4] = 0
    words[words >= 4] = 0
    lg = k2.Fsa(arcs, aux_labels=k2.RaggedTensor(lg.aux_labels.shape, words))
    lg = k2.connect(k2.remove_epsilon(lg))
    written = [tuple(w for w in row if w > 0) for row in lg.aux_labels.tolist()]
    paths, complete = {(0, (), ()): 0.0}, {}
    leaving = defaultdict(list)
    for (source, *arc), output, score in zip(
        lg.arcs.values()[:, :3].tolist(), written, lg.scores.tolist(), strict=True
    ):
        leaving[source].append((*arc, output, score))
    for _ in range(6):
        longer = {}
        for (state, read, wrote), total in paths.items():
            for target, label, output, score in leaving[state]:
                ends = label == FINAL
                outputs = (*wrote, *output)
                key = (read, outputs) if ends else (target, (*read, label), outputs)
                best = complete if ends else longer
                best[key] = max(best.get(key, -math.inf), total + score)
        paths = longer
    composed = compose_words(lexicon(), GRAMMAR, 4, 4)
    assert_scores_equal(transductions(composed, 6), complete)
    assert composed.num_arcs <= lg.num_arcs
    assert composed.num_states <= lg.shape[0]


def test_lm_scores_equal_those_of_the_grammar():
    graph = compose_words(lexicon(), GRAMMAR, 4, 4)
    lm = transductions(replace(graph, scores=graph.scores - graph.lm_scores), 7)
    assert lm.keys() == transductions(graph, 7).keys()
    for (_, words), score in lm.items():
        assert score == pytest.approx((len(words) + 1) * math.log(0.5), abs=1e-4)


def columns(fst):
    return {name: getattr(fst, name) for name in type(fst).__dataclass_fields__}


def test_graph_files_round_trip(toy, tmp_path):
    graph = toy.decoding_graph(toy.senones("plain", 2), GRAMMAR)
    (tmp_path / "graph.safetensors").write_bytes(dump_fst(graph))
    loaded = load_fst(tmp_path / "graph.safetensors")
    for name, value in columns(graph).items():
        assert np.array_equal(getattr(loaded, name), value), name


def test_labels_of_arcs_that_form_a_matrix_are_refused(toy, tmp_path):
    graph = toy.decoding_graph(toy.senones("plain", 2), GRAMMAR)
    tensors = load(dump_fst(graph))
    path = tmp_path / "graph.safetensors"
    for name in ("aux_splits", "lm_scores"):
        path.write_bytes(save(tensors | {name: tensors[name][:, None]}))
        with pytest.raises(GraphError, match=rf"{path}: not a graph \(the tensor '{name}' has"):
            load_fst(path)
