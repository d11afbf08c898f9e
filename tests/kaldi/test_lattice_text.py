"""Lattices as text, read by readers of the tests."""

import re

import numpy as np
import pytest

from tests.fsa.word_lattices import random_lattice, said
from toolkit.fsa.lattice_store import WeightsUsed
from toolkit.kaldi.lattice_text import kaldi_text, openfst_text, slf

SYMBOLS = ["<eps>", "ONE", "'TIS", "A\\B"]
SCALE, PENALTY = 0.3, -1.0
DECODING = WeightsUsed(SCALE, PENALTY, 0.25)


def search_lattice(seed):
    """Every state has at most one arc without a word, into the last state."""
    lattice = random_lattice(seed)
    words = lattice.words.copy()
    last = lattice.num_states - 1
    silent = np.flatnonzero((words == 0) & (lattice.target != last))
    words[silent] = 1
    ending = np.flatnonzero(lattice.target == last)
    words[ending] = [
        0 if a == np.flatnonzero(ends)[0] else 2
        for a in ending
        for ends in [(lattice.source == lattice.source[a]) & (lattice.target == last)]
    ]
    return type(lattice)(
        **{**{n: getattr(lattice, n) for n in lattice.__dataclass_fields__}, "words": words}
    )


def sentences(arcs, finals):
    """{(words, cost, frames)} of an acceptor: arcs (source, target, word, cost, frames)."""
    found, stack = set(), [(0, (), 0.0, 0)]
    while stack:
        state, words, cost, frames = stack.pop()
        if state in finals:
            more, length = finals[state]
            found.add((words, round(cost + more, 4), frames + length))
        for source, target, word, weight, length in arcs:
            if source == state:
                read = (*words, word) if word else words
                stack.append((target, read, cost + weight, frames + length))
    return found


def expected(lattice, frames):
    scores = lattice.scores(SCALE, PENALTY)
    return {(words, round(-score, 4), frames) for words, score in said(lattice, scores)}


def read_kaldi(text):
    """Utterances of a text archive of compact lattices, scaled as the lattices were decoded."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        key, *lines = block.split("\n")
        assert re.fullmatch(r"\S+ ", key)
        arcs, finals = [], {}
        for line in lines:
            fields = line.split("\t")
            lm, acoustic, string = (fields[-1] if len(fields) in (2, 4) else "0,0,").split(",")
            length = len(string.split("_")) if string else 0
            cost = float(lm) + SCALE * float(acoustic)
            if len(fields) == 4:
                word = int(fields[2])
                arcs.append((int(fields[0]), int(fields[1]), word, cost - PENALTY, length))
            else:
                finals[int(fields[0])] = cost, length
        yield key.strip(), sentences(arcs, finals)


def read_slf(text):
    fields = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in text.splitlines()]
    head = {name: value for line in fields[:4] for name, value in line.items()}
    nodes = {int(line["I"]): float(line["t"]) for line in fields if "I" in line}
    links = [line for line in fields if "J" in line]
    assert (int(head["N"]), int(head["L"])) == (len(nodes), len(links))
    assert head["VERSION"] == "1.0"
    arcs = []
    for link in links:
        word = re.sub(r"\\(.)", r"\1", link["W"])
        penalty = 0.0 if word == "!NULL" else float(head["wdpenalty"])
        score = float(head["acscale"]) * float(link["a"]) + float(head["lmscale"]) * float(
            link["l"]
        )
        number = 0 if word == "!NULL" else SYMBOLS.index(word)
        source, target = int(link["S"]), int(link["E"])
        length = round((nodes[target] - nodes[source]) / 0.25)
        arcs.append((source, target, number, -score - penalty, length))
    entered = {arc[1] for arc in arcs}
    left = {arc[0] for arc in arcs}
    assert [state for state in nodes if state not in entered] == [0]
    (last,) = (state for state in nodes if state not in left)
    return head["UTTERANCE"], sentences(arcs, {last: (0.0, 0)})


def read_openfst(text):
    arcs, finals = [], {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == 4:
            source, target, word, cost = fields
            arcs.append((int(source), int(target), SYMBOLS.index(word), float(cost), 0))
        else:
            finals[int(fields[0])] = (0.0, 0)
    return sentences(arcs, finals)


@pytest.mark.parametrize("seed", range(12))
def test_all_formats_say_the_same_at_the_same_costs(seed):
    lattice = search_lattice(seed)
    begun = lattice.times - lattice.times[0]
    frames = round(begun[-1] / 0.25)
    assert len(expected(lattice, frames)) > 3
    texts = [kaldi_text(name, lattice, DECODING) for name in ("utt-1", "utt-2")]
    found = dict(read_kaldi("".join(texts)))
    assert found == {"utt-1": expected(lattice, frames), "utt-2": expected(lattice, frames)}
    name, spoken = read_slf(slf("utt-1", lattice, DECODING, SYMBOLS.__getitem__))
    assert (name, spoken) == ("utt-1", expected(lattice, frames))
    text = openfst_text(lattice, DECODING, SYMBOLS.__getitem__)
    assert read_openfst(text) == expected(lattice, 0)


def test_openfst_text_compiles_in_openfst():
    kaldifst = pytest.importorskip("kaldifst")
    lattice = search_lattice(5)
    ids = {symbol: str(number) for number, symbol in enumerate(SYMBOLS)}
    lines = openfst_text(lattice, DECODING, SYMBOLS.__getitem__).splitlines()
    numbered = [
        "\t".join([*f[:2], ids[f[2]], f[3]]) if len(f := line.split("\t")) == 4 else line
        for line in lines
    ]
    fst = kaldifst.compile("\n".join(numbered) + "\n", acceptor=True)
    best = kaldifst.shortest_path(fst)
    words, cost, state = [], 0.0, best.start
    while best.num_arcs(state):
        (arc,) = list(kaldifst.ArcIterator(best, state))
        words += [arc.ilabel] if arc.ilabel else []
        cost, state = cost + arc.weight.value, arc.nextstate
    scores = lattice.scores(SCALE, PENALTY)
    assert words == lattice.best_words(scores)
    assert cost == pytest.approx(-scores[lattice.best_path(scores)].sum(), abs=1e-3)
