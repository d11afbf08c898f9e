"""Topologies, trees and transition models."""

import math
import struct

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

from tests.hmm.test_tree import PHONES, TOPOLOGY, trees
from tests.interop.kaldi_worker import binary_tree
from tests.kaldi.forms import ReadTree, pdf_of_id, read_topology, read_transitions
from toolkit import cli
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Tree
from toolkit.kaldi.model import (
    KaldiModelError,
    KaldiTransitions,
    Transitions,
    read_senones,
    read_tree,
    topology_text,
    transitions_of,
    tree_text,
)
from toolkit.lang.tables import phone_table

PLAIN = Topology(("SIL", "SPN", "A", "B"))


def test_silence_and_speech_have_the_topologies_of_kaldi():
    topology = read_topology(topology_text(PLAIN))
    speech = [[(0, 0.5), (1, 0.5)], [(1, 0.5), (2, 0.5)], [(2, 0.5), (3, 0.5)], []]
    assert topology[3] == topology[4] == speech
    within = [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.25)]
    silence = [[(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)], within, within, within]
    assert topology[1] == topology[2] == [*silence, [(4, 0.5), (5, 0.5)], []]


@pytest.mark.parametrize(
    "topology",
    [PLAIN, PLAIN.at_low_rate(), Topology(("SIL", "A"), ("SIL",), 1, 1), Topology(("A",), ())],
)
def test_transitions_are_those_of_the_topology(topology):
    rows_by_phone = read_topology(topology_text(topology))
    assert sorted(rows_by_phone) == list(topology.phone_ids())
    for phone, rows in rows_by_phone.items():
        states = topology.num_states(phone)
        assert len(rows) == states + 1
        for state, arcs in enumerate(rows[:-1]):
            targets = {target for target, _ in arcs}
            assert targets - {states} == set(topology.successors(phone, state))
            assert (states in targets) == (state in topology.exit_states(phone))
            assert sum(share for _, share in arcs) == pytest.approx(1, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(trees())
def test_the_text_has_every_state_with_every_pdf_and_numbers_its_transitions(tree):
    senones = Senones(TOPOLOGY, tree)
    transitions = Transitions(senones)
    topology, triples, scores = read_transitions(transitions.text())
    assert triples == sorted(set(triples))
    needed = {
        (phone, state, tree.pdf(left, TOPOLOGY.state_id(phone, state), right))
        for phone in TOPOLOGY.phone_ids()
        for state in range(TOPOLOGY.num_states(phone))
        for left in TOPOLOGY.phone_ids()
        for right in TOPOLOGY.phone_ids()
    }
    assert needed <= {*triples}
    numbered = [
        (row, target, pdf)
        for row, (phone, state, pdf) in enumerate(triples, 1)
        for target, _ in topology[phone][state]
    ]
    assert pdf_of_id(transitions).tolist() == [pdf for *_, pdf in numbered]
    assert len(scores) == len(numbered)
    for number, (row, target, _) in enumerate(numbered, 1):
        phone, state, _ = triples[row - 1]
        counted = len(transitions_of(TOPOLOGY, phone, state))
        assert scores[number - 1] == pytest.approx(-math.log(counted), abs=1e-5)
        ends = target == TOPOLOGY.num_states(phone)
        ids = transitions.ids(np.array([row]), np.array([-1 if ends else target]))
        assert ids.tolist() == [number]


@settings(max_examples=60, deadline=None)
@given(trees())
def test_transition_states_stand_for_pdfs(tree):
    senones = Senones(TOPOLOGY, tree)
    transitions = Transitions(senones)
    states = transitions.states
    real = slice(1, None)
    table = states.table[:, real, real].numpy()
    assert (transitions.pdf[table] == senones.table[:, real, real].numpy()).all()
    rows = np.arange(len(table))[:, None, None]
    phones = np.array(TOPOLOGY.phone_of_state_id)[rows]
    assert (transitions.phone[table] == phones).all()
    assert table.max() < states.num_pdfs
    units, state_units = senones.context_units, states.context_units
    np.testing.assert_array_equal(units.index, state_units.index)
    np.testing.assert_array_equal(units.right, state_units.right)


def test_a_transition_that_the_hmm_lacks_leads_out_of_the_phone():
    transitions = Transitions(Senones.monophone(Topology(("SIL", "A"), ("SIL",)).at_low_rate()))
    onset, loop = np.array([3]), np.array([4])  # of A
    assert (transitions.phone[2], transitions.state[2]) == (2, 0)
    out = transitions.ids(onset, np.array([-1]))
    assert transitions.ids(onset, np.array([0])) == out
    assert transitions.ids(onset, np.array([1])) == out - 1
    assert transitions.ids(loop, np.array([0])) == transitions.ids(loop, np.array([-1]))


@settings(max_examples=60, deadline=None)
@given(trees())
def test_every_state_has_its_pdf_in_every_context(tree):
    """Silence replaces a missing neighbour."""
    kaldi_tree = ReadTree(tree_text(tree, TOPOLOGY))
    for phone in TOPOLOGY.phone_ids():
        for state in range(TOPOLOGY.num_states(phone)):
            number = TOPOLOGY.state_id(phone, state)
            for left in range(5):
                for right in range(5):
                    beside = left or TOPOLOGY.silence, right or TOPOLOGY.silence
                    expected = tree.pdf(beside[0], number, beside[1])
                    assert kaldi_tree.pdf(left, phone, right, state) == expected


@pytest.mark.parametrize("low_rate", [False, True])
def test_a_tree_without_questions(low_rate):
    topology = Topology(("SIL", "SPN", "A", "B"))
    topology = topology.at_low_rate() if low_rate else topology
    tree = Tree.monophone(topology)
    kaldi_tree = ReadTree(tree_text(tree, topology))
    for phone in topology.phone_ids():
        for state in range(topology.num_states(phone)):
            expected = tree.pdf(1, topology.state_id(phone, state), 1)
            assert kaldi_tree.pdf(0, phone, 3, state) == expected


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
    """A model in the binary format that Kaldi writes by default."""

    def number(value):
        return struct.pack("<bi", 4, value)

    def vector(values):
        return struct.pack(f"<bi{len(values)}i", 4, len(values), *values)

    def floating(value):
        return struct.pack("<bf", 4, value)

    topology, tables = text.split("</Topology>")
    entries, phones, loops = [], {}, "<SelfLoopPdfClass>" in topology
    for entry in topology.split("<TopologyEntry>")[1:]:
        names, states = entry.split("<ForPhones>")[1].split("</ForPhones>")
        phones |= dict.fromkeys(map(int, names.split()), len(entries))
        states = [state.split("</State>")[0].split() for state in states.split("<State>")[1:]]
        packed = number(len(states))
        for _, *fields in states:
            values = dict(zip(fields[::2], fields[1::2], strict=False))
            classes = [values.get(name) for name in ("<PdfClass>", "<ForwardPdfClass>")]
            pdf_classes = [int(value) for value in classes if value is not None] or [-1]
            pdf_classes += [int(values.get("<SelfLoopPdfClass>", -1))] if loops else []
            arcs = " ".join(fields).split("<Transition>")[1:]
            packed += b"".join(map(number, pdf_classes)) + number(len(arcs))
            for arc in arcs:
                packed += number(int(arc.split()[0])) + floating(float(arc.split()[1]))
        entries.append(packed)
    content = b"\0B<TransitionModel> <Topology> " + vector(sorted(phones))
    content += vector([phones.get(phone, -1) for phone in range(1 + max(phones))])
    content += (number(-1) if loops else b"") + number(len(entries)) + b"".join(entries)
    rows, scores = tables.split("<LogProbs>")
    kind, *numbers = rows.split()[:-1]
    content += b"</Topology> " + kind.encode() + b" " + b"".join(map(number, map(int, numbers)))
    floats = [float(score) for score in scores.split("]")[0].split()[1:]]
    content += f"</{kind[1:]} <LogProbs> FV ".encode() + number(len(floats))
    content += np.array(floats, "<f4").tobytes()
    return content + b"</LogProbs> </TransitionModel> <Nnet3> what follows is not read"


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees())
def test_written_transition_models_are_read(tmp_path, tree):
    transitions = Transitions(Senones(TOPOLOGY, tree))
    counts = np.diff(transitions.first)
    sizes = {phone: TOPOLOGY.num_states(phone) for phone in TOPOLOGY.phone_ids()}
    for content in (transitions.text().encode(), binary(transitions.text())):
        (tmp_path / "x").write_bytes(content)
        imported = KaldiTransitions.read(tmp_path / "x")
        assert imported.pdf.tolist() == pdf_of_id(transitions).tolist()
        assert imported.phone.tolist() == np.repeat(transitions.phone, counts).tolist()
        assert imported.state.tolist() == np.repeat(transitions.state, counts).tolist()
        assert (imported.num_states, imported.chain) == (sizes, False)


