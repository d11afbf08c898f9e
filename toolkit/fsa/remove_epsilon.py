"""Removal of arcs that read nothing."""

from typing import NamedTuple

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.fsa.arrays import from_fixed_point, to_fixed_point, with_capacity
from toolkit.fsa.fst import EPSILON, Fst, arc_sort, connect, select_words
from toolkit.kernels import njit


class EpsilonError(ToolkitError):
    """A transducer whose score grows without reading."""


class EpsilonClosures(NamedTuple):
    """The best ways from states to those reached without reading, in the order of the former."""

    begin: np.ndarray
    """[states + 1] where the ways from each state begin."""
    reached: np.ndarray
    """[ways] the state reached; only such from which something is read."""
    score: np.ndarray
    """[ways] int64."""
    lm: np.ndarray
    """[ways] int64."""
    splits: np.ndarray
    """[ways + 1] of `words`."""
    words: np.ndarray


def remove_epsilon(fst: Fst) -> Fst:
    """The transducer without arcs that read nothing, equal in the tropical semiring.

    Every arc that reads is followed by the best way to each state that is reached from there
    without reading; from the start the ways come first. Scores and words are put together. As
    k2's remove_epsilon. (Put before what follows, back-off arcs would give every history the arcs
    of all shorter ones.)

    Args:
      fst: its arcs with label 0 may write words.

    Returns:
      Connected, arcs sorted. Paths with the same labels and states but worse scores are dropped,
      also where they write other words.

    Raises:
      EpsilonError: a cycle that reads nothing has a score above 0.
    """
    reads = fst.labels != EPSILON
    if reads.all():
        return arc_sort(connect(fst))
    score = to_fixed_point(fst.scores)
    lm = score if fst.lm_scores is None else to_fixed_point(fst.lm_scores)
    gains, ways = _ways(fst.first, fst.target, fst.labels, score, lm, fst.splits, fst.words)
    if gains:
        raise EpsilonError(f"a cycle of a graph of {fst.num_arcs} arcs gains by reading nothing")
    # From the start: a way (-1: none), then an arc that reads. Elsewhere such an arc alone.
    arcs = np.flatnonzero(reads)
    begins = np.flatnonzero(ways.reached[: ways.begin[1]] > 0)
    row, then = _ranges(fst.first, ways.reached[begins])
    row, then = row[reads[then]], then[reads[then]]
    before = np.append(np.full(len(arcs), -1), begins[row])
    source, arc = np.append(fst.source[arcs], np.zeros(len(row), np.int32)), np.append(arcs, then)
    # Then another way.
    row, after = _ranges(ways.begin, fst.target[arc])
    source, before, arc = source[row], before[row], arc[row]
    splits, words = _joined(
        (np.append(np.int32(0), ways.splits), ways.words, before + 1),
        (fst.splits, fst.words, arc),
        (ways.splits, ways.words, after),
    )
    total = np.append(ways.score, 0)[before] + score[arc] + ways.score[after]
    total_lm = np.append(ways.lm, 0)[before] + lm[arc] + ways.lm[after]
    order = np.lexsort((ways.reached[after], fst.labels[arc], source))
    splits, words = select_words(splits, words, order)
    result = Fst(
        source=source[order],
        target=ways.reached[after[order]],
        labels=fst.labels[arc[order]],
        scores=from_fixed_point(total[order]),
        splits=splits,
        words=words,
        lm_scores=None if fst.lm_scores is None else from_fixed_point(total_lm[order]),
    )
    return connect(result)


