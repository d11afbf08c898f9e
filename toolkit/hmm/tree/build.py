"""Growing a phonetic tree: greedy splitting by likelihood, then clustering of the leaves."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toolkit.hmm.phone_sets import RootGroup, default_roots, read_roots
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree.clustering import agglomerate, log_likelihood, variance_floor
from toolkit.hmm.tree.nodes import POSITIONS, Leaf, Node, Root, Split, TreeError
from toolkit.hmm.tree.questions import (
    Questions,
    automatic_questions,
    distinct,
    read_extra_questions,
    read_questions,
)
from toolkit.hmm.tree.stats import ContextStatistics, TreeStatistics
from toolkit.hmm.tree.tree import Tree

TIE = 1e-9
"""Gains that differ by less than this share of the likelihood count as equal (rounding)."""


@dataclass(frozen=True)
class TreeConfig:
    """How a phonetic decision tree is built, and when it stops growing."""

    max_leaves: int = 2000
    """Leaves of all roots together at which splitting stops; clustering then leaves fewer pdfs.
    The paper has 3,183 senones from 7,000 h (C3)."""
    min_gain: float = 300.0
    """Log-likelihood, in nats, that a split must gain (Kaldi's --thresh)."""
    min_frames: int = 50
    """Frames that each side of a split must have; Kaldi has no such limit."""
    cluster_threshold: float | None = None
    """After splitting, leaves of one root are merged as long as that loses less log-likelihood
    than this, in nats. None: less than the split that gained least (Kaldi's default); 0: never."""
    context: tuple[str, ...] = ("left", "right")
    """The neighbours that questions are about; ("left",) ties left biphones."""
    questions: Path | None = None
    """Phonetic questions, a set of phones per line (Kaldi's questions.txt); None: from the data."""
    extra_questions: Path | None = None
    """Sets of phones that are asked besides those from the data (Kaldi's extra_questions.txt)."""
    roots: Path | None = None
    """Which phones share roots (Kaldi's roots.txt); None: the variants of a base phone."""

    def __post_init__(self) -> None:
        if self.max_leaves < 1 or self.min_frames < 1:
            raise ValueError("max_leaves and min_frames must be at least 1")
        if self.min_gain < 0 or (self.cluster_threshold or 0) < 0:
            raise ValueError("min_gain and cluster_threshold must not be negative")
        if not set(self.context) <= {"left", "right"}:
            raise ValueError(f"context holds left and right, not {list(self.context)}")


def grow_tree(statistics: TreeStatistics, topology: Topology, config: TreeConfig) -> Tree:
    """Grow a tree with the questions and roots that `config` names, see `build_tree`."""
    if config.questions is None:
        questions = automatic_questions(statistics, topology)
        if config.extra_questions is not None:
            extra = read_extra_questions(config.extra_questions, topology)
            questions = distinct([*questions, *extra], len(topology.phones))
    else:
        questions = read_questions(config.questions, topology)
    roots = None if config.roots is None else read_roots(config.roots, topology)
    return build_tree(statistics, topology, questions, config, roots)


def build_tree(
    statistics: TreeStatistics,
    topology: Topology,
    questions: Questions,
    config: TreeConfig,
    roots: Sequence[RootGroup] | None = None,
) -> Tree:
    """Grow a tree, always making the split that gains most over all leaves (Kaldi's build-tree).

    Each state of each group of phones has a root of its own. Leaves are single diagonal Gaussians.
    Unseen contexts get a leaf too: the one that the answers to the questions lead to.

    Args:
      statistics: of the states in context; roots without statistics are single leaves.
      topology: the phones and their states.
      questions: sets of phones, asked of both neighbours and, within shared roots, of the phone
        itself.
      config: when to stop.
      roots: which phones share roots; by default the variants of a base phone.

    Raises:
      TreeError: there are no statistics.
    """
    if not statistics.frames:
        raise TreeError("no frames to grow a tree from; is there an aligned utterance?")
    contexts = statistics.contexts()
    grower = _Grower(contexts, topology, questions, config)
    groups = default_roots(topology) if roots is None else roots
    trees: list[tuple[RootGroup, int, _Branch]] = []
    for group in sorted(groups, key=lambda group: min(group.phones)):
        kinds = {topology.is_silence(phone) for phone in group.phones}
        if len(kinds) > 1:
            raise ValueError(f"phones {list(group.phones)} mix silence and speech in one root")
        for state in range(topology.num_states(group.phones[0])):
            ids = [topology.state_id(phone, state) for phone in group.phones]
            rows = np.flatnonzero(np.isin(contexts.states, ids))
            trees.append((group, state, grower.branch(rows, group.split)))
    grower.grow(config.max_leaves)
    finished, pdfs = [], 0
    for group, state, branch in trees:
        pdfs += grower.number_leaves(branch, pdfs)
        finished.append(Root(tuple(sorted(group.phones)), state, branch.node()))
    return Tree(topology.phones, tuple(finished))


class _Branch:
    """A node of the growing tree: a leaf until it is split."""

    def __init__(self, rows: np.ndarray, total: np.ndarray, likelihood: float) -> None:
        self.rows, self.total, self.likelihood = rows, total, likelihood
        self.best: tuple[float, str, int, np.ndarray] | None = None  # gain, ask, question, answers
        self.question: tuple[str, frozenset[int], float] | None = None
        self.yes: _Branch
        self.no: _Branch
        self.pdf = -1

    def leaves(self) -> list["_Branch"]:
        return self.yes.leaves() + self.no.leaves() if self.question else [self]

    def node(self) -> Node:
        frames = round(self.total[0])
        if self.question is None:
            return Leaf(self.pdf, frames)
        ask, phones, gain = self.question
        return Split(ask, phones, round(gain, 1), frames, self.yes.node(), self.no.node())


class _Grower:
    """The growing trees of all roots: a heap of the leaves worth splitting, largest gain first."""

    def __init__(
        self,
        contexts: ContextStatistics,
        topology: Topology,
        questions: Questions,
        config: TreeConfig,
    ) -> None:
        self._sums = contexts.sums
        self._floor = variance_floor(contexts.sums)
        self._smallest_gain = 0.0
        self._questions = questions
        self._config = config
        centre = np.array(topology.phone_of_state_id)[contexts.states]
        phone = {"left": contexts.left, "centre": centre, "right": contexts.right}
        self._phone = {ask: phone[ask] for ask in POSITIONS if ask in (*config.context, "centre")}
        self._answers = np.zeros((len(questions), len(topology.phones) + 1))  # 1 for yes
        for number, phones in enumerate(questions):
            self._answers[number, list(phones)] = 1.0
        self._heap: list[tuple[float, int, _Branch]] = []
        self._leaves = self._serial = 0

    def branch(self, rows: np.ndarray, split: bool = True) -> _Branch:
        """Make a leaf of some rows of the statistics, a candidate for splitting if it may be."""
        sums = self._sums[rows]
        total = sums.sum(0)
        branch = _Branch(rows, total, float(log_likelihood(total, self._floor)))
        self._leaves += 1
        self._serial += 1
        if split and total[0] >= 2 * self._config.min_frames:
            branch.best = self._best_split(branch, sums)
        if branch.best is not None:
            heapq.heappush(self._heap, (-branch.best[0], self._serial, branch))
        return branch

    def grow(self, max_leaves: int) -> None:
        """Split the best leaf until there are `max_leaves`, or no split gains enough."""
        gains = []
        while self._heap and self._leaves < max_leaves:
            branch = heapq.heappop(self._heap)[2]
            gain, ask, number, answers = branch.best
            branch.question = ask, self._questions[number], gain
            branch.yes = self.branch(branch.rows[answers])
            branch.no = self.branch(branch.rows[~answers])
            self._leaves -= 1
            gains.append(gain)
        self._smallest_gain = min(gains, default=0.0)

    def number_leaves(self, root: _Branch, first: int) -> int:
        """Number the pdfs of a root from `first` on, one for each cluster; return how many."""
        leaves = root.leaves()
        cluster = list(range(len(leaves)))
        threshold = self._config.cluster_threshold
        if threshold is None:
            threshold = self._smallest_gain * (1 - 1e-6)  # rounding must not undo that split
        totals = np.stack([leaf.total for leaf in leaves])
        for i, j in agglomerate(totals, self._floor, threshold):
            cluster = [i if c == j else c for c in cluster]
        number: dict[int, int] = {}
        for leaf, c in zip(leaves, cluster, strict=True):
            leaf.pdf = first + number.setdefault(c, len(number))
        return len(number)

    def _best_split(
        self, branch: _Branch, sums: np.ndarray
    ) -> tuple[float, str, int, np.ndarray] | None:
        """The best split: its gain, the position asked about, question index and answers [rows]."""
        sums_of_yes, asked = [], []
        for ask, phone in self._phone.items():
            present, by_phone = _by_phone(phone[branch.rows], sums)
            if len(present) > 1:
                sums_of_yes.append(self._answers[:, present] @ by_phone)
                asked.append(ask)
        if not asked:
            return None
        yes = np.concatenate(sums_of_yes)
        frames = self._config.min_frames
        large = np.flatnonzero((yes[:, 0] >= frames) & (branch.total[0] - yes[:, 0] >= frames))
        if not len(large):
            return None
        halves = np.stack([yes[large], branch.total - yes[large]])
        gains = log_likelihood(halves, self._floor).sum(0) - branch.likelihood
        first = int(np.argmax(gains >= gains.max() - TIE * abs(branch.likelihood)))
        if gains[first] < max(self._config.min_gain, TIE * abs(branch.likelihood)):
            return None
        which, number = divmod(int(large[first]), len(self._questions))
        answers = self._answers[number, self._phone[asked[which]][branch.rows]] > 0
        return float(gains[first]), asked[which], number, answers


def _by_phone(phones: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct phones, and the sums [K, 1 + 2D] of each."""
    order = np.argsort(phones, kind="stable")
    present, first = np.unique(phones[order], return_index=True)
    return present, np.add.reduceat(sums[order], first) if len(first) else sums
