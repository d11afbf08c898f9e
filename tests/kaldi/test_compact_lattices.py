"""Archives of Kaldi's lattices, as the toolkit and as the tests write them."""

import gzip
import struct

import pytest

from tests.fsa.word_lattices import said
from tests.kaldi.test_lattice_text import DECODING, expected, read_kaldi, search_lattice
from toolkit.fsa.lattice_store import WordLatticeError
from toolkit.kaldi.compact_lattices import read_compact_lattices
from toolkit.kaldi.lattice_text import kaldi_text

SHIFT = DECODING.frame_shift


def binary(states, arcs, finals, start=0):
    """A lattice as Kaldi writes it: arcs (source, target, word, graph, acoustic, ids)."""

    def weight(graph, acoustic, ids):
        return struct.pack(f"<ffi{len(ids)}i", graph, acoustic, len(ids), *ids)

    made = b"".join(struct.pack("<i", len(n)) + n for n in (b"vector", b"compactlattice44"))
    made += struct.pack("<iiQqqq", 2, 0, 3, start, states, len(arcs))
    for state in range(states):
        made += weight(*finals.get(state, (float("inf"), float("inf"), [])))
        mine = [arc for arc in arcs if arc[0] == state]
        made += struct.pack("<q", len(mine))
        for _, target, word, *rest in mine:
            made += struct.pack("<ii", word, word) + weight(*rest) + struct.pack("<i", target)
    return struct.pack("<i", 2125659606) + made


def of_text(text):
    """The binary archive of a text archive."""
    made = b""
    for block in text.split("\n\n")[:-1]:
        key, *lines = block.split("\n")
        arcs, finals = [], {}
        for line in lines:
            fields = line.split("\t")
            graph, acoustic, ids = (fields.pop() if len(fields) % 2 == 0 else "0,0,").split(",")
            known = float(graph), float(acoustic), [int(n) for n in ids.split("_") if n]
            if len(fields) == 3:
                arcs.append((*map(int, fields), *known))
            else:
                finals[int(fields[0])] = known
        states = 1 + max([*finals, *(n for arc in arcs for n in arc[:2])])
        made += key.encode() + binary(states, arcs, finals)
    return made


@pytest.mark.parametrize("form", ["text", "binary", "gzip"])
def test_paths_have_their_words_and_scores(tmp_path, form):
    lattices = {f"u-{seed}": search_lattice(seed) for seed in range(20)}
    text = "".join(kaldi_text(name, lattice, DECODING) for name, lattice in lattices.items())
    content = of_text(text) if form == "binary" else text.encode()
    (tmp_path / "lat").write_bytes(gzip.compress(content) if form == "gzip" else content)
    found = dict(read_compact_lattices(tmp_path / "lat", SHIFT))
    assert list(found) == list(lattices)
    for name, lattice in lattices.items():
        for kind in ("graph", "acoustic"):
            known = sorted(said(lattice, getattr(lattice, kind)))
            got = sorted(said(found[name], getattr(found[name], kind)))
            assert [words for words, _ in got] == [words for words, _ in known]
            scores = [score for _, score in known]
            assert [score for _, score in got] == pytest.approx(scores, abs=1e-4)
        length = lattice.times[-1] - lattice.times[0]
        assert found[name].times[-1] == pytest.approx(length)
        if form != "binary":  # whose costs have fewer digits
            again = kaldi_text(name, found[name], DECODING)
            assert dict(read_kaldi(again))[name] == expected(lattice, round(length / SHIFT))


def test_states_in_any_order_dead_ends_and_lattices_without_paths(tmp_path):
    arcs = [(2, 0, 5, 1.0, 2.0, [7, 7]), (0, 1, 6, 0.5, 0.0, [7]), (2, 3, 9, 0.0, 0.0, [7])]
    good = binary(4, arcs, {1: (0.25, 0.0, [7])}, start=2)
    (tmp_path / "lat").write_bytes(b"a " + good + b"b " + binary(1, [], {}) + b"c \n\n")
    found = dict(read_compact_lattices(tmp_path / "lat", 0.01))
    assert found["b"] is None
    assert found["c"] is None
    assert said(found["a"], found["a"].graph) == [((5, 6), -1.75)]
    assert found["a"].times.tolist() == pytest.approx([0, 0.02, 0.03, 0.04])


@pytest.mark.parametrize("form", ["text", "binary"])
def test_arcs_of_infinite_cost_are_on_no_path(tmp_path, form):
    text = (
        "a \n0\t1\t3\tInfinity,2,1\n0\t1\t4\t1,2,1\n0\t2\t5\t1,inf,1_1\n1\t0.5,0,\n2\n\n"
        "b \n0\t1\t3\t1,2,1\n1\tInfinity,Infinity,\n\n"
    )
    (tmp_path / "lat").write_bytes(of_text(text) if form == "binary" else text.encode())
    found = dict(read_compact_lattices(tmp_path / "lat", SHIFT))
    assert said(found["a"], found["a"].graph + found["a"].acoustic) == [((4,), -3.5)]
    assert found["b"] is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a \n0\t0\t1\t0,0,1\n0\n\n", "a: a cycle"),
        (b"a \n0\t1\t1\t0,0,1\n0\t1\t2\t0,0,1_1\n1\n\n", "a: paths of different lengths"),
        (b"a \n0\t1\t1\t2\t0,0\n1\n\n", "a: a line of 5 fields"),
        (b"a \n0\t1\t1\t0.5\n1\n\n", "a: .*unpack"),
        (b"a \n0\t1\t1\tnan,0,1\n1\n\n", "a: costs that are no numbers"),
        (b"a \n0\t1\t1\t0,-inf,1\n1\n\n", "a: costs that are no numbers"),
        (b"a " + binary(1, [], {0: (float("nan"), 0, [])}), "a: costs that are no numbers"),
        (b"no lattice", "invalid literal"),
        (b"a " + binary(2, [(0, 9, 1, 0, 0, [])], {1: (0, 0, [])}), "not there"),
        (b"a " + binary(2, [(0, 1, 1, 0, 0, [1])], {})[:-9], "unpack"),
        (b"a " + binary(1, [], {}).replace(b"compactlattice44", b"lattice4________"), "lattice4"),
    ],
)
def test_other_archives_are_refused(tmp_path, content, reason):
    (tmp_path / "lat").write_bytes(content)
    with pytest.raises(WordLatticeError, match=reason) as error:
        list(read_compact_lattices(tmp_path / "lat", 0.01))
    assert str(tmp_path / "lat") in str(error.value)
