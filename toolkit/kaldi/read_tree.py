"""Reading of Kaldi's phonetic trees."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Leaf, Node, Root, Split, Tree, leaves
from toolkit.kaldi.model import KaldiModelError
from toolkit.kaldi.stream import Stream
from toolkit.storage.reading import reading

ADVICE = "give the `tree` of a Kaldi model of monophones or triphones"
_CLASS = -1
"""The key of questions about the HMM state; those about the phones are 0, 1, ..."""
_UNTRAINED = 0


@dataclass(frozen=True)
class _Question:
    """A node of Kaldi's: what it asks, and the branch of each answer; None for all others."""

    key: int
    branches: Mapping[int | None, "_Question | int | None"]


_Event = _Question | int | None
"""A question, a pdf, or nothing."""


def read_tree(path: Path, topology: Topology, phone_ids: Mapping[int, int]) -> Tree:
    """Read a tree, in binary or text form, for the phones of a topology.

    Where Kaldi's tree asks about the edges of an utterance (phone 0), this toolkit has silence.

    Args:
      path: the file.
      topology: the phones and their states.
      phone_ids: Kaldi's id of each phone -> the topology's.

    Raises:
      KaldiModelError: no tree, or one that this toolkit cannot represent: of wider contexts, or
        with a pdf that belongs to states at different places in their phones.
    """
    with reading(path, KaldiModelError, ADVICE, "no tree of Kaldi"):
        width, centre, event = _read(Stream(Path(path).read_bytes()))
        if (width, centre) not in ((1, 0), (3, 1)):
            raise ValueError(f"contexts of {width} phones")
        places = {centre - 1: "left", centre: "centre", centre + 1: "right"}
        trees: dict[tuple[int, int], Node] = {}
        for kaldi, phone in phone_ids.items():
            for state in range(topology.num_states(phone)):
                known = {_CLASS: state, centre: kaldi}
                trees[phone, state] = _resolved(event, known, places, phone_ids)
        return Tree(topology.phones, tuple(_roots(trees)))


def _read(stream: Stream) -> tuple[int, int, _Event]:
    stream.expect("ContextDependency")
    width, centre = stream.integer(), stream.integer()
    stream.expect("ToPdf")
    event = _event(stream)
    stream.expect("EndContextDependency")
    return width, centre, event


def _event(stream: Stream) -> _Event:
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
    known: Mapping[int, int],
    places: Mapping[int, str],
    phone_ids: Mapping[int, int],
) -> Node:
    """The tree of one state of one phone: only questions about its neighbours are left."""
    while isinstance(event, _Question) and event.key in known:
        event = event.branches.get(known[event.key], event.branches[None])
    if event is None:
        (phone,) = (value for key, value in known.items() if key != _CLASS)
        raise ValueError(f"no pdf for state {known[_CLASS]} of the phone {phone}")
    if not isinstance(event, _Question):
        return Leaf(event, _UNTRAINED)
    # Phones with a branch in common are asked about together; the last branch needs no question.
    groups: dict[int, tuple[_Event, set[int]]] = {}
    for kaldi, phone in phone_ids.items():
        branch = event.branches.get(kaldi, event.branches[None])
        groups.setdefault(id(branch), (branch, set()))[1].add(phone)
    *others, (last, _) = groups.values()
    node = _resolved(last, known, places, phone_ids)
    for branch, phones in others:
        yes = _resolved(branch, known, places, phone_ids)
        if yes != node:
            node = Split(places[event.key], frozenset(phones), 0.0, _UNTRAINED, yes, node)
    return node


def _roots(trees: Mapping[tuple[int, int], Node]) -> list[Root]:
    """Roots of the states of phones; those that have a pdf in common share one."""
    groups: list[tuple[int, set[int], dict[int, Node]]] = []
    for (phone, state), node in sorted(trees.items()):
        pdfs, phones = {leaf.pdf for leaf in leaves(node)}, {phone: node}
        shared = [group for group in groups if group[1] & pdfs]
        for group in shared:
            if group[0] != state:
                names = f"{group[0]} and {state}"
                pdf = min(group[1] & pdfs)
                raise ValueError(
                    f"pdf {pdf} belongs to the states {names} of phones; "
                    "build the tree from roots that are not shared by states"
                )
            groups.remove(group)
            pdfs, phones = pdfs | group[1], group[2] | phones
        groups.append((state, pdfs, phones))
    roots = [Root(tuple(sorted(found)), state, _joined(found)) for state, _, found in groups]
    used = {pdf for _, pdfs, _ in groups for pdf in pdfs}
    roots = _with_unused(roots, set(range(max(used))) - used)
    return sorted(roots, key=lambda root: (root.phones, root.state))


def _with_unused(roots: Sequence[Root], pdfs: Collection[int]) -> Sequence[Root]:
    """Add pdfs that no phone has, so that all keep their numbers.

    They are the answer of a root to whether the phone is one that has another root.
    """
    everyone = {phone for root in roots for phone in root.phones}
    place = next((i for i, root in enumerate(roots) if everyone - {*root.phones}), None)
    if place is None:
        return roots
    node, strangers = roots[place].node, frozenset(everyone - {*roots[place].phones})
    for pdf in pdfs:
        node = Split("centre", strangers, 0.0, _UNTRAINED, Leaf(pdf, _UNTRAINED), node)
    return [replace(root, node=node) if i == place else root for i, root in enumerate(roots)]


def _joined(nodes: Mapping[int, Node]) -> Node:
    """One tree that asks which phone it is, where phones differ."""
    alike: dict[Node, set[int]] = {}
    for phone, node in sorted(nodes.items()):
        alike.setdefault(node, set()).add(phone)
    *others, (joined, _) = alike.items()
    for node, phones in reversed(others):
        joined = Split("centre", frozenset(phones), 0.0, _UNTRAINED, node, joined)
    return joined