@pytest.mark.parametrize("content", [CHAIN.encode(), binary(CHAIN)], ids=["text", "binary"])
def test_loops_of_chain_models_have_pdfs_of_their_own(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    imported = KaldiTransitions.read(tmp_path / "x")
    assert imported.pdf.tolist() == [1, 0, 2, 3]
    assert imported.state.tolist() == [1, 0, 1, 0]
    assert (imported.num_states, imported.chain) == ({2: 2, 5: 2}, True)


@pytest.mark.parametrize(
    ("original", "replacement", "reason"),
    [
        ("<TransitionModel>\n", "<Nnet3> ", "'<Nnet3>' instead of <TransitionModel>"),
        ("5 0 3 2", "6 0 3 2", "state 0 of phone 6"),
        ("5 0 3 2", "5 2 3 2", "state 2 of phone 5"),
        ("<State> 1", "<State> 2", "not numbered in order"),
        (" -0.69 ]", " ]", "the number of its probabilities"),
        ("<Tuples> 2", "<Tuples> 3", "invalid literal"),
        ("</Tuples>", "</Tuples> ] <", "instead of <LogProbs>"),
        ("</LogProbs>\n</TransitionModel>\n", "", "truncated"),
    ],
)
def test_other_files_are_refused(tmp_path, original, replacement, reason):
    (tmp_path / "x").write_text(CHAIN.replace(original, replacement, 1))
    with pytest.raises(KaldiModelError, match=reason) as error:
        KaldiTransitions.read(tmp_path / "x")
    assert str(tmp_path / "x") in str(error.value)


@pytest.mark.parametrize("size", [1, 20, 80, 200, -90])
def test_the_beginning_of_a_binary_model_is_refused(tmp_path, size):
    (tmp_path / "x").write_bytes(binary(CHAIN)[:size])
    with pytest.raises(KaldiModelError):
        KaldiTransitions.read(tmp_path / "x")


SAME = {phone: phone for phone in TOPOLOGY.phone_ids()}


def pdfs(tree):
    """The pdfs of all states between all phones."""
    return tree.table()[:, 1:, 1:].tolist()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees())