def _ranges(begin: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All entries `begin[r]` to `begin[r + 1]` of rows r: positions in `rows`, and the entries."""
    counts = begin[rows + 1] - begin[rows]
    row = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, begin[rows][row] + within


def _joined(
    *parts: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Splits and words of the chosen rows of ragged arrays (splits, words, rows), side by side."""
    counts = [np.diff(splits)[rows] for splits, _, rows in parts]
    joined = np.append(np.int32(0), np.cumsum(sum(counts))).astype(np.int32)
    words, begin = np.empty(joined[-1], np.int32), joined[:-1].astype(np.int64)
    for count, (splits, values, rows) in zip(counts, parts, strict=True):
        taken, some = select_words(splits, values, rows)
        words[np.repeat(begin - taken[:-1], count) + np.arange(len(some))] = some
        begin += count
    return joined, words


@njit(cache=True, nogil=True)
def _ways(
    first: np.ndarray,
    target: np.ndarray,
    label: np.ndarray,
    score: np.ndarray,
    lm: np.ndarray,
    splits: np.ndarray,
    words: np.ndarray,
) -> tuple[bool, EpsilonClosures]:
    """The ways from the start and from the targets of arcs that read, unless a cycle gains."""
    states = len(first) - 1
    # needed: states where ways begin. useful: states where ways may end, since something is read
    # there.
    needed, useful = np.zeros(states, np.bool_), np.zeros(states, np.bool_)
    needed[0], useful[-1] = True, True
    for state in range(states):
        for k in range(first[state], first[state + 1]):
            if label[k] != 0:
                needed[target[k]], useful[state] = True, True
    ways = EpsilonClosures(
        np.zeros(states + 1, np.int64),
        np.empty(states, np.int32),
        np.empty(states, np.int64),
        np.empty(states, np.int64),
        np.zeros(states + 1, np.int32),
        np.empty(len(words), np.int32),
    )
    # The ways of all states stand behind each other, as in compressed sparse rows.
    place, count, gains = np.full(states, -1, np.int32), 0, False
    for state in range(states):
        if needed[state] and not gains:
            reached, gain, entry, parent = _closure(first, target, label, score, state, place)
            gains = not len(reached)
            size = count + len(reached)
            ends, written = with_capacity(ways.splits, size + 1), ways.words
            ways = EpsilonClosures(
                ways.begin,
                with_capacity(ways.reached, size),
                with_capacity(ways.score, size),
                with_capacity(ways.lm, size),
                ends,
                written,
            )
            for position in range(len(reached)):
                if not useful[reached[position]]:
                    continue
                # Walk the way back to its first state: its LM score, and how many words it writes.
                gain_lm, end, at = np.int64(0), ends[count], position
                while at:
                    gain_lm += lm[entry[at]]
                    end += splits[entry[at] + 1] - splits[entry[at]]
                    at = parent[at]
                written = with_capacity(written, end)
                ways.reached[count], ends[count + 1] = reached[position], end
                ways.score[count], ways.lm[count] = gain[position], gain_lm
                at = position
                while at:  # from the back
                    low, high = splits[entry[at]], splits[entry[at] + 1]
                    written[end - (high - low) : end] = words[low:high]
                    end, at = end - (high - low), parent[at]
                count += 1
            ways = EpsilonClosures(ways.begin, ways.reached, ways.score, ways.lm, ends, written)
        ways.begin[state + 1] = count
    return gains, EpsilonClosures(
        ways.begin,
        ways.reached[:count].copy(),
        ways.score[:count].copy(),
        ways.lm[:count].copy(),
        ways.splits[: count + 1].copy(),
        ways.words[: ways.splits[count]].copy(),
    )


@njit(cache=True, nogil=True)
def _closure(
    first: np.ndarray,
    target: np.ndarray,
    label: np.ndarray,
    score: np.ndarray,
    state: int,
    place: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The best ways from a state to those reached without reading.

    Args:
      place: [states] scratch memory, all -1 before and after the call.

    Returns:
      The states, that itself first; of each the score, the arc by which it is entered, and the
      position of the state before. Nothing if a cycle gains.
    """
    reached, entry, parent = np.empty(8, np.int32), np.empty(8, np.int32), np.empty(8, np.int32)
    gain, waiting, queued = np.empty(8, np.int64), np.empty(8, np.int32), np.empty(8, np.bool_)
    reached[0], gain[0], waiting[0], queued[0], place[state] = state, 0, 0, True, 0
    size, head, tail, gains = 1, 0, 1, False
    # Bellman and Ford with a queue: a state is queued again whenever a better way to it is found.
    while head < tail and not gains:
        here = waiting[head]
        head += 1
        queued[here] = False
        for k in range(first[reached[here]], first[reached[here] + 1]):
            if label[k] != 0:
                continue
            value, there = gain[here] + score[k], place[target[k]]
            if there < 0:
                there = size
                reached, entry = with_capacity(reached, size + 1), with_capacity(entry, size + 1)
                parent, gain = with_capacity(parent, size + 1), with_capacity(gain, size + 1)
                queued = with_capacity(queued, size + 1)
                reached[there], place[target[k]], queued[there] = target[k], there, False
                size += 1
            elif value <= gain[there]:
                continue
            else:
                at = here  # a way to `here` through `there` is a cycle that gains
                while at and at != there:
                    at = parent[at]
                if at == there:
                    gains = True
                    break
            gain[there], entry[there], parent[there] = value, k, here
            if not queued[there]:
                waiting = with_capacity(waiting, tail + 1)
                waiting[tail], queued[there] = there, True
                tail += 1
    for position in range(size):
        place[reached[position]] = -1
    if gains:
        size = 0
    return reached[:size], gain[:size], entry[:size], parent[:size]
