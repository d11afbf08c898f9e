"""Transition models; those that Kaldi's own code writes are read in tests/interop."""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.hmm.test_tree import TOPOLOGY, trees
from toolkit.hmm.senones import Senones
from toolkit.kaldi.model import KaldiModelError, KaldiTransitions
from toolkit.kaldi.transitions import Transitions

CHAIN = """<TransitionModel>
<Topology> <TopologyEntry> <ForPhones> 2 5 </ForPhones>
<State> 0 <ForwardPdfClass> 0 <SelfLoopPdfClass> 1 <Transition> 0 0.5 <Transition> 1 0.5 </State>
<State> 1 </State> </TopologyEntry> </Topology>
<Tuples> 2
2 0 0 1
5 0 3 2
</Tuples>
<LogProbs>
 [ 0 -0.69 -0.69 -0.69 -0.69 ]
</LogProbs>
</TransitionModel>
"""


def binary(text):
    """A model as Kaldi writes it by default; of the tests' own making."""

    def number(value):
        return struct.pack("<bi", 4, value)

    def vector(values):
        return struct.pack(f"<bi{len(values)}i", 4, len(values), *values)

    def floating(value):
        return struct.pack("<bf", 4, value)

    topology, rest = text.split("</Topology>")
    entries, phones, loops = [], {}, "<SelfLoopPdfClass>" in topology
    for entry in topology.split("<TopologyEntry>")[1:]:
        names, states = entry.split("<ForPhones>")[1].split("</ForPhones>")
        phones |= dict.fromkeys(map(int, names.split()), len(entries))
        states = [state.split("</State>")[0].split() for state in states.split("<State>")[1:]]
        made = number(len(states))
        for _, *fields in states:
            given = dict(zip(fields[::2], fields[1::2], strict=False))
            classes = [given.get(name) for name in ("<PdfClass>", "<ForwardPdfClass>")]
            known = [int(value) for value in classes if value is not None] or [-1]
            known += [int(given.get("<SelfLoopPdfClass>", -1))] if loops else []
            arcs = " ".join(fields).split("<Transition>")[1:]
            made += b"".join(map(number, known)) + number(len(arcs))
            for arc in arcs:
                made += number(int(arc.split()[0])) + floating(float(arc.split()[1]))
        entries.append(made)
    made = b"\0B<TransitionModel> <Topology> " + vector(sorted(phones))
    made += vector([phones.get(phone, -1) for phone in range(1 + max(phones))])
    made += (number(-1) if loops else b"") + number(len(entries)) + b"".join(entries)
    rows, scores = rest.split("<LogProbs>")
    kind, *numbers = rows.split()[:-1]
    made += b"</Topology> " + kind.encode() + b" " + b"".join(map(number, map(int, numbers)))
    floats = [float(score) for score in scores.split("]")[0].split()[1:]]
    made += f"</{kind[1:]} <LogProbs> FV ".encode() + number(len(floats))
    made += np.array(floats, "<f4").tobytes()
    return made + b"</LogProbs> </TransitionModel> <Nnet3> what follows is not read"


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees())
def test_what_was_written_is_read(tmp_path, tree):
    transitions = Transitions(Senones(TOPOLOGY, tree))
    counts = np.diff(transitions.first)
    sizes = {phone: TOPOLOGY.num_states(phone) for phone in TOPOLOGY.phone_ids()}
    for content in (transitions.text().encode(), binary(transitions.text())):
        (tmp_path / "x").write_bytes(content)
        found = KaldiTransitions.read(tmp_path / "x")
        assert found.pdf.tolist() == transitions.pdf_of_id.tolist()
        assert found.phone.tolist() == np.repeat(transitions.phone, counts).tolist()
        assert found.state.tolist() == np.repeat(transitions.state, counts).tolist()
        assert (found.num_states, found.chain) == (sizes, False)


@pytest.mark.parametrize("content", [CHAIN.encode(), binary(CHAIN)], ids=["text", "binary"])
def test_loops_of_chain_models_have_pdfs_of_their_own(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    found = KaldiTransitions.read(tmp_path / "x")
    assert found.pdf.tolist() == [1, 0, 2, 3]
    assert found.state.tolist() == [1, 0, 1, 0]
    assert (found.num_states, found.chain) == ({2: 2, 5: 2}, True)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("<TransitionModel>\n", "<Nnet3> ", "'<Nnet3>' in the place of <TransitionModel>"),
        ("5 0 3 2", "6 0 3 2", "state 0 of phone 6"),
        ("5 0 3 2", "5 2 3 2", "state 2 of phone 5"),
        ("<State> 1", "<State> 2", "not numbered in order"),
        (" -0.69 ]", " ]", "not those of its transitions"),
        ("<Tuples> 2", "<Tuples> 3", "invalid literal"),
        ("</Tuples>", "</Tuples> ] <", "in the place of <LogProbs>"),
        ("</LogProbs>\n</TransitionModel>\n", "", "too early"),
    ],
)
def test_other_files_are_refused(tmp_path, before, after, reason):
    (tmp_path / "x").write_text(CHAIN.replace(before, after, 1))
    with pytest.raises(KaldiModelError, match=reason) as error:
        KaldiTransitions.read(tmp_path / "x")
    assert str(tmp_path / "x") in str(error.value)


@pytest.mark.parametrize("size", [1, 20, 80, 200, -90])
def test_the_beginning_of_a_binary_model_is_refused(tmp_path, size):
    (tmp_path / "x").write_bytes(binary(CHAIN)[:size])
    with pytest.raises(KaldiModelError):
        KaldiTransitions.read(tmp_path / "x")
