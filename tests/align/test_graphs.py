import pickle

import pytest
import torch

from toolkit.align.config import AlignConfig
from toolkit.align.force_align import TranscriptGraphs, force_align
from toolkit.fsa.fst import dump_fst
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon

LANG = Lang.of(Lexicon({"A": [("AA",)], "AB": [("AA", "BB"), ("BB",)]}))
TOPOLOGY = Topology(tuple(LANG.real_phones), states=3, silence_states=2)


@pytest.fixture
def compiler() -> TranscriptGraphs:
    return TranscriptGraphs(LANG, Senones.monophone(TOPOLOGY))


def test_min_frames_takes_the_shortest_pronunciations(compiler):
    assert compiler.min_frames(["A"]) == 3
    assert compiler.min_frames(["AB", "A"]) == 6
    assert compiler.min_frames(["UNHEARD"]) == 2  # <UNK> is spoken noise, a silence phone
    low = TranscriptGraphs(LANG, Senones.monophone(TOPOLOGY.at_low_rate()))
    assert low.min_frames(["AB", "A"]) == 2


def test_equal_alignment_is_even_and_complete(compiler):
    states = compiler.equal_alignment(["A"], 14)  # 2 + 3 + 2 states, two frames each
    first = TOPOLOGY.state_id(LANG.phones["AA"], 0)
    assert states.tolist() == [0, 0, 1, 1, *(first + i // 2 for i in range(6)), 0, 0, 1, 1]
    assert compiler.equal_alignment(["A"], 7).tolist() == [0, 1, first, first + 1, first + 2, 0, 1]
    assert len(compiler.equal_alignment(["A"], 6)) == 0


def test_a_graph_has_only_the_pdfs_of_its_transcript(compiler):
    graph = compiler.compile(["A"])
    first = TOPOLOGY.state_id(LANG.phones["AA"], 0)
    assert graph.pdfs.tolist() == [0, 1, first, first + 1, first + 2]
    labels = sorted(set(graph.fst.labels.tolist()))
    assert labels == [-1, 1, 2, 3, 4, 5]
    unknown = compiler.compile(["UNHEARD"])
    assert unknown.pdfs.tolist() == [0, 1, 2, 3]  # silence and spoken noise


def test_an_open_ended_graph_may_end_in_any_state(compiler):
    first = TOPOLOGY.state_id(LANG.phones["AA"], 0)
    spoken = [first, first + 1, first + 2]
    frame_states = [*spoken, *spoken, first + 3, first + 4]  # BB's last state is missing

    def aligned(frames, open_end):
        graph = compiler.compile(["A", "AB"], open_end)
        scores = torch.full((frames, len(graph.pdfs)), -9.0)
        columns = torch.searchsorted(graph.pdfs, torch.tensor(frame_states[:frames]))
        scores[range(frames), columns] = 0.0
        (alignment,) = force_align([scores], [graph], compiler.senones, AlignConfig())
        return alignment and alignment.states.tolist()

    for frames in range(1, 9):
        assert aligned(frames, open_end=True) == frame_states[:frames]
    assert [aligned(frames, open_end=False) for frames in range(1, 6)] == [None] * 5
    assert aligned(8, open_end=False) not in (None, frame_states)


def test_a_compiler_survives_pickling_after_use(compiler):
    graph = compiler.compile(["A", "AB"])
    graph_of_copy = pickle.loads(pickle.dumps(compiler)).compile(["A", "AB"])
    assert dump_fst(graph.fst) == dump_fst(graph_of_copy.fst)
    assert graph.pdfs.tolist() == graph_of_copy.pdfs.tolist()
