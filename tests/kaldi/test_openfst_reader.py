"""Transducers in OpenFst's binary format; what kaldifst writes is read in tests/interop."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fsa.transducers import agree, transducers, transductions
from tests.kaldi.openfst_files import read_openfst
from toolkit.fsa.fst import GraphError, fst_from_arcs
from toolkit.fsa.remove_epsilon import remove_epsilon
from toolkit.kaldi.openfst import dump_openfst
from toolkit.kaldi.openfst_reader import load_openfst

GRAPH = fst_from_arcs([(0, 1, 2, 7, -0.5), (1, 1, 3, 0, -1.0), (1, 2, 0, 4, 0.0)], {2: -2.0})


def header(kind, flags, start, states, arcs, arc="standard"):
    names = (struct.pack("<i", len(name)) + name.encode() for name in (kind, arc))
    numbers = struct.pack("<iiQqqq", 2, flags, 0, start, states, arcs)
    return struct.pack("<i", 2125659606) + b"".join(names) + numbers


def const(content, aligned):
    """A `vector` as `fstconvert --fst_type=const` writes it."""
    states, arcs, finals = read_openfst(content)
    made = header("const", 4 * aligned, 0, states, len(arcs))
    made += bytes(-len(made) % 16 if aligned else 0)
    for state in range(states):
        first = sum(arc[0] < state for arc in arcs)
        mine = [arc for arc in arcs if arc[0] == state]
        silent = [sum(arc[side] == 0 for arc in mine) for side in (2, 3)]
        cost = finals.get(state, float("inf"))
        made += struct.pack("<fIIII", cost, first, len(mine), *silent)
    made += bytes(-len(made) % 16 if aligned else 0)
    return made + b"".join(struct.pack("<iifi", r, w, c, t) for _, t, r, w, c in arcs)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(transducers(labels=(0, 1, 2), cyclic=True))
def test_what_was_written_is_read(tmp_path, fst):
    if not fst.num_arcs:
        return
    written = dump_openfst(fst)
    for content in (written, const(written, False), const(written, True)):
        (tmp_path / "x.fst").write_bytes(content)
        agree(transductions(load_openfst(tmp_path / "x.fst"), 5), transductions(fst, 5))


def test_a_start_that_is_not_the_first_state_becomes_it(tmp_path):
    arcs = struct.pack("<iifi", 5, 6, 0.25, 0)
    states = struct.pack("<fq", 1.5, 0) + struct.pack("<fq", float("inf"), 1) + arcs
    (tmp_path / "x.fst").write_bytes(header("vector", 0, 1, 2, 1) + states)
    assert transductions(load_openfst(tmp_path / "x.fst"), 2) == {((5,), (6,)): -1.75}


def test_arcs_of_infinite_cost_are_on_no_path(tmp_path):
    arcs = [(0, 1, 2, 7, -0.5), (0, 1, 0, 8, -9.5), (1, 2, 0, 4, 0.0), (1, 2, 3, 5, -9.5)]
    content = dump_openfst(fst_from_arcs(arcs, {2: -2.0}))
    content = content.replace(struct.pack("<f", 9.5), struct.pack("<f", float("inf")))
    for made in (content, const(content, True)):
        (tmp_path / "x.fst").write_bytes(made)
        found = load_openfst(tmp_path / "x.fst")
        assert found.num_arcs == 3
        assert transductions(remove_epsilon(found), 5) == {((2,), (7, 4)): -2.5}


WRITTEN = dump_openfst(GRAPH)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "unpack"),
        (b"#FST" + WRITTEN[4:], "does not begin"),
        (header("vector", 0, 0, 1, 0, "log"), "a vector of log arcs"),
        (header("compact", 0, 0, 1, 0), "a compact of standard arcs"),
        (header("vector", 1, 0, 1, 0), "symbol tables"),
        (header("vector", 0, -1, 0, 0), "no start"),
        (header("vector", 0, 0, 2**40, 0), "no states"),
        (WRITTEN[:-4], "unpack"),
        (WRITTEN.replace(struct.pack("<q", 1), struct.pack("<q", 9)), "more arcs than"),
        (const(WRITTEN, False)[:-4], "buffer"),
        (WRITTEN.replace(struct.pack("<f", 2.0), struct.pack("<f", float("inf"))), "may end"),
        (WRITTEN.replace(struct.pack("<f", 0.5), struct.pack("<f", float("nan"))), "no numbers"),
        (WRITTEN.replace(struct.pack("<ii", 2, 7), struct.pack("<ii", -2, 7)), "below 0"),
    ],
)
def test_other_files_are_refused(tmp_path, content, reason):
    (tmp_path / "x.fst").write_bytes(content)
    with pytest.raises(GraphError, match=reason) as error:
        load_openfst(tmp_path / "x.fst")
    assert str(tmp_path / "x.fst") in str(error.value)