def test_written_trees_are_read_in_both_forms(tmp_path, tree):
    text = tree_text(tree, TOPOLOGY)
    for content in (text.encode(), b"\0B" + binary_tree(text)):
        (tmp_path / "tree").write_bytes(content)
        assert pdfs(read_tree(tmp_path / "tree", TOPOLOGY, SAME)) == pdfs(tree)


def write_tree(tmp_path, text):
    (tmp_path / "tree").write_text(f"ContextDependency 3 1 ToPdf {text} EndContextDependency\n")
    return tmp_path / "tree"


# Of SIL with a state, and of A0, A1 and ʃ with two; Kaldi's ids are 3, 5, 6 and 7.
KALDI = {3: 1, 5: 2, 6: 3, 7: 4}
OTHERS = "TE -1 2 ( CE 5 CE 6 )"


def test_a_table_of_phones_as_build_tree_makes_it(tmp_path):
    """A0 and A1 share the trees of their states, which ask about the right and centre phones."""
    shared = (
        "SE -1 [ 0 ] { SE 2 [ 0 3 5 ] { CE 1 SE 1 [ 5 ] { CE 2 CE 3 } } SE 0 [ 7 ] { CE 4 CE 0 } }"
    )
    table = f"TE 1 8 ( NULL NULL NULL CE 7 NULL {shared} {shared} {OTHERS} )"
    tree = read_tree(write_tree(tmp_path, table), TOPOLOGY, KALDI)
    first, second = TOPOLOGY.state_id(2, 0), TOPOLOGY.state_id(3, 0)
    assert [tree.pdf(1, first, right) for right in (1, 2, 3, 4)] == [1, 1, 2, 2]
    assert [tree.pdf(1, second, right) for right in (1, 2, 3, 4)] == [1, 1, 3, 3]
    assert [tree.pdf(left, first + 1, 1) for left in (1, 2, 3, 4)] == [0, 0, 0, 4]
    assert [tree.pdf(1, TOPOLOGY.state_id(4, state), 1) for state in (0, 1)] == [5, 6]
    assert [root.phones for root in tree.roots] == [(1,), (2, 3), (2, 3), (4,), (4,)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("TE 1 5 ( NULL CE 0 CE 1 CE 1 CE 2 )", "pdf 1 belongs to the states 0 and 1"),
        ("TE 1 2 ( NULL CE 0 )", "no pdf for state 0 of phone 2"),
        ("XE 1", "'XE' instead of CE or TE or SE or NULL"),
        ("SE 0 [ 1 ", "EndContextDependency"),
        ("CE x", "invalid literal"),
        ("SE 0 [ 1 ] { " * 5000, "nested too deeply"),
    ],
)
def test_other_trees_are_refused(tmp_path, text, reason):
    path = write_tree(tmp_path, text)
    with pytest.raises(KaldiModelError, match=reason) as error:
        read_tree(path, TOPOLOGY, SAME)
    assert str(path) in str(error.value)


