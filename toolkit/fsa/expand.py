"""Applies C and H: expands a graph over phones to the pdfs of HMM states in context."""

from functools import cached_property

import numpy as np

from toolkit.fsa.arrays import ragged_rows
from toolkit.fsa.fst import FINAL, Fst, connect, select_words
from toolkit.hmm.senones import Senones


def expand_phones_to_pdfs(graph: Fst, senones: Senones, open_end: bool = False) -> Fst:
    """Expand each phone of a graph to its HMM states in phonetic context.

    This is the composition of H, C and the graph, with two differences. A phone's unit is chosen
    when the phone is entered, from all units that its possible successors allow, instead of one
    phone later. That way the output of an arc is written in the frame in which its phone begins.
    And C's P^2 states are never built, only the contexts that occur. So the same function makes
    decoding graphs and the graphs of single transcripts, which have the same silence, context and
    topology.

    The result has a chain of states for every pair of a state of `graph` and a unit that ends
    there. An arc of `graph` becomes several arcs, which lead into the chains of its phone from all
    chains that end in its source. The result has no epsilons, which dense search cannot read.

    Args:
      graph: from phones to words, without epsilons and disambiguation symbols; `lm_scores` are
        kept if there are any.
      senones: topology and tree. The graph's edges count as silence (see `phone_contexts`).
      open_end: let the graph end in any state, even in the middle of a phone.

    Returns:
      A connected transducer that reads pdf + 1 and writes what `graph` wrote, arcs sorted.
    """
    arcs = np.stack([graph.source, graph.target, graph.labels], axis=1).astype(np.int64)
    ids = np.arange(len(arcs))
    final = arcs[:, 2] == FINAL
    chains, entries = _contexts(arcs[~final], ids[~final], arcs[final, 0], senones)
    parts = [_inside(chains), _entries(chains, *entries), _finals(chains, arcs, final, open_end)]
    return _assemble(np.concatenate(parts), graph)


class _Chains:
    """Chains of HMM states, one per phone in context.

    Args:
      state: [chains] the state of the phone graph in which each chain ends.
      unit: [chains] its unit, an index of `senones.context_units`.
      senones: topology and units.
    """

    def __init__(self, state: np.ndarray, unit: np.ndarray, senones: Senones) -> None:
        self.state, self.unit = state, unit
        self.units, self.topology = senones.context_units, senones.topology
        sizes = np.array([0, *map(self.topology.num_states, self.topology.phone_ids())])
        # The last entry is the final state.
        self.first = 1 + np.append(0, sizes[self.phone].cumsum())  # 0 is the start

    @cached_property
    def phone(self) -> np.ndarray:
        """Phone id of each chain: [chains]."""
        return self.units.phone[self.unit]

    def by_topology(self, chain: np.ndarray | None = None) -> list[tuple[int, np.ndarray]]:
        """Return the chains of each topology (silence, speech), with one of their phones.

        Args:
          chain: [n] chains, below 0 for none; None for all of them.

        Returns:
          Pairs of a phone and the chains with its topology; if `chain` is given, the positions of
          these chains in `chain`.
        """
        topology = self.topology
        silent = np.array([False, *map(topology.is_silence, topology.phone_ids())])
        is_silent = silent[self.phone] if chain is None else silent[self.phone[chain]]
        valid = True if chain is None else chain >= 0
        kinds = []
        for is_member in (is_silent & valid, ~is_silent & valid):
            members = np.flatnonzero(is_member)
            if len(members):
                example = members[0] if chain is None else chain[members[0]]
                kinds.append((int(self.phone[example]), members))
        return kinds


