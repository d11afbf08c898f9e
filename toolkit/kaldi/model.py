"""Reads and writes Kaldi's topologies, trees and transition models."""

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import POSITIONS, Leaf, Node, Root, Split, Tree, leaves
from toolkit.lang.tables import SymbolTable
from toolkit.storage.reading import reading

_BINARY = b"\0B"
_SIZES = {4: "<i4", -4: "<u4", 8: "<i8", -8: "<u8"}
_FLOATS = {"FV": "<f4", "DV": "<f8"}


class Stream:
    """Reads tokens and numbers from a Kaldi file, binary or text.

    Args:
      content: content of the file; binary if it begins with Kaldi's binary marker.

    Raises:
      ValueError, IndexError, struct.error: by every method, if the file has other content.
    """

    def __init__(self, content: bytes) -> None:
        self.binary = content.startswith(_BINARY)
        self._content = content
        self._at = len(_BINARY) if self.binary else 0

    def token(self) -> str:
        """Read the next token, up to white space."""
        if self.binary:
            end = self._content.index(b" ", self._at)
            word_bytes = self._content[self._at : end]
            self._at = end + 1
            return word_bytes.decode()
        begin = self._skip()
        while self._content[self._at : self._at + 1].strip():
            self._at += 1
        if begin == self._at:
            raise ValueError("it is truncated")
        return self._content[begin : self._at].decode()

    def expect(self, *words: str) -> str:
        """Read a token that must be one of `words`."""
        word = self.token()
        if word not in words:
            raise ValueError(f"it has {word[:20]!r} instead of {' or '.join(words)}")
        return word

    def integer(self) -> int:
        """Read a 32-bit integer."""
        if not self.binary:
            return int(self.token())
        size, value = struct.unpack_from("<bi", self._content, self._at)
        if size not in (4, -4):
            raise ValueError("an integer does not have four bytes")
        self._at += 5
        return value

    def number(self) -> float:
        """Read a float or double."""
        if not self.binary:
            return float(self.token())
        size = self._content[self._at]
        (value,) = struct.unpack_from({4: "<f", 8: "<d"}[size], self._content, self._at + 1)
        self._at += 1 + size
        return value

    def integers(self) -> list[int]:
        """Read a vector of integers."""
        if not self.binary:
            self.expect("[")
            return list(map(int, iter(self.token, "]")))
        size, count = struct.unpack_from("<bi", self._content, self._at)
        self._at += 5
        return self._array(count, _SIZES[size]).tolist()

    def numbers(self) -> np.ndarray:
        """Read a vector of floats or doubles."""
        if not self.binary:
            self.expect("[")
            return np.array(list(map(float, iter(self.token, "]"))))
        kind = _FLOATS[self.token()]
        return self._array(self.integer(), kind)

    def _array(self, count: int, kind: str) -> np.ndarray:
        """Read a binary vector of `count` numbers."""
        end = self._at + count * np.dtype(kind).itemsize
        if count < 0 or end > len(self._content):
            raise ValueError(f"the file is too short for a vector of {count} numbers")
        content, self._at = self._content[self._at : end], end
        return np.frombuffer(content, kind)

    def _skip(self) -> int:
        """Skip white space; return the position after it."""
        content = self._content
        while content[self._at : self._at + 1].isspace():
            self._at += 1
        return self._at


def transitions_of(topology: Topology, phone: int, state: int) -> list[int]:
    """Return the target states of an HMM state's transitions.

    The end of the phone is its number of states.
    """
    ends = [topology.num_states(phone)] if state in topology.exit_states(phone) else []
    return [*topology.successors(phone, state), *ends]


def topology_text(topology: Topology) -> str:
    """Format a topology as Kaldi's text, with equal transition probabilities.

    Each state has a pdf class of its own. The format requires probabilities, although this
    toolkit's transitions have no weights.
    """
    kinds: dict[bool, list[int]] = {}
    for phone in topology.phone_ids():
        kinds.setdefault(topology.is_silence(phone), []).append(phone)
    entries = "".join(_entry(topology, phones) for phones in kinds.values())
    return f"<Topology>\n{entries}</Topology>\n"


