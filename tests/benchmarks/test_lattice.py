import random
from importlib.util import find_spec
from itertools import islice, pairwise

import numpy as np
import pytest
import torch

from benchmarks import lattice
from benchmarks.synthetic import SyntheticSentences
from tests.fsa.reference_path import reference_path
from toolkit.fsa.fst import load_fst


@pytest.fixture(scope="module")
def language():
    return SyntheticSentences.make(words=40, leaves=2)


def test_measures_all_parts(language):
    sizes = lattice.Sizes(utterances=6, seconds=2.0, words=40, repeats=1)
    table = lattice.benchmark(sizes=sizes)
    assert [row.name for row in table.rows] == [
        lattice.GENERATION,
        lattice.SEARCH,
        lattice.LOADING,
        lattice.SMBR,
        lattice.POSTERIORS,
        *([lattice.K2_POSTERIORS] if find_spec("k2") else []),
    ]
    about, size, factors, *k2_notes = table.notes
    assert len(k2_notes) == (0 if find_spec("k2") else 1)
    assert "6 lattices" in about
    density = float(size.split()[1])
    assert 1 < density <= 10
    assert "read back exactly" in size
    coded, raw = (
        float(size.split("; ")[1].split()[0]),
        float(size.split("arrays ")[1].split(",")[0]),
    )
    assert coded < raw / 10
    assert table.figures[lattice.SIZE] == pytest.approx(coded, abs=1e-3)
    assert f"{1 / table.row(lattice.SMBR).rate:.5f}" in factors


def test_synthetic_sentences_are_sentences_of_their_graph(language, tmp_path):
    graph = load_fst(language.graph(tmp_path, sentences=200))
    for seed in range(4):
        spoken = language.sentence(seed, 2.0)
        assert 2.0 < len(spoken.pdfs) * 0.03 < 4.0
        path = reference_path(spoken.pdfs, graph)
        assert np.array_equal(graph.labels[path.arc[:-1]] - 1, spoken.pdfs.numpy())
        # A word that sounds like another may be written as that one.
        assert graph.word_counts[path.arc].sum() == len(spoken.words)
        best = spoken.scores.argmax(1) == spoken.pdfs
        assert 0.1 < best.float().mean() < 0.8
        assert torch.equal(language.sentence(seed, 2.0).scores, spoken.scores)


def test_words_depend_on_the_previous_word(language):
    words = list(islice(language.words(random.Random(0)), 4000))
    followers = {}
    for word, following in pairwise(words):
        followers.setdefault(word, []).append(following)
    commonest = sum(
        max(map(next_words.count, set(next_words))) for next_words in followers.values()
    )
    assert commonest > 4 * len(words) / 40  # by chance about one in 40