def _contexts(
    arcs: np.ndarray, ids: np.ndarray, ends: np.ndarray, senones: Senones
) -> tuple[_Chains, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the chains and, for each arc between them, its origin, graph arc and target.

    The origin is a chain, or -1 for the start; the target is a chain.
    """
    source, target, phone = arcs.T  # [A] each
    units, silence = senones.context_units, senones.topology.silence
    num_phones, num_units = len(units.index), len(units.phone)
    # 1. What may precede and follow each state: (state, phone) pairs as sorted keys
    # state * num_phones + phone. State 0 is preceded by silence, final states are followed by it.
    left_contexts = np.unique(np.append(target * num_phones + phone, silence))
    right_contexts = np.unique(np.append(source * num_phones + phone, ends * num_phones + silence))

    # 2. The unit of each arc with each phone before and after it. A chain is a unit that ends in a
    # state.
    arc, pair = _join(source, left_contexts // num_phones)
    left_phone = left_contexts[pair] % num_phones
    row, pair = _join(target[arc], right_contexts // num_phones)
    arc, left_phone, right_phone = arc[row], left_phone[row], right_contexts[pair] % num_phones
    unit = units.index[left_phone, phone[arc], right_phone]
    key, chain = np.unique(target[arc] * num_units + unit, return_inverse=True)
    chains = _Chains(key // num_units, key % num_units, senones)

    # 3. Each arc, by the phone before it, with the chains that it may enter; keys again.
    width = len(key) + 1
    entry = np.unique((arc * num_phones + left_phone) * width + chain)
    entered, arc_left = entry % width, entry // width
    arc, left_phone = arc_left // num_phones, arc_left % num_phones

    # 4. A chain leads on to the arcs of its state that have its phone as left context and a phone
    # that its unit allows on its right.
    chain_key = chains.state * num_phones + chains.phone
    order = np.argsort(chain_key, kind="stable")
    row, pair = _join(source[arc] * num_phones + left_phone, chain_key[order])
    origin = order[pair]
    fits = units.right[chains.unit[origin], phone[arc[row]]]
    row, origin = row[fits], origin[fits]
    # 5. The start leads to the arcs of state 0, with silence as left context.
    begins = np.flatnonzero((source[arc] == 0) & (left_phone == silence))
    row = np.append(begins, row)
    origin = np.append(np.full(len(begins), -1), origin)
    return chains, (origin, ids[arc[row]], entered[row])


def _join(keys: np.ndarray, sorted_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of equal keys: positions in `keys` and in the sorted `sorted_keys`."""
    low, high = np.searchsorted(sorted_keys, keys), np.searchsorted(sorted_keys, keys, side="right")
    rows, offsets = ragged_rows(high - low)
    return rows, low[rows] + offsets


def _inside(chains: _Chains) -> np.ndarray:
    """Return the arcs within chains: [n, 4] source, target, label, graph arc (-1: none)."""
    parts = []
    # All chains of one topology at once: [members, transitions].
    for phone, members in chains.by_topology():
        transitions = np.array(
            [
                (state, following)
                for state in range(chains.topology.num_states(phone))
                for following in chains.topology.successors(phone, state)
            ]
        )
        first = chains.first[members][:, None]
        # An arc reads the pdf of the state that it enters.
        pdfs = chains.units.pdfs[chains.unit[members]][:, transitions[:, 1]]
        parts.append(_arcs(first + transitions[:, 0], first + transitions[:, 1], pdfs, -1))
    return np.concatenate(parts)


def _entries(
    chains: _Chains, origin: np.ndarray, arc: np.ndarray, entered: np.ndarray
) -> np.ndarray:
    """Return the arcs into chains, from the start (-1) or from all exits of other chains."""
    pdf, target = chains.units.pdfs[chains.unit[entered], 0], chains.first[entered]
    from_start = origin < 0
    parts = [
        _arcs(np.zeros(from_start.sum()), target[from_start], pdf[from_start], arc[from_start])
    ]
    for phone, members in chains.by_topology(origin):
        for state in chains.topology.exit_states(phone):
            source = chains.first[origin[members]] + state
            parts.append(_arcs(source, target[members], pdf[members], arc[members]))
    return np.concatenate(parts)


def _finals(chains: _Chains, arcs: np.ndarray, final: np.ndarray, open_end: bool) -> np.ndarray:
    """Return the arcs to the final state from the exits of chains where the graph may end."""
    last = chains.first[-1]
    if open_end:  # from every state
        return _arcs(np.arange(1, last), last, FINAL - 1, -1)
    # Chains that end in a final state of the graph, and whose unit allows silence on its right.
    ids = np.flatnonzero(final)
    order = np.argsort(arcs[ids, 0], kind="stable")
    chain, pair = _join(chains.state, arcs[ids[order], 0])
    allows_silence = chains.units.right[chains.unit[chain], chains.topology.silence]
    chain, arc = chain[allows_silence], ids[order][pair[allows_silence]]
    parts = [np.zeros((0, 4), dtype=np.int64)]
    for phone, members in chains.by_topology(chain):
        for state in chains.topology.exit_states(phone):
            parts.append(_arcs(chains.first[chain[members]] + state, last, FINAL - 1, arc[members]))
    return np.concatenate(parts)


def _arcs(
    source: np.ndarray, target: np.ndarray, pdf: np.ndarray | int, arc: np.ndarray | int
) -> np.ndarray:
    """Stack columns to arcs [n, 4]: source, target, label, graph arc."""
    table = np.empty((np.size(source), 4), dtype=np.int64)
    for column, values in enumerate((source, target, np.asarray(pdf) + 1, arc)):
        table[:, column] = np.reshape(values, -1)
    return table


def _assemble(table: np.ndarray, graph: Fst) -> Fst:
    """Make the transducer from arcs [n, 4]; other attributes come from their `graph` arcs."""
    table = table[np.lexsort((table[:, 1], table[:, 2], table[:, 0]))]
    origin = table[:, 3]
    # Arcs inside HMMs (graph arc -1) get the appended score 0 and the words of row 0: none.
    nothing = np.float32(0)
    splits, words = select_words(np.append(np.int32(0), graph.splits), graph.words, origin + 1)
    lm_scores = graph.lm_scores
    fst = Fst(
        source=table[:, 0].astype(np.int32),
        target=table[:, 1].astype(np.int32),
        labels=table[:, 2].astype(np.int32),
        scores=np.append(graph.scores, nothing)[origin],
        splits=splits,
        words=words,
        lm_scores=None if lm_scores is None else np.append(lm_scores, nothing)[origin],
    )
    return connect(fst)
