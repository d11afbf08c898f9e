"""Removes arcs with input epsilon, which read nothing."""

from typing import NamedTuple

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.fsa.arrays import from_fixed_point, ragged_ranges, to_fixed_point, with_capacity
from toolkit.fsa.fst import EPSILON, Fst, arc_sort, connect, select_words
from toolkit.kernels import njit


class EpsilonError(ToolkitError):
    """Raised for a transducer with an epsilon cycle of positive score."""


class EpsilonClosures(NamedTuple):
    """The best epsilon paths from each state, including the empty one, in order of states."""

    begin: np.ndarray
    """[states + 1] where the paths from each state begin."""
    reached: np.ndarray
    """[paths] the state reached; only states with arcs that read."""
    score: np.ndarray
    """[paths] int64 in fixed point."""
    lm: np.ndarray
    """[paths] int64, the language model's part of `score`."""
    splits: np.ndarray
    """[paths + 1] path p writes `words[splits[p] : splits[p + 1]]`."""
    words: np.ndarray
    """[W] int32 word ids."""


def remove_epsilon(fst: Fst) -> Fst:
    """Return the transducer without input epsilons, equal in the tropical semiring.

    Every arc that reads is followed by the best epsilon path to each state of its target's closure.
    An arc out of the start's closure is also preceded by the best epsilon path to its source.
    Scores are added, words concatenated, as in k2's remove_epsilon. (With closures in front of all
    arcs, back-off arcs would give every history the arcs of all shorter ones.)

    Args:
      fst: its arcs with label 0 may write words.

    Returns:
      A connected transducer with sorted arcs. Of paths with the same labels and states, only the
      best is kept, even if the others write other words.

    Raises:
      EpsilonError: a cycle of arcs that read nothing has a score above 0.
    """
    reads = fst.labels != EPSILON
    if reads.all():
        return arc_sort(connect(fst))
    score = to_fixed_point(fst.scores)
    lm = score if fst.lm_scores is None else to_fixed_point(fst.lm_scores)
    has_gain, closures = _epsilon_closures(
        fst.first, fst.target, fst.labels, score, lm, fst.splits, fst.words
    )
    if has_gain:
        raise EpsilonError(
            f"a graph of {fst.num_arcs} arcs has an epsilon cycle with a positive score. Check "
            "the scores of its back-off arcs"
        )
    # 1. All arcs that read, without a path in front (-1).
    arcs = np.flatnonzero(reads)
    # 2. From the start: each non-empty path of its closure, followed by each arc that reads.
    start_paths = np.flatnonzero(closures.reached[: closures.begin[1]] > 0)
    row, following = ragged_ranges(fst.first, closures.reached[start_paths])
    row, following = row[reads[following]], following[reads[following]]
    front = np.append(np.full(len(arcs), -1), start_paths[row])  # [B] path in front of each arc
    source = np.append(fst.source[arcs], np.zeros(len(row), np.int32))
    arc = np.append(arcs, following)
    # 3. Each of these, followed by each path of its target's closure: [C] front, arc, behind.
    row, behind = ragged_ranges(closures.begin, fst.target[arc])
    source, front, arc = source[row], front[row], arc[row]
    # Row 0 of the paths in front is the empty path.
    splits, words = _concatenate_rows(
        (np.append(np.int32(0), closures.splits), closures.words, front + 1),
        (fst.splits, fst.words, arc),
        (closures.splits, closures.words, behind),
    )
    scores = np.append(closures.score, 0)[front] + score[arc] + closures.score[behind]
    lm_scores = np.append(closures.lm, 0)[front] + lm[arc] + closures.lm[behind]
    # 4. Sort by source, label and target.
    order = np.lexsort((closures.reached[behind], fst.labels[arc], source))
    splits, words = select_words(splits, words, order)
    result = Fst(
        source=source[order],
        target=closures.reached[behind[order]],
        labels=fst.labels[arc[order]],
        scores=from_fixed_point(scores[order]),
        splits=splits,
        words=words,
        lm_scores=None if fst.lm_scores is None else from_fixed_point(lm_scores[order]),
    )
    return connect(result)


