"""The LF-MMI denominator: an HMM over pdfs, from an unsmoothed phone n-gram without back-off."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from toolkit.errors import ToolkitError
from toolkit.fsa.config import PhoneNgramConfig
from toolkit.fsa.expand import expand_phones_to_pdfs
from toolkit.fsa.fst import EPSILON, FINAL, Fst
from toolkit.hmm.senones import Senones
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading

History = tuple[int, ...]
Counts = dict[History, Counter[int]]


def phone_ngram(sentences: Iterable[Sequence[int]], config: PhoneNgramConfig) -> Fst:
    """Estimate a phone n-gram model; return it as an acceptor with one state per history.

    As in Kaldi's chain-est-phone-lm, probabilities are relative frequencies: a phone that never
    followed a history cannot follow it, which keeps the graph sparse. The counts of a dropped
    history are added to those of its suffix. Kaldi drops histories one by one, always the one that
    costs least; here each is compared with its suffix once.

    Args:
      sentences: the phones of each utterance.
      config: order and size.

    Returns:
      A deterministic acceptor of phones with weighted arcs to the final state.

    Raises:
      ValueError: no sentence has a phone.
    """
    counts: Counts = defaultdict(Counter)
    for sentence in sentences:
        history: History = ()
        for phone in (*sentence, FINAL) if len(sentence) else ():
            counts[history][int(phone)] += 1
            history = (*history, int(phone))[1 - config.order :]
    if not counts:
        raise ValueError("the sentences contain no phones to estimate an n-gram from")
    return _acceptor(_merged(counts, config), config.order)


def _merged(counts: Counts, config: PhoneNgramConfig) -> Counts:
    """Merge the counts of long histories into their suffixes, except for the best histories."""
    # The counts that a suffix would have if all longer histories were merged into it.
    longest = [history for history in counts if len(history) == config.order - 1]
    by_suffix: Counts = defaultdict(Counter)
    for history in longest:
        by_suffix[history[1:]].update(counts[history])
    for suffix, shared in by_suffix.items():
        shared.update(counts.get(suffix, {}))  # from the starts of sentences
    ranked = sorted(longest, key=lambda h: (-_gain(counts[h], by_suffix[h[1:]]), h))
    # Keep all shorter histories and the `extra_states` that gain most; merge the others.
    merged = {h: c for h, c in counts.items() if len(h) < config.order - 1}
    merged |= {history: counts[history] for history in ranked[: config.extra_states]}
    for history in longest:
        if history not in merged:
            merged.setdefault(history[1:], Counter()).update(counts[history])
    return merged


def _gain(counts: Counter[int], shared: Counter[int]) -> float:
    """Return the log-likelihood gained by giving a history a distribution of its own.

    sum_p n(p) log((n(p) / n) / (m(p) / m)) over phones p, where n(p) are the history's own counts
    with the sum n, and m(p) the shared ones with the sum m.
    """
    total, shared_total = counts.total(), shared.total()
    return sum(n * log(n * shared_total / (total * shared[phone])) for phone, n in counts.items())


def _acceptor(counts: Counts, order: int) -> Fst:
    """Make an acceptor of the histories that can be reached, numbered breadth first."""
    number: dict[History, int] = {(): 0}
    waiting = deque([()])
    rows: list[tuple[int, int, int]] = []
    scores: list[float] = []
    while waiting:
        history = waiting.popleft()
        total = counts[history].total()
        for phone, count in sorted(counts[history].items()):
            target = FINAL
            if phone != FINAL:
                following = (*history, phone)[1 - order :]
                while following not in counts:
                    following = following[1:]
                if following not in number:
                    number[following] = len(number)
                    waiting.append(following)
                target = number[following]
            rows.append((number[history], target, phone))
            scores.append(log(count / total))
    table = np.array(rows, np.int32)
    table[table[:, 2] == FINAL, 1] = len(number)
    return Fst(
        source=table[:, 0].copy(),
        target=table[:, 1].copy(),
        labels=table[:, 2].copy(),
        scores=np.array(scores, np.float32),
        splits=np.full(len(table) + 1, EPSILON, np.int32),
        words=np.zeros(0, np.int32),
    )


STEPS = 100
"""Frames over which the initial probabilities are averaged, as in Kaldi."""


class DenominatorError(ToolkitError):
    """Raised when a file does not hold a denominator."""


@dataclass(frozen=True, eq=False)
class Denominator:
    """An HMM with S states and A transitions; each state reads one pdf when it is entered.

    It has no final state: a chunk may end in any state.
    """

    source: np.ndarray
    """[A] int32, ascending."""
    target: np.ndarray
    """[A] int32; ascending in each source, no pair of states twice."""
    weight: np.ndarray
    """[A] float64, above 0: the language model's probability, 1 within a phone. The weights of a
    state's transitions add up to more than 1; constant factors cancel in the criterion."""
    pdf: np.ndarray
    """[S] int32, the pdf that each state reads."""
    initial: np.ndarray
    """[S] float64, adds up to 1: where a chunk begins."""

    @property
    def num_states(self) -> int:
        """Number of states, S."""
        return len(self.pdf)

    @cached_property
    def begin(self) -> np.ndarray:
        """Weight with which each state reads a chunk's first frame: [S] float64."""
        moved = np.zeros(self.num_states)
        np.add.at(moved, self.target, self.initial[self.source] * self.weight)
        return moved

    def save(self, path: Path) -> None:
        """Write the denominator as safetensors."""
        write_atomically(path, save({name: vars(self)[name] for name in _SHAPES}))

    @classmethod
    def load(cls, path: Path) -> "Denominator":
        """Read a denominator that `save` wrote.

        Raises:
          DenominatorError: the file cannot be read, or is damaged; names the file.
        """
        with reading(path, DenominatorError, "make it again", "not a denominator"):
            tensors, _ = read_tensors(path, _SHAPES, "np")
            denominator = cls(**{name: tensors[name] for name in _SHAPES})
            denominator._check()
            return denominator

    def _check(self) -> None:
        """Check the assumptions of the recursions, which would read out of bounds otherwise."""
        arcs, states = len(self.source), self.num_states
        if {len(self.target), len(self.weight)} != {arcs} or len(self.initial) != states:
            raise ValueError("the sizes of its tensors do not match")
        ends = np.concatenate([self.source, self.target])
        if not arcs or ends.min() < 0 or ends.max() >= states or self.pdf.min(initial=0) < 0:
            raise ValueError(
                "it has no transitions, a pdf below 0, or transitions between states that do not "
                "exist"
            )
        if (np.diff(self.source.astype(np.int64) * states + self.target) <= 0).any():
            raise ValueError("its transitions are not sorted")
        if not (self.weight > 0).all() or not (self.initial >= 0).all():
            raise ValueError("a weight is not positive, or an initial probability is negative")