def test_wider_contexts_are_refused(tmp_path):
    path = write_tree(tmp_path, "CE 0")
    path.write_text(path.read_text().replace("3 1 ToPdf", "5 2 ToPdf"))
    with pytest.raises(KaldiModelError, match="contexts of 5 phones"):
        read_tree(path, TOPOLOGY, SAME)


def test_a_tree_of_monophones(tmp_path):
    text = "TE 0 5 ( NULL CE 0 TE -1 2 ( CE 1 CE 2 ) TE -1 2 ( CE 3 CE 4 ) TE -1 2 ( CE 5 CE 6 ) )"
    path = write_tree(tmp_path, text)
    path.write_text(path.read_text().replace("3 1 ToPdf", "1 0 ToPdf"))
    tree = read_tree(path, TOPOLOGY, SAME)
    assert isinstance(tree, Tree)
    assert tree.phones == PHONES
    assert [tree.pdf(1, state, 1) for state in range(7)] == list(range(7))


MODEL_PHONES = ("SIL", "SPN", "A_B", "A_E", "N_S")


def write_model_files(folder, topology):
    senones = Senones.monophone(topology)
    (folder / "tree").write_text(tree_text(senones.tree, topology))
    (folder / "model").write_text(Transitions(senones).text())
    phone_table(MODEL_PHONES, 2).write(folder / "phones.txt")
    return senones, (folder / "tree", folder / "model", folder / "phones.txt")


@pytest.mark.parametrize("low_rate", [False, True])
def test_the_command_makes_the_senones_of_the_model(tmp_path, low_rate):
    topology = Topology(MODEL_PHONES)
    topology = topology.at_low_rate() if low_rate else topology
    senones, files = write_model_files(tmp_path, topology)
    names = ("tree", "model", "phones")
    options = [f"--{name}={file}" for name, file in zip(names, files, strict=True)]
    command = ["kaldi", "import-senones", *options, f"--out={tmp_path / 'out'}"]
    result = CliRunner().invoke(cli.main, command)
    assert result.exit_code == 0, result.output
    assert "5 phones, " in result.output
    imported = Senones.load(tmp_path / "out")
    assert imported.topology.phones == MODEL_PHONES
    sizes = [imported.topology.num_states(phone) for phone in imported.topology.phone_ids()]
    assert sizes == [topology.num_states(phone) for phone in topology.phone_ids()]
    assert imported.table[:, 1:, 1:].tolist() == senones.table[:, 1:, 1:].tolist()


def test_unknown_phones_are_an_error(tmp_path):
    _, (tree, model, phones) = write_model_files(tmp_path, Topology(MODEL_PHONES))
    text = phones.read_text()
    phones.write_text(text.replace("A_E 4\n", ""))
    with pytest.raises(KaldiModelError, match="has no phone with the id 4"):
        read_senones(tree, model, phones)
    phones.write_text(text.replace("SIL 1\n", "sil 1\n"))
    with pytest.raises(KaldiModelError, match="has no phone SIL"):
        read_senones(tree, model, phones)
    phones.write_text(text.replace("SPN 2\n", "NSN 2\n"))
    with pytest.raises(KaldiModelError, match=r"phones have \[3, 5\] states"):
        read_senones(tree, model, phones)
