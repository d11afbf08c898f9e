import pickle

import pytest

pytest.importorskip("k2")

from toolkit.align.graphs import TranscriptCompiler
from toolkit.hmm.topology import Topology
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon

LANG = Lang.of(Lexicon({"A": [("AA",)], "AB": [("AA", "BB"), ("BB",)]}))


@pytest.fixture
def compiler() -> TranscriptCompiler:
    return TranscriptCompiler(LANG, Topology(tuple(LANG.real_phones), states=3, silence_states=2))


def test_min_frames_takes_the_shortest_pronunciations(compiler):
    assert compiler.min_frames(["A"]) == 3
    assert compiler.min_frames(["AB", "A"]) == 6
    assert compiler.min_frames(["UNHEARD"]) == 2  # <UNK> is spoken noise, a silence phone


def test_equal_alignment_is_even_and_complete(compiler):
    pdfs = compiler.equal_alignment(["A"], 14)  # 2 + 3 + 2 states, two frames each
    first = compiler.topology.pdf(LANG.phones["AA"], 0)
    assert pdfs.tolist() == [0, 0, 1, 1, *(first + i // 2 for i in range(6)), 0, 0, 1, 1]
    assert len(compiler.equal_alignment(["A"], 6)) == 0


def test_a_compiler_survives_pickling_after_use(compiler):
    graph = compiler.compile(["A", "AB"])
    again = pickle.loads(pickle.dumps(compiler)).compile(["A", "AB"])
    assert graph.arcs.values().tolist() == again.arcs.values().tolist()