def _entry(topology: Topology, phones: list[int]) -> str:
    """Format the <TopologyEntry> of phones with the same states and transitions."""
    states = topology.num_states(phones[0])
    lines = ["<TopologyEntry>", "<ForPhones>", " ".join(map(str, phones)), "</ForPhones>"]
    for state in range(states):
        targets = transitions_of(topology, phones[0], state)
        arcs = " ".join(f"<Transition> {to} {1 / len(targets):.7g}" for to in targets)
        lines.append(f"<State> {state} <PdfClass> {state} {arcs} </State>")
    lines += [f"<State> {states} </State>", "</TopologyEntry>"]
    return "".join(f"{line}\n" for line in lines)


class Transitions:
    """Kaldi's transition states and transition ids for a tree and a topology.

    A transition state is a phone, one of its HMM states and a pdf that the tree may assign to it. A
    transition id is one of the transitions of a transition state. Both are numbered from 1.

    Args:
      senones: tree and topology.
    """

    def __init__(self, senones: Senones) -> None:
        self.senones = senones
        triples = {
            (phone, root.state, pdf)
            for root in senones.tree.roots
            for phone in root.phones
            for pdf in _pdfs(root.node, phone)
        }
        # Kaldi numbers transition states in the order of (phone, HMM state, pdf).
        self.phone, self.state, self.pdf = np.array(sorted(triples)).T
        """[N] each: phone, HMM state and pdf of each transition state."""
        counts = [len(targets) for targets in self._targets]
        self.first = 1 + np.append(0, np.cumsum(counts))
        """[N + 1] the first transition id of each transition state."""

    @cached_property
    def _targets(self) -> list[list[int]]:
        """Target HMM states of each transition state's transitions: [N]."""
        topology = self.senones.topology
        pairs = zip(self.phone.tolist(), self.state.tolist(), strict=True)
        return [transitions_of(topology, phone, state) for phone, state in pairs]

    @cached_property
    def _index(self) -> np.ndarray:
        """Index of the transition to each HMM state, or (column S) out of the phone: [N, S + 1].

        N is the number of transition states, S the largest number of HMM states of a phone. -1:
        there is no such transition.
        """
        sizes = map(self.senones.topology.num_states, self.senones.topology.phone_ids())
        width = 1 + max(sizes)
        index = np.full((len(self.phone), width), -1)
        for row, (phone, targets) in enumerate(
            zip(self.phone.tolist(), self._targets, strict=True)
        ):
            ends = self.senones.topology.num_states(phone)
            index[row, [-1 if to == ends else to for to in targets]] = range(len(targets))
        return index

    def ids(self, origin: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return the transition ids [n] of transitions.

        Args:
          origin: [n] transition states, from 1.
          target: [n] target HMM states. -1, or a state to which there is no transition, stands for
            the transition out of the phone.
        """
        # Column -1 of the index is the transition that leaves the phone.
        inside, leaving = self._index[origin - 1, target], self._index[origin - 1, -1]
        return self.first[origin - 1] + np.where(inside < 0, leaving, inside)

    @cached_property
    def states(self) -> Senones:
        """Senones whose pdfs are replaced by transition states, from 0.

        A graph that is expanded with them differs from that of the senones only in its labels.
        """
        return _TransitionStates(self)

    def text(self) -> str:
        """Format the model like `copy-transition-model --binary=false`."""
        rows = zip(self.phone.tolist(), self.state.tolist(), self.pdf.tolist(), strict=True)
        triples = "".join(f"{phone} {state} {pdf}\n" for phone, state, pdf in rows)
        # All transitions of a state are equally likely. Id 0 does not exist; its entry is 0.
        scores = [-math.log(len(targets)) for targets in self._targets for _ in targets]
        numbers = " ".join(f"{score:.7g}" for score in (0.0, *scores))
        topology = topology_text(self.senones.topology)
        return (
            f"<TransitionModel>\n{topology}<Triples> {len(self.phone)}\n{triples}</Triples>\n"
            f"<LogProbs>\n [ {numbers} ]\n</LogProbs>\n</TransitionModel>\n"
        )


def _pdfs(node: Node, phone: int) -> set[int]:
    """Return the pdfs of a phone below a tree node, in any context."""
    if isinstance(node, Leaf):
        return {node.pdf}
    # The centre phone is known, so one branch applies; neighbours may take either.
    if node.ask == "centre":
        return _pdfs(node.yes if phone in node.phones else node.no, phone)
    return _pdfs(node.yes, phone) | _pdfs(node.no, phone)


class _TransitionStates(Senones):
    """Senones with transition states as pdfs; see `Transitions.states`."""

    def __init__(self, transitions: Transitions) -> None:
        super().__init__(transitions.senones.topology, transitions.senones.tree)
        self._transitions = transitions

    @property
    def num_pdfs(self) -> int:
        """Number of transition states."""
        return len(self._transitions.pdf)

    @cached_property
    def table(self) -> Tensor:
        """Transition state, from 0, by state id and neighbours: [S, P+1, P+1] int32.

        S is the number of state ids, P the number of phones.
        """
        owner = self._transitions
        pdf_table = self.tree.table().numpy()
        first_state_id = np.array([0, *self.topology.first_state_ids])
        state_id = first_state_id[owner.phone] + owner.state
        num_pdfs = self.tree.num_pdfs
        rows = np.arange(len(pdf_table))[:, None, None]
        # Transition states are sorted by (state id, pdf): search for the pair as one number.
        transition_states = np.searchsorted(
            state_id * num_pdfs + owner.pdf, rows * num_pdfs + pdf_table
        )
        return torch.from_numpy(transition_states.astype(np.int32))


_NO_PHONE = 0
"""Kaldi's id of the neighbour beyond either end of an utterance."""


def tree_text(tree: Tree, topology: Topology) -> str:
    """Format a triphone tree like `copy-tree --binary=false`.

    Questions about a neighbour have the same answer for silence and for the edges of an utterance,
    as in this toolkit's graphs.

    Args:
      tree: the tree to format.
      topology: phones of the tree, with their states.
    """
    states: dict[int, list[Root]] = {}
    for root in tree.roots:
        states.setdefault(root.state, []).append(root)
    tables = "".join(_of_state(states[state], topology.silence) for state in sorted(states))
    return f"ContextDependency 3 1 ToPdf TE -1 {len(states)} ( {tables})\nEndContextDependency\n"


def _of_state(roots: list[Root], silence: int) -> str:
    """Return the trees of one HMM state below questions that choose the root by phone."""
    *other_roots, last_root = roots
    text = _node(last_root.node, silence)
    for root in reversed(other_roots):
        text = _split("centre", root.phones, _node(root.node, silence), text)
    return text


def _node(node: Node, silence: int) -> str:
    """Format a node and the nodes below it."""
    if isinstance(node, Leaf):
        return f"CE {node.pdf} "
    phones = sorted(node.phones)
    # An utterance's edge (phone 0) counts as silence.
    if node.ask != "centre" and silence in node.phones:
        phones = [_NO_PHONE, *phones]
    return _split(node.ask, phones, _node(node.yes, silence), _node(node.no, silence))


def _split(ask: str, phones: list[int] | tuple[int, ...], yes: str, no: str) -> str:
    """Format a question with its two branches."""
    numbers = " ".join(map(str, phones))
    return f"SE {POSITIONS.index(ask)} [ {numbers} ]\n{{ {yes}{no}}} \n"


MODEL_ADVICE = "give a Kaldi model (final.mdl), or its transition model (0.trans_mdl)"


class KaldiModelError(ToolkitError):
    """Raised for a Kaldi file that cannot be read or represented in this toolkit."""


@dataclass(frozen=True, eq=False)
class KaldiTransitions:
    """The transition ids of a model; arrays are [number of ids] int64 and start with id 1."""

    pdf: np.ndarray
    """Pdf of each transition id."""
    phone: np.ndarray
    """Kaldi's phone id of each transition id."""
    state: np.ndarray
    """HMM state of each transition id, from 0 within the phone; in chain models 1 is the loop."""
    num_states: dict[int, int]
    """Number of states of each phone."""
    chain: bool
    """Whether phones have a single HMM state whose loop has a pdf of its own, like the onset and
    the rest of `Topology.at_low_rate`."""

    @classmethod
    def read(cls, path: Path) -> "KaldiTransitions":
        """Read the transition model at the beginning of a file, binary or text.

        Raises:
          KaldiModelError: the file has none; the message names it.
        """
        with reading(path, KaldiModelError, MODEL_ADVICE, "not a Kaldi transition model"):
            return _read_transitions(Stream(Path(path).read_bytes()))


_States = list[list[int]]
"""The targets of each state of a phone; the last state, which is not emitting, has none."""


def _read_transitions(stream: Stream) -> KaldiTransitions:
    """Parse a transition model."""
    stream.expect("<TransitionModel>")
    targets = _topology(stream)
    kind = stream.expect("<Triples>", "<Tuples>")
    count = stream.integer()
    # Emitting states have targets; the final state of a phone has none.
    sizes = {phone: sum(map(bool, states)) for phone, states in targets.items()}
    chain = kind == "<Tuples>" and set(sizes.values()) == {1}
    rows = []
    for _ in range(count):
        phone, state, pdf = (stream.integer() for _ in range(3))
        loop = stream.integer() if kind == "<Tuples>" else pdf
        if phone not in targets or not 0 <= state < len(targets[phone]) or min(pdf, loop) < 0:
            raise ValueError(f"the topology has no state {state} of phone {phone}")
        # Ids follow the topology's order of targets. A self-loop has its own pdf in <Tuples>.
        for target in targets[phone][state]:
            loops = target == state
            rows.append((loop if loops else pdf, phone, int(loops) if chain else state))
    stream.expect(f"</{kind[1:]}")
    stream.expect("<LogProbs>")
    if len(stream.numbers()) != 1 + len(rows):
        raise ValueError("the number of its probabilities differs from that of its transitions")
    stream.expect("</LogProbs>")
    stream.expect("</TransitionModel>")
    pdf, phone, state = np.array(rows, np.int64).reshape(-1, 3).T
    return KaldiTransitions(pdf, phone, state, dict.fromkeys(sizes, 2) if chain else sizes, chain)


def _topology(stream: Stream) -> dict[int, _States]:
    """Parse a topology: the targets of each state of each phone."""
    stream.expect("<Topology>")
    return _binary_topology(stream) if stream.binary else _text_topology(stream)


def _text_topology(stream: Stream) -> dict[int, _States]:
    """Parse a topology in text form."""
    states_of_phone: dict[int, _States] = {}
    while stream.expect("<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        stream.expect("<ForPhones>")
        phones = list(map(int, iter(stream.token, "</ForPhones>")))
        states: _States = []
        while stream.expect("<State>", "</TopologyEntry>") == "<State>":
            if stream.integer() != len(states):
                raise ValueError("its states are not numbered in order")
            states.append([])
            while (token := stream.token()) != "</State>":
                value = stream.integer()  # a target, or one of the pdf classes
                if token == "<Transition>":
                    stream.number()
                    states[-1].append(value)
        states_of_phone |= dict.fromkeys(phones, states)
    return states_of_phone


def _binary_topology(stream: Stream) -> dict[int, _States]:
    """Parse a topology in binary form: phones, entry index by phone, entries."""
    phones, entry_of = stream.integers(), stream.integers()
    # A count of -1 announces Kaldi's extended format.
    count = stream.integer()
    loops = count == -1  # self-loops have pdf classes of their own
    count = stream.integer() if loops else count
    entries = [_binary_entry(stream, loops) for _ in range(count)]
    stream.expect("</Topology>")
    return {phone: entries[_index(entry_of, phone)] for phone in phones}


def _index(entry_of: Sequence[int], phone: int) -> int:
    """Return the index of a phone's topology entry."""
    if phone < 0 or entry_of[phone] < 0:
        raise ValueError(f"phone {phone} has no topology")
    return entry_of[phone]


def _binary_entry(stream: Stream, loops: bool) -> _States:
    """Parse a topology entry: each state's targets."""
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


TREE_ADVICE = "give the `tree` of a Kaldi model of monophones or triphones"
_CLASS = -1
"""Key of questions about the HMM state; keys of questions about phones are 0, 1, ..."""
_UNTRAINED = 0


@dataclass(frozen=True)
class _Question:
    """An inner node of a Kaldi tree."""

    key: int
    """Position of the phone in question, or `_CLASS`."""
    branches: Mapping[int | None, "_Question | int | None"]
    """Branch by answer; the key None stands for all other answers."""


_Event = _Question | int | None
"""A question, a pdf, or nothing."""


def read_tree(path: Path, topology: Topology, phone_ids: Mapping[int, int]) -> Tree:
    """Read a tree, binary or text, for the phones of a topology.

    At the edges of an utterance, Kaldi's tree asks about phone 0, and this toolkit about silence.

    Args:
      path: the file.
      topology: the phones and their states.
      phone_ids: the topology's id of each phone, by Kaldi's id.

    Raises:
      KaldiModelError: it is not a tree, or this toolkit cannot represent it: its contexts are wider
        than triphones, or states at different positions share a pdf.
    """
    with reading(path, KaldiModelError, TREE_ADVICE, "not a Kaldi tree"):
        width, centre, event = _read_tree(Stream(Path(path).read_bytes()))
        if (width, centre) not in ((1, 0), (3, 1)):
            raise ValueError(f"contexts of {width} phones")
        places = {centre - 1: "left", centre: "centre", centre + 1: "right"}
        trees: dict[tuple[int, int], Node] = {}
        for kaldi, phone in phone_ids.items():
            for state in range(topology.num_states(phone)):
                answers = {_CLASS: state, centre: kaldi}
                trees[phone, state] = _resolved(event, answers, places, phone_ids)
        return Tree(topology.phones, tuple(_roots(trees)))


def _read_tree(stream: Stream) -> tuple[int, int, _Event]:
    """Parse a tree; return its context width, its central position and its root node."""
    stream.expect("ContextDependency")
    width, centre = stream.integer(), stream.integer()
    stream.expect("ToPdf")
    event = _event(stream)
    stream.expect("EndContextDependency")
    return width, centre, event


def _event(stream: Stream) -> _Event:
    """Parse a node: CE (leaf), TE (table of branches by answer), SE (set of answers) or NULL."""
    kind = stream.expect("CE", "TE", "SE", "NULL")
    if kind == "NULL":
        return None
    value = stream.integer()
    if kind == "CE":
        return value
    if kind == "TE":
        count = stream.integer()
        stream.expect("(")
        branches = dict(enumerate(_event(stream) for _ in range(count)))
        stream.expect(")")
        return _Question(value, branches | {None: None})
    members = stream.integers()
    stream.expect("{")
    yes, no = _event(stream), _event(stream)
    stream.expect("}")
    return _Question(value, dict.fromkeys(members, yes) | {None: no})


def _resolved(
    event: _Event,
    answers: Mapping[int, int],
    places: Mapping[int, str],
    phone_ids: Mapping[int, int],
) -> Node:
    """Resolve a tree for one state of one phone; only questions about neighbours remain."""
    # Follow questions about the HMM state and the centre phone, whose answers are known.
    while isinstance(event, _Question) and event.key in answers:
        event = event.branches.get(answers[event.key], event.branches[None])
    if event is None:
        (phone,) = (value for key, value in answers.items() if key != _CLASS)
        raise ValueError(f"it has no pdf for state {answers[_CLASS]} of phone {phone}")
    if not isinstance(event, _Question):
        return Leaf(event, _UNTRAINED)
    # One question covers all phones with a common branch; the last branch needs no question.
    groups: dict[int, tuple[_Event, set[int]]] = {}
    for kaldi, phone in phone_ids.items():
        branch = event.branches.get(kaldi, event.branches[None])
        # Branches are compared by identity: `_event` builds one object for all members of a split.
        groups.setdefault(id(branch), (branch, set()))[1].add(phone)
    *other_groups, (last_branch, _) = groups.values()
    node = _resolved(last_branch, answers, places, phone_ids)
    for branch, phones in other_groups:
        yes = _resolved(branch, answers, places, phone_ids)
        # A question whose answers lead to equal subtrees is left out.
        if yes != node:
            node = Split(places[event.key], frozenset(phones), 0.0, _UNTRAINED, yes, node)
    return node


def _roots(trees: Mapping[tuple[int, int], Node]) -> list[Root]:
    """Return the roots of the phones' states; states that share a pdf share a root."""
    groups: list[tuple[int, set[int], dict[int, Node]]] = []
    for (phone, state), node in sorted(trees.items()):
        pdfs, phones = {leaf.pdf for leaf in leaves(node)}, {phone: node}
        # Merge with all groups that share a pdf: a pdf belongs to one root here.
        shared = [group for group in groups if group[1] & pdfs]
        for group in shared:
            if group[0] != state:
                names = f"{group[0]} and {state}"
                pdf = min(group[1] & pdfs)
                raise ValueError(
                    f"pdf {pdf} belongs to the states {names} of its phones; "
                    "build a tree in which different states do not share roots"
                )
            groups.remove(group)
            pdfs, phones = pdfs | group[1], group[2] | phones
        groups.append((state, pdfs, phones))
    roots = [Root(tuple(sorted(nodes)), state, _joined(nodes)) for state, _, nodes in groups]
    used = {pdf for _, pdfs, _ in groups for pdf in pdfs}
    roots = _with_unused(roots, set(range(max(used))) - used)
    return sorted(roots, key=lambda root: (root.phones, root.state))


def _with_unused(roots: Sequence[Root], pdfs: Collection[int]) -> Sequence[Root]:
    """Add the unused `pdfs` to the trees, so that all other pdfs keep their numbers.

    They are placed in one root, below questions that no phone of this root answers with yes.
    """
    all_phones = {phone for root in roots for phone in root.phones}
    place = next((i for i, root in enumerate(roots) if all_phones - {*root.phones}), None)
    if place is None:
        return roots
    node, other_phones = roots[place].node, frozenset(all_phones - {*roots[place].phones})
    for pdf in pdfs:
        node = Split("centre", other_phones, 0.0, _UNTRAINED, Leaf(pdf, _UNTRAINED), node)
    return [replace(root, node=node) if i == place else root for i, root in enumerate(roots)]


def _joined(nodes: Mapping[int, Node]) -> Node:
    """Join the phones' trees into one, with questions about the phone where they differ."""
    phones_by_tree: dict[Node, set[int]] = {}
    for phone, node in sorted(nodes.items()):
        phones_by_tree.setdefault(node, set()).add(phone)
    *other_trees, (joined, _) = phones_by_tree.items()
    for node, phones in reversed(other_trees):
        joined = Split("centre", frozenset(phones), 0.0, _UNTRAINED, node, joined)
    return joined


def read_senones(tree: Path, model: Path, phones: Path) -> Senones:
    """Read a Kaldi model's tied states; pdfs keep their numbers.

    Phones of chain models have one state, with one pdf for entering it and one for its loop. They
    become phones with two states, the onset and the rest.

    Args:
      tree: the model's `tree`, in binary or text form.
      model: its transition model (final.mdl, 0.trans_mdl), for the numbers of HMM states.
      phones: its phones.txt, whose silence phones are SIL and SPN, with or without positions.

    Returns:
      Senones over the phones of the model, in the order of their ids. Transitions within a phone
      are those of this toolkit.

    Raises:
      KaldiModelError: a file cannot be read, or this toolkit's HMMs cannot represent the states.
    """
    transitions = KaldiTransitions.read(model)
    sizes = transitions.num_states
    table = SymbolTable.read(phones)
    symbols = {table[phone]: phone for phone in table}
    lacking = sorted(sizes.keys() - symbols.keys())
    if lacking:
        raise KaldiModelError(
            f"{phones} has no phone with the id {lacking[0]}, which {model} uses: give the "
            "phones.txt of the model"
        )
    names = tuple(symbols[number] for number in sorted(sizes))
    silence = tuple(p for p in names if p.split("_")[0] in ("SIL", "SPN"))
    if "SIL" not in silence:
        raise KaldiModelError(f"{phones} has no phone SIL: rename the silence phone to SIL")
    silence = ("SIL", *(phone for phone in silence if phone != "SIL"))
    silence_sizes = {sizes[table[phone]] for phone in silence}
    speech_sizes = {sizes[table[phone]] for phone in names if phone not in silence}
    if len(silence_sizes) != 1 or len(speech_sizes) != 1:
        raise KaldiModelError(
            f"{model}: phones have {sorted(silence_sizes | speech_sizes)} states: all silence"
            " phones must have the same number of states, and so must all other phones"
        )
    topology = Topology(names, silence, speech_sizes.pop(), silence_sizes.pop(), transitions.chain)
    ids = {number: place for place, number in enumerate(sorted(sizes), 1)}
    return Senones(topology, read_tree(tree, topology, ids))