_SHAPES = {
    "source": ("I32", 1),
    "target": ("I32", 1),
    "weight": ("F64", 1),
    "pdf": ("I32", 1),
    "initial": ("F64", 1),
}


def make_denominator(phones: Fst, senones: Senones) -> Denominator:
    """Compose a phone language model with phonetic context and HMM topology.

    As in Kaldi's chain-make-den-fst, the initial probabilities are the HMM's state probabilities,
    averaged over its first 100 frames. For this average, the transitions of each state are scaled
    to add up to 1, and sentences that end on the way are left out. Kaldi's transition probabilities
    are all 1/2, a factor that cancels; here they are 1. The graph is not minimised, since
    `expand_phones_to_pdfs` already merges contexts with equal units.

    Args:
      phones: from `phone_ngram`.
      senones: topology and tree.
    """
    graph = expand_phones_to_pdfs(phones, senones)
    states = graph.num_states - 1  # without the final one
    weight = np.exp(graph.scores.astype(np.float64))
    leaving = np.bincount(graph.source, weight, states)  # [S] sums, including the weight of ending
    # Transitions between the same two states become one, with the sum of their weights.
    inside = graph.labels != FINAL
    key, arc = np.unique(
        graph.source[inside].astype(np.int64) * states + graph.target[inside], return_inverse=True
    )
    source, target = (key // states).astype(np.int32), (key % states).astype(np.int32)
    weight = np.bincount(arc.reshape(-1), weight[inside])
    pdf = np.zeros(states, np.int32)  # state 0 is never entered: its pdf is unused
    pdf[graph.target[inside]] = graph.labels[inside] - 1
    return Denominator(
        source, target, weight, pdf, _initial(source, target, weight / leaving[source], states)
    )


def _initial(
    source: np.ndarray, target: np.ndarray, probability: np.ndarray, states: int
) -> np.ndarray:
    """Return the state probabilities averaged over the first `STEPS` frames: [S] float64.

    Args:
      source, target, probability: [A] of the transitions; a state's add up to at most 1.
      states: S, the number of states.
    """
    occupancy, mean_occupancy = np.zeros(states), np.zeros(states)
    occupancy[0] = 1.0
    for _ in range(STEPS):
        mean_occupancy += occupancy / STEPS
        occupancy = np.bincount(target, occupancy[source] * probability, states)
        occupancy /= occupancy.sum()  # without sentences that have ended
    return mean_occupancy / mean_occupancy.sum()
