"""Reading of Kaldi's transition models: what each transition id stands for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.kaldi.stream import Stream
from toolkit.storage.reading import reading

ADVICE = "give a model of Kaldi (final.mdl), or its transition model (0.trans_mdl)"


class KaldiModelError(ToolkitError):
    """A file of Kaldi's that cannot be read, or means nothing here."""


@dataclass(frozen=True, eq=False)
class KaldiTransitions:
    """What the transition ids of a model stand for, [ids] int64 each; that of id 1 comes first."""

    pdf: np.ndarray
    phone: np.ndarray
    """Kaldi's phone ids."""
    state: np.ndarray
    """HMM states, counted from 0 within the phone; in chain models 1 stands for the loop."""
    num_states: dict[int, int]
    """The states of each phone."""
    chain: bool
    """Whether phones have a single HMM state whose loop has a pdf of its own, as the onset and the
    rest of `Topology.at_low_rate` do."""

    @classmethod
    def read(cls, path: Path) -> "KaldiTransitions":
        """Read the transition model at the head of a file, in binary or text form.

        Raises:
          KaldiModelError: naming the file.
        """
        with reading(path, KaldiModelError, ADVICE, "no transition model of Kaldi"):
            return _read(Stream(Path(path).read_bytes()))


_States = list[list[int]]
"""The targets of each state of a phone; the last state, which emits nothing, has none."""


def _read(stream: Stream) -> KaldiTransitions:
    stream.expect("<TransitionModel>")
    targets = _topology(stream)
    kind = stream.expect("<Triples>", "<Tuples>")
    count = stream.integer()
    sizes = {phone: sum(map(bool, states)) for phone, states in targets.items()}
    chain = kind == "<Tuples>" and set(sizes.values()) == {1}
    rows = []
    for _ in range(count):
        phone, state, pdf = (stream.integer() for _ in range(3))
        loop = stream.integer() if kind == "<Tuples>" else pdf
        if phone not in targets or not 0 <= state < len(targets[phone]) or min(pdf, loop) < 0:
            raise ValueError(f"state {state} of phone {phone}, which the topology does not have")
        for target in targets[phone][state]:
            loops = target == state
            rows.append((loop if loops else pdf, phone, int(loops) if chain else state))
    stream.expect(f"</{kind[1:]}")
    stream.expect("<LogProbs>")
    if len(stream.numbers()) != 1 + len(rows):
        raise ValueError("its probabilities are not those of its transitions")
    stream.expect("</LogProbs>")
    stream.expect("</TransitionModel>")
    pdf, phone, state = np.array(rows, np.int64).reshape(-1, 3).T
    return KaldiTransitions(pdf, phone, state, dict.fromkeys(sizes, 2) if chain else sizes, chain)


def _topology(stream: Stream) -> dict[int, _States]:
    """The targets of each state of each phone."""
    stream.expect("<Topology>")
    return _binary_topology(stream) if stream.binary else _text_topology(stream)


def _text_topology(stream: Stream) -> dict[int, _States]:
    found: dict[int, _States] = {}
    while stream.expect("<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        stream.expect("<ForPhones>")
        phones = list(map(int, iter(stream.token, "</ForPhones>")))
        states: _States = []
        while stream.expect("<State>", "</TopologyEntry>") == "<State>":
            if stream.integer() != len(states):
                raise ValueError("states that are not numbered in order")
            states.append([])
            while (token := stream.token()) != "</State>":
                value = stream.integer()  # a target, or one of the pdf classes
                if token == "<Transition>":
                    stream.number()
                    states[-1].append(value)
        found |= dict.fromkeys(phones, states)
    return found


def _binary_topology(stream: Stream) -> dict[int, _States]:
    phones, entry_of = stream.integers(), stream.integers()
    count = stream.integer()
    loops = count == -1  # pdf classes of their own for self-loops
    count = stream.integer() if loops else count
    entries = [_binary_entry(stream, loops) for _ in range(count)]
    stream.expect("</Topology>")
    return {phone: entries[_index(entry_of, phone)] for phone in phones}


def _index(entry_of: Sequence[int], phone: int) -> int:
    if phone < 0 or entry_of[phone] < 0:
        raise ValueError(f"phone {phone} has no topology")
    return entry_of[phone]


def _binary_entry(stream: Stream, loops: bool) -> _States:
    states = []
    for _ in range(stream.integer()):
        for _ in range(2 if loops else 1):  # pdf classes
            stream.integer()
        targets = []
        for _ in range(stream.integer()):
            targets.append(stream.integer())
            stream.number()
        states.append(targets)
    return states
