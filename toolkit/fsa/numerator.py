"""The LF-MMI numerator: denominator paths near one alignment, or near several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from toolkit.features.low_frame_rate import centre
from toolkit.fsa.arrays import find_slot, rehash_if_full, with_capacity
from toolkit.fsa.denominator import Denominator
from toolkit.fsa.fst import FINAL, Lattice, connect
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.kernels import njit


@dataclass(frozen=True, eq=False)
class PhoneTimes:
    """The phones of an alignment and their start times."""

    phones: np.ndarray
    """[K] int32 ids."""
    begins: np.ndarray
    """[K] int32, the 10 ms frame in which each phone begins; ascending, the first is 0."""
    frames: int
    """T, total number of 10 ms frames."""

    @classmethod
    def of(cls, states: Tensor, topology: Topology) -> "PhoneTimes":
        """Make phone times from aligned state ids [T]."""
        starts = topology.phone_starts(states)
        phones = torch.tensor(topology.phone_of_state_id)[states[starts]]
        begins = starts.nonzero()[:, 0]
        return cls(phones.numpy().astype(np.int32), begins.numpy().astype(np.int32), len(states))

    def windows(self, offset: int, tolerance: int) -> np.ndarray:
        """Return the low-rate frames [K, 2] in which each phone may be: first, and end (exclusive).

        A phone may be in a frame if the frame's middle is at most `tolerance` 10 ms frames before
        the phone's start or after its end, and if a frame is left for each earlier and each later
        phone.

        Args:
          offset: 0, 1 or 2, the 10 ms frame that the first low-rate frame begins with.
          tolerance: 10 ms frames.
        """
        middle = centre(self.frames, offset).numpy()
        ends = np.append(self.begins[1:], self.frames)
        number = np.arange(len(self.phones))
        first = np.searchsorted(middle, self.begins - tolerance) - number
        behind = np.searchsorted(middle, ends + tolerance) - number
        behind = np.minimum.accumulate(behind[::-1])[::-1]
        return np.stack([np.maximum.accumulate(first), behind], axis=1) + number[:, None]


@dataclass(frozen=True, eq=False)
class PhoneAlternatives:
    """Several recognised phone sequences of an utterance without a transcript."""

    times: tuple[PhoneTimes, ...]
    """At least one alternative, the most likely first; all have the same number of frames."""
    weights: np.ndarray
    """[N] float64, posteriors: each above 0, their sum at most 1."""

    @property
    def frames(self) -> int:
        """Total number of 10 ms frames, T."""
        return self.times[0].frames


PhoneSupervision = PhoneTimes | PhoneAlternatives
"""The phones of an utterance, as transcribed or as recognised."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive low-rate frames of an utterance."""

    offset: int
    """0, 1 or 2, the 10 ms frame that the utterance's first low-rate frame begins with."""
    start: int
    """The first low-rate frame."""
    length: int
    """T, number of low-rate frames."""