def _concatenate_rows(
    *parts: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate ragged arrays row by row: row i joins the i-th rows of all parts.

    Args:
      parts: splits, words and [N] rows of each.

    Returns:
      Splits [N + 1] int32 and words.
    """
    counts = [np.diff(splits)[rows] for splits, _, rows in parts]
    row_splits = np.append(np.int32(0), np.cumsum(sum(counts))).astype(np.int32)
    words, begin = np.empty(row_splits[-1], np.int32), row_splits[:-1].astype(np.int64)
    for count, (splits, values, rows) in zip(counts, parts, strict=True):
        part_splits, part_words = select_words(splits, values, rows)
        # Word k of the part belongs to row r: it moves from part_splits[r] + i to begin[r] + i.
        words[np.repeat(begin - part_splits[:-1], count) + np.arange(len(part_words))] = part_words
        begin += count
    return row_splits, words


@njit(cache=True, nogil=True)
def _epsilon_closures(
    first: np.ndarray,
    target: np.ndarray,
    label: np.ndarray,
    score: np.ndarray,
    lm: np.ndarray,
    splits: np.ndarray,
    words: np.ndarray,
) -> tuple[bool, EpsilonClosures]:
    """Return the epsilon closures of the start and of the targets of reading arcs.

    Args:
      first, target, label, splits, words: of the transducer, see `Fst`.
      score, lm: [A] int64, in fixed point.

    Returns:
      Whether an epsilon cycle has a positive score, which leaves the closures undefined; and the
      closures.
    """
    states = len(first) - 1
    # needed: states whose closure is used. useful: states from which something is read.
    needed, useful = np.zeros(states, np.bool_), np.zeros(states, np.bool_)
    needed[0], useful[-1] = True, True
    for state in range(states):
        for arc in range(first[state], first[state + 1]):
            if label[arc] != 0:
                needed[target[arc]], useful[state] = True, True
    closures = EpsilonClosures(
        np.zeros(states + 1, np.int64),
        np.empty(states, np.int32),
        np.empty(states, np.int64),
        np.empty(states, np.int64),
        np.zeros(states + 1, np.int32),
        np.empty(len(words), np.int32),
    )
    # The paths of all states are concatenated, like the rows of a compressed sparse matrix.
    position_of, num_paths, has_gain = np.full(states, -1, np.int32), 0, False
    for state in range(states):
        if needed[state] and not has_gain:
            reached, gain, entry, parent = _closure(first, target, label, score, state, position_of)
            has_gain = not len(reached)
            size = num_paths + len(reached)
            path_splits, path_words = with_capacity(closures.splits, size + 1), closures.words
            closures = EpsilonClosures(
                closures.begin,
                with_capacity(closures.reached, size),
                with_capacity(closures.score, size),
                with_capacity(closures.lm, size),
                path_splits,
                path_words,
            )
            for position in range(len(reached)):
                if not useful[reached[position]]:
                    continue
                # Walk the path back to its first state: sum the LM scores, count the words.
                path_lm, end, node = np.int64(0), path_splits[num_paths], position
                while node:
                    path_lm += lm[entry[node]]
                    end += splits[entry[node] + 1] - splits[entry[node]]
                    node = parent[node]
                path_words = with_capacity(path_words, end)
                closures.reached[num_paths], path_splits[num_paths + 1] = reached[position], end
                closures.score[num_paths], closures.lm[num_paths] = gain[position], path_lm
                # Walk it again and write the words, the last arc's first.
                node = position
                while node:
                    low, high = splits[entry[node]], splits[entry[node] + 1]
                    path_words[end - (high - low) : end] = words[low:high]
                    end, node = end - (high - low), parent[node]
                num_paths += 1
            closures = EpsilonClosures(
                closures.begin,
                closures.reached,
                closures.score,
                closures.lm,
                path_splits,
                path_words,
            )
        closures.begin[state + 1] = num_paths
    return has_gain, EpsilonClosures(
        closures.begin,
        closures.reached[:num_paths].copy(),
        closures.score[:num_paths].copy(),
        closures.lm[:num_paths].copy(),
        closures.splits[: num_paths + 1].copy(),
        closures.words[: closures.splits[num_paths]].copy(),
    )


@njit(cache=True, nogil=True)
def _closure(
    first: np.ndarray,
    target: np.ndarray,
    label: np.ndarray,
    score: np.ndarray,
    start: int,
    position_of: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the best epsilon paths from a state (Bellman-Ford with a queue).

    Args:
      first, target, label, score: see `_epsilon_closures`.
      start: the state where the paths begin.
      position_of: [states] scratch memory, all -1 before and after the call.

    Returns:
      The states reached, `start` first; the score of each, the arc by which it is entered, and the
      position of the state before it. The arrays are empty if a cycle has a positive score.
    """
    reached, entry, parent = np.empty(8, np.int32), np.empty(8, np.int32), np.empty(8, np.int32)
    gain, queue, is_queued = np.empty(8, np.int64), np.empty(8, np.int32), np.empty(8, np.bool_)
    reached[0], gain[0], queue[0], is_queued[0], position_of[start] = start, 0, 0, True, 0
    num_reached, head, tail, has_gain = 1, 0, 1, False
    # A state is queued again whenever a better path to it is found.
    while head < tail and not has_gain:
        source = queue[head]
        head += 1
        is_queued[source] = False
        for arc in range(first[reached[source]], first[reached[source] + 1]):
            if label[arc] != 0:
                continue
            path_gain, position = gain[source] + score[arc], position_of[target[arc]]
            if position < 0:
                # A new state.
                position = num_reached
                num_reached += 1
                reached = with_capacity(reached, num_reached)
                entry = with_capacity(entry, num_reached)
                parent = with_capacity(parent, num_reached)
                gain = with_capacity(gain, num_reached)
                is_queued = with_capacity(is_queued, num_reached)
                reached[position], is_queued[position] = target[arc], False
                position_of[target[arc]] = position
            elif path_gain <= gain[position]:
                continue
            else:
                # A better path to an ancestor of `source` closes a cycle with a positive score.
                ancestor = source
                while ancestor and ancestor != position:
                    ancestor = parent[ancestor]
                if ancestor == position:
                    has_gain = True
                    break
            gain[position], entry[position], parent[position] = path_gain, arc, source
            if not is_queued[position]:
                queue = with_capacity(queue, tail + 1)
                queue[tail], is_queued[position] = position, True
                tail += 1
    # Restore the scratch memory.
    for position in range(num_reached):
        position_of[reached[position]] = -1
    if has_gain:
        num_reached = 0
    return reached[:num_reached], gain[:num_reached], entry[:num_reached], parent[:num_reached]