class NumeratorMaker:
    """Makes the numerators of pieces of aligned utterances as lattices.

    A numerator holds every path that goes through the phones of the alignment in their order, each
    phone within its window (`PhoneTimes.windows`). A piece may begin and end within a phone; at
    the edges of the utterance the first phone begins and the last one ends. The paths are composed
    with the denominator and have its scores. So no path is likelier than in the denominator, and
    the criterion is at most 0 (unless a piece may begin in either of two phones with the same
    pdfs). Kaldi's supervision is the same, except that it does not distinguish the windows of two
    equal phones that are close together.

    The numerator of recognised speech holds the paths of all alternatives, and the log posterior of
    an alternative is added to the scores of its paths. This is semi-supervised LF-MMI (Manohar et
    al. 2018) with one difference: the paper uses the language model's probabilities of the
    lattice's paths, raised to the power 0.5, in place of posteriors. Alternatives that do not
    differ within or near a piece are merged.

    Args:
      senones: made with the low-rate topology, whose phones have an onset.
      denominator: made with the same senones.
      tolerance: 10 ms frames by which a phone may begin earlier or end later (Kaldi: 5).
    """

    def __init__(self, senones: Senones, denominator: Denominator, tolerance: int) -> None:
        if not senones.topology.onset:
            raise ValueError("make the senones with the low-rate topology (`Topology.at_low_rate`)")
        self._senones = senones
        self._denominator = denominator
        self._tolerance = tolerance

    def lattice(self, supervision: PhoneSupervision, piece: Chunk) -> Lattice | None:
        """Return a piece's numerator, whose arcs have the denominator's scores.

        If no path fits (a copy at a higher speed may have too few frames for some phones), the
        tolerance is doubled, and doubled again. If that does not help, the result is None: there
        are fewer frames than phones, or the denominator was estimated without such a phone
        sequence. Alternatives without a path are left out if others have one.
        """
        if isinstance(supervision, PhoneTimes):
            supervision = PhoneAlternatives((supervision,), np.ones(1))
        for factor in (1, 2, 4):
            if lattice := self._union(supervision, piece, factor * self._tolerance):
                return lattice
        return None

    def _union(
        self, supervision: PhoneAlternatives, piece: Chunk, tolerance: int
    ) -> Lattice | None:
        """Return the union of the numerators of several alternatives."""
        at_end = piece.start + piece.length == len(centre(supervision.frames, piece.offset))
        near: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
        weights: dict[bytes, float] = {}
        for times, weight in zip(supervision.times, supervision.weights.tolist(), strict=True):
            nearby = self._near(times, piece, tolerance)
            key = b"".join(part.tobytes() for part in nearby)
            near[key] = nearby
            weights[key] = weights.get(key, 0.0) + weight
        lattices, scores = [], []
        for key, (pdfs, windows) in near.items():
            if len(pdfs) and (lattice := self._within(pdfs, windows, piece, at_end)).num_arcs:
                lattices.append(lattice)
                scores.append(math.log(weights[key]))
        return _join_lattices(lattices, scores) if lattices else None

    def _near(
        self, times: PhoneTimes, piece: Chunk, tolerance: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return pdfs [K, 2] and windows [K, 2] int64 of the phones that a piece may have.

        Windows are relative to the start of the piece, and are clipped to one frame before it and
        to its end. So alternatives that differ only outside the piece become equal.

        Of the phones before the piece, only the last one may be included, and none of those after
        it. K is 0 if the utterance has more phones than frames.
        """
        windows = times.windows(piece.offset, tolerance) - piece.start
        near = np.flatnonzero((windows[:, 1] >= 0) & (windows[:, 0] < piece.length))
        return self._pdfs(times)[near], windows[near].clip(-1, piece.length).astype(np.int64)

    def _within(self, pdfs: np.ndarray, windows: np.ndarray, piece: Chunk, at_end: bool) -> Lattice:
        """Return the lattice of denominator paths within the phones' windows."""
        at_begin, length = piece.start == 0, piece.length
        positions, columns, score = _paths(pdfs, windows, length, at_begin, *self._transitions)
        return _lattice_of_paths(positions, columns, score, len(pdfs) if at_end else None, length)

    def _pdfs(self, times: PhoneTimes) -> np.ndarray:
        """Return the pdfs [K, 2] of each phone's onset and rest in its context."""
        silence = self._senones.topology.silence
        around = np.concatenate([[silence], times.phones, [silence]])
        states = 2 * (times.phones[:, None] - 1) + np.arange(2)
        return self._table[states, around[:-2, None], around[2:, None]]

    @cached_property
    def _table(self) -> np.ndarray:
        """The pdf of each state in each context; see `Senones.table`."""
        return self._senones.table.numpy()

    @cached_property
    def _transitions(self) -> tuple[np.ndarray, ...]:
        """Transitions by state, pdf and target: first, targets, pdfs, log weights.

        State S stands for the start of a piece.
        """
        hmm = self._denominator
        entered = np.flatnonzero(hmm.begin)
        source = np.append(hmm.source, np.full(len(entered), hmm.num_states, np.int32))
        target = np.append(hmm.target, entered.astype(np.int32))
        weight = np.log(np.append(hmm.weight, hmm.begin[entered])).astype(np.float32)
        order = np.lexsort((target, hmm.pdf[target], source))
        first = np.searchsorted(source[order], np.arange(hmm.num_states + 2))
        return first, target[order], hmm.pdf[target][order], weight[order]


@njit(cache=True, nogil=True)
def _paths(
    pdfs: np.ndarray,
    windows: np.ndarray,
    frames: int,
    at_begin: bool,
    first: np.ndarray,
    targets: np.ndarray,
    target_pdfs: np.ndarray,
    weights: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all paths from the first frame, whether or not they reach the last one.

    A state is a position (2 k for phone k's onset, 2 k + 1 for its rest) and a state of the
    denominator, after a frame.

    Args:
      pdfs: [K, 2] the pdfs of each phone's onset and rest.
      windows: [K, 2] the frames in which each phone may be, from the first to the one after the
        last.
      frames: T.
      at_begin: whether the first phone begins with the chunk; else the chunk may begin within any.
      first, targets, target_pdfs, weights: see `NumeratorMaker._transitions`.

    Returns:
      The position [states] of the states after the last frame, -1 for others; source, target,
      label and frame of the arcs [4, arcs]; their scores [arcs].
    """
    phones, begin = len(pdfs), len(first) - 2  # `begin` is the state S before the first frame
    # Key of a state: (frame * 2 K + position) * (S + 1) + the denominator's state.
    keys, slots = np.empty(1024, np.int64), np.full(4096, -1, np.int32)
    source, target = np.empty(4096, np.int32), np.empty(4096, np.int32)
    label, frame = np.empty(4096, np.int32), np.empty(4096, np.int32)
    score = np.empty(4096, np.float32)
    keys[0], num_states, expanded, num_arcs = begin, 1, 0, 0
    for t in range(frames):
        # States are numbered frame by frame: `expanded` to `level_end` - 1 are before this frame.
        level_end = num_states
        while expanded < level_end:
            state = keys[expanded] % (begin + 1)
            position = keys[expanded] // (begin + 1) % (2 * phones)
            # A phone continues with its rest, or the next one begins with its onset.
            lowest, highest = position | 1, (position | 1) + 2
            if t == 0:  # in the first phone, or anywhere
                lowest, highest = 0, 1 if at_begin else 2 * phones
            for next_position in range(lowest, min(highest, 2 * phones)):
                k = next_position // 2
                if not windows[k, 0] <= t < windows[k, 1]:
                    continue
                if t == 0 and not at_begin and not _may_precede(windows, (next_position - 1) // 2):
                    continue
                # The denominator's transitions from `state` that read this pdf, by bisection.
                pdf = pdfs[k, next_position % 2]
                a, end = first[state], first[state + 1]
                a += np.searchsorted(target_pdfs[a:end], pdf)
                while a < end and target_pdfs[a] == pdf:
                    frame_position = (t + 1) * np.int64(2 * phones) + next_position
                    key = frame_position * (begin + 1) + targets[a]
                    slot = find_slot(key, keys, slots)
                    target_state = slots[slot]
                    if target_state < 0:
                        target_state, slots[slot] = num_states, num_states
                        keys = with_capacity(keys, num_states + 1)
                        keys[num_states] = key
                        num_states += 1
                        slots = rehash_if_full(slots, keys, num_states, num_states)
                    source = with_capacity(source, num_arcs + 1)
                    target = with_capacity(target, num_arcs + 1)
                    label = with_capacity(label, num_arcs + 1)
                    frame = with_capacity(frame, num_arcs + 1)
                    score = with_capacity(score, num_arcs + 1)
                    source[num_arcs], target[num_arcs], frame[num_arcs] = expanded, target_state, t
                    label[num_arcs], score[num_arcs] = pdf + 1, weights[a]
                    num_arcs, a = num_arcs + 1, a + 1
            expanded += 1
    # The states after the last frame are not expanded.
    positions = np.full(num_states, -1, np.int64)
    for state in range(expanded, num_states):
        positions[state] = keys[state] // (begin + 1) % (2 * phones)
    columns = np.empty((4, num_arcs), np.int32)
    for a in range(num_arcs):
        columns[0, a], columns[1, a], columns[2, a] = source[a], target[a], label[a]
        columns[3, a] = frame[a]
    return positions, columns, score[:num_arcs].copy()


def _lattice_of_paths(
    positions: np.ndarray, columns: np.ndarray, scores: np.ndarray, phones: int | None, frames: int
) -> Lattice:
    """Return the lattice of the paths that reach the last frame.

    If `phones`, the number of phones, is given, paths must end in the last phone; if None, in any.
    """
    ends = np.flatnonzero(positions >= (0 if phones is None else 2 * phones - 2)).astype(np.int32)
    last = np.full(len(ends), len(positions), np.int32)
    finals = np.stack([ends, last, np.full_like(last, FINAL), np.full_like(last, frames)])
    source, target, labels, frame = np.concatenate([columns, finals], axis=1)
    return connect(
        Lattice(
            source=source,
            target=target,
            labels=labels,
            scores=np.append(scores, np.zeros(len(ends), np.float32)),
            splits=np.zeros(len(source) + 1, np.int32),
            words=np.zeros(0, np.int32),
            frame=frame,
            graph_arc=np.zeros(len(source), np.int32),
        )
    )


def _join_lattices(lattices: Sequence[Lattice], scores: Sequence[float]) -> Lattice:
    """Join a piece's lattices into one with a common start and end.

    Args:
      lattices: at least one, each with a path.
      scores: a score for each lattice, added to those of its paths.
    """
    if len(lattices) == 1 and not scores[0]:
        return lattices[0]
    inner = [lattice.num_states - 2 for lattice in lattices]
    offsets = np.cumsum([0, *inner[:-1]])
    end = 1 + sum(inner)
    sources, targets, added = [], [], []
    for lattice, offset, score in zip(lattices, offsets, scores, strict=True):
        last = lattice.num_states - 1
        starts = lattice.source == 0
        sources.append(np.where(starts, 0, lattice.source + offset))
        targets.append(np.where(lattice.target == last, end, lattice.target + offset))
        added.append(lattice.scores + np.float32(score) * starts)
    source = np.concatenate(sources)
    order = np.argsort(source, kind="stable")
    labels, frame = (
        np.concatenate([getattr(lattice, name) for lattice in lattices])[order]
        for name in ("labels", "frame")
    )
    return Lattice(
        source=source[order].astype(np.int32),
        target=np.concatenate(targets)[order].astype(np.int32),
        labels=labels,
        scores=np.concatenate(added)[order].astype(np.float32),
        splits=np.zeros(len(source) + 1, np.int32),
        words=np.zeros(0, np.int32),
        frame=frame,
        graph_arc=np.zeros(len(source), np.int32),
    )


@njit(cache=True, nogil=True)
def _may_precede(windows: np.ndarray, k: int) -> bool:
    """Whether phone k may be in the frame before the chunk."""
    return k >= 0 and windows[k, 0] <= -1 < windows[k, 1]
