"""Compiled kernels (numba) of dense search on a trellis that is pruned as it grows.

The rules of pruning are those of k2's pruned intersection (`intersect_dense_pruned`), so that on
the same graph both keep the same arcs. The rules say how the beam narrows and widens, which frames
at the end are searched with wider beams, and when arcs outside the output beam are dropped.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from torch import Tensor

from toolkit.fsa.arrays import with_capacity
from toolkit.hmm.gmm import LazyGmmScores
from toolkit.hmm.gmm_kernels import MixtureArrays, demanded_score
from toolkit.kernels import njit

Array = np.ndarray
FINAL_FRAMES = 4
"""Number of frames at the end that are searched with wider beams."""
PRUNE_EVERY, PRUNE_BACK = 20, 30
"""Every `PRUNE_EVERY` frames, arcs outside the output beam are dropped from the last `PRUNE_BACK`
frames. These numbers affect only which arcs outside that beam remain in the lattice."""
ROUNDING = 2.0**-18
"""Relative rounding error that float32 sums of scores may have after `PRUNE_BACK` frames."""


class GraphArrays(NamedTuple):
    """A decoding graph with arcs sorted by source."""

    first: Array
    """[states + 1] int32: where the arcs of each state begin."""
    target: Array
    """[arcs] int32."""
    label: Array
    """[arcs] int32: pdf + 1; -1 leads to the final state."""
    score: Array
    """[arcs] float32."""
    writes: Array
    """[arcs] bool: whether the arc writes a word."""


class Trellis(NamedTuple):
    """The paths kept so far; level t holds the states before frame t, arcs lead to level t + 1.

    Arrays have spare room; `arcs_at` and `states_at` give the used parts.
    """

    frames: Array
    """[1] int64: frames read, N."""
    arcs_at: Array
    """[N + 1] int64: frame t has arcs arcs_at[t] to arcs_at[t + 1]."""
    states_at: Array
    """[N + 2] int64: level t has states states_at[t] to states_at[t + 1]."""
    beam: Array
    """[N + 1] float32: the search beam before each frame."""
    source: Array
    """[arcs] int32: position in the level before the frame, ascending in a frame."""
    target: Array
    """[arcs] int32: position in the level after it."""
    arc: Array
    """[arcs] int32: the graph's arc."""
    score: Array
    """[arcs] float32."""
    state: Array
    """[states] int32: the graph's state."""
    forward: Array
    """[states] float32: the score of the best path to each."""
    entry: Array
    """[states] int32: the last arc of that path, as its position in its frame before pruning."""


@njit(cache=True, nogil=True)
def empty_trellis(beam: float) -> Trellis:
    """Return a trellis without frames, which holds the graph's start state only."""
    return Trellis(
        np.zeros(1, np.int64),
        np.zeros(64, np.int64),
        np.array([0, 1] + [0] * 62),
        np.full(64, np.float32(beam)),
        np.empty(1024, np.int32),
        np.empty(1024, np.int32),
        np.empty(1024, np.int32),
        np.empty(1024, np.float32),
        np.zeros(256, np.int32),
        np.zeros(256, np.float32),
        np.zeros(256, np.int32),
    )


@njit(cache=True, nogil=True)
def adapted_beam(beam: np.float32, active: int, limits: tuple[float, int, int]) -> np.float32:
    """Return a frame's beam: narrower for too many active states, wider for too few.

    Args:
      beam: the beam of the frame before.
      active: number of states before the frame.
      limits: search beam, min_active and max_active.
    """
    search_beam, min_active, max_active = np.float32(limits[0]), limits[1], limits[2]
    # The factors are those of k2's MultiGraphDenseIntersectPruned::GetPruningCutoffs.
    if active > max_active:
        return np.float32(0.8) * min(beam, search_beam)
    if active < min_active:
        return np.float32(1.25) * max(beam, search_beam)
    # Within the limits the beam relaxes towards the search beam.
    return np.float32(0.8) * beam + np.float32(0.2) * search_beam


@njit(cache=True, nogil=True)
def add_final_column(row: Array, ending: bool) -> Array:
    """Return a frame's scores with label l at index l + 1 and the final label at index 0.

    Either all labels or the final label have the score -inf, so that a loop over arcs needs no
    branches.
    """
    scores = np.full(len(row) + 2, -np.inf, np.float32)
    if ending:
        scores[0] = -0.0  # adds nothing to any score, not even to -0.0
    else:
        scores[2:] = row
    return scores


@njit(cache=True, nogil=True)
def advance_frame(
    trellis: Trellis,
    graph: GraphArrays,
    row: Array,
    frames_left: int,
    limits: tuple[float, int, int],
    output: float,
    position_of: Array,
) -> Trellis:
    """Read a frame: expand the last level's states, and drop those outside the beam.

    Args:
      trellis: its arrays are written to, or replaced by larger ones.
      graph: the decoding graph to search.
      row: [P] float32, the frame's scores.
      frames_left: number of frames that follow; a large number if unknown. -1: follow the arcs to
        the final state instead, after the last frame.
      limits: see `adapted_beam`.
      output: see `prune_trellis`. An arc outside the search beam is kept if it leads to a state
        within that beam, unless `prune_trellis` would drop the arc.
      position_of: [states] int32 scratch memory, all -1 before and after the call.
    """
    n = trellis.frames[0]
    begin, end = trellis.states_at[n], trellis.states_at[n + 1]
    # 1. Scores of the paths through all arcs out of the last level, in the order of states and arcs
    # (`arc_totals`), and the best of each state (`best_of_state`).
    scores, num_arcs = add_final_column(row, frames_left < 0), 0
    for state in trellis.state[begin:end]:
        num_arcs += graph.first[state + 1] - graph.first[state]
    arc_totals, best_of_state = np.empty(num_arcs, np.float32), np.empty(end - begin, np.float32)
    count, best = 0, np.float32(-np.inf)
    for i in range(begin, end):
        state, source_score, state_best = trellis.state[i], trellis.forward[i], np.float32(-np.inf)
        for a in range(graph.first[state], graph.first[state + 1]):
            total = source_score + (graph.score[a] + scores[np.uint32(graph.label[a] + 1)])
            arc_totals[count] = total
            state_best = total if total > state_best else state_best
            count += 1
        best_of_state[i - begin] = state_best
        best = state_best if state_best > best else best
    # 2. States above `cutoff` survive. Arcs down to `lowest` are candidates: they may lead to such
    # states, within the output beam of the best arc there.
    beam = adapted_beam(trellis.beam[n], end - begin, limits)
    # Wider in the last frames: an utterance may not be able to end in the best states.
    cutoff = best - beam * np.float32(1.25 ** max(0, FINAL_FRAMES - frames_left))
    lowest = cutoff - np.float32(output + ROUNDING * (1 + abs(best)))
    num_arcs = 0  # candidates
    for total in arc_totals:
        num_arcs += total > lowest
    # 3. Collect the candidates; number the surviving states in `position_of`.
    arcs_before = trellis.arcs_at[n]
    source = with_capacity(trellis.source, arcs_before + num_arcs)
    target = with_capacity(trellis.target, arcs_before + num_arcs)
    arc = with_capacity(trellis.arc, arcs_before + num_arcs)
    score = with_capacity(trellis.score, arcs_before + num_arcs)
    # `expanded` counts arcs in `arc_totals`; candidates are stored after the arcs of earlier
    # frames.
    expanded, candidates_end, num_new = 0, arcs_before, 0
    for i in range(begin, end):
        first, after_last = graph.first[trellis.state[i]], graph.first[trellis.state[i] + 1]
        if not best_of_state[i - begin] > lowest:
            expanded += after_last - first
            continue
        for a in range(first, after_last):
            total = arc_totals[expanded]
            expanded += 1
            if total > lowest:
                target_state = graph.target[a]
                source[candidates_end], arc[candidates_end] = i - begin, a
                target[candidates_end] = target_state
                score[candidates_end] = graph.score[a] + scores[np.uint32(graph.label[a] + 1)]
                # Written in place: there are never more candidates than arcs read.
                arc_totals[candidates_end - arcs_before] = total
                candidates_end += 1
                if total > cutoff and position_of[target_state] < 0:
                    position_of[target_state] = num_new
                    num_new += 1
    # 4. Keep the candidates that lead to numbered states. Viterbi's recursion: the forward score of
    # a state is the best total of its arcs, its entry that arc.
    states = with_capacity(trellis.state, end + num_new)
    forward_scores = with_capacity(trellis.forward, end + num_new)
    entry = with_capacity(trellis.entry, end + num_new)
    forward_scores[end : end + num_new] = -np.inf
    arcs_end = arcs_before
    for k in range(arcs_before, candidates_end):
        target_state = target[k]
        position = position_of[target_state]
        if position < 0:
            continue
        total = arc_totals[k - arcs_before]
        if total > forward_scores[end + position]:
            states[end + position] = target_state
            forward_scores[end + position], entry[end + position] = total, arcs_end - arcs_before
        # Move the candidate to the front; its target becomes a position in the new level.
        source[arcs_end], arc[arcs_end], score[arcs_end] = source[k], arc[k], score[k]
        target[arcs_end] = position
        arcs_end += 1
    # 5. Restore the scratch memory, close the level.
    for state in states[end : end + num_new]:
        position_of[state] = -1
    arcs_at = with_capacity(trellis.arcs_at, n + 2)
    states_at = with_capacity(trellis.states_at, n + 3)
    beams = with_capacity(trellis.beam, n + 2)
    arcs_at[n + 1], states_at[n + 2], beams[n + 1] = arcs_end, end + num_new, beam
    trellis.frames[0] = n + 1
    return Trellis(
        trellis.frames,
        arcs_at,
        states_at,
        beams,
        source,
        target,
        arc,
        score,
        states,
        forward_scores,
        entry,
    )


@njit(nogil=True, cache=True)
def prune_trellis(trellis: Trellis, back: int, unpruned: int, output: float) -> None:
    """Drop arcs of recent frames that are outside the output beam in any continuation.

    Args:
      trellis: pruned in place.
      back: number of frames to prune.
      unpruned: number of the newest frames, which are not pruned; the others are before them.
      output: largest difference between the score of the best path through an arc and that of the
        best path into the same state after the pruned frames.
    """
    n = trellis.frames[0]
    end = n - unpruned
    begin = max(0, end - back)
    arcs_at, states_at, forward = trellis.arcs_at, trellis.states_at, trellis.forward
    # The arrays below count states from level `begin` and arcs from the frame before it.
    base = states_at[begin]
    first_arc = arcs_at[max(0, begin - 1)]
    # loss of a state: the lowest path loss over the arcs out of it, defined below.
    loss = np.full(states_at[end + 1] - base, np.inf)
    loss[states_at[end] - base :] = 0
    alive = np.zeros(states_at[n + 1] - base, np.bool_)
    alive[states_at[end] - base :] = True
    keep_arc = np.ones(arcs_at[n] - first_arc, np.bool_)
    # From the newest of these frames back: an arc stays if the best path through it is at most
    # `output` below the best path into the same end. loss(s) = min over arcs s -> d of
    # forward(d) - forward(s) - score + loss(d).
    for t in range(end - 1, begin - 1, -1):
        source_level, target_level = states_at[t], states_at[t + 1]
        for k in range(arcs_at[t], arcs_at[t + 1]):
            source, target = source_level + trellis.source[k], target_level + trellis.target[k]
            arc_loss = np.float64(forward[target]) - forward[source] - trellis.score[k]
            path_loss = arc_loss + loss[target - base]
            if path_loss <= output:
                alive[source - base] = True
                loss[source - base] = min(loss[source - base], path_loss)
            else:
                keep_arc[k - first_arc] = False
    if begin == 0:
        alive[0] = True  # the start
    else:  # drop the arcs into states from which no arc leads on
        for k in range(first_arc, arcs_at[begin]):
            keep_arc[k - first_arc] = alive[trellis.target[k]]
    _compact(trellis, begin, keep_arc, alive)


@njit(nogil=True, cache=True)
def _compact(trellis: Trellis, begin: int, keep_arc: Array, alive: Array) -> None:
    """Remove dropped arcs from the frame before level `begin` on, and unused states."""
    n = trellis.frames[0]
    new_position = np.cumsum(alive) - 1  # among the states left, from level `begin` on
    base = trellis.states_at[begin]
    first_frame = max(0, begin - 1)
    arcs_end = trellis.arcs_at[first_frame]  # after the arcs that are kept
    next_arc, first_arc = arcs_end, arcs_end
    # Move the arcs that stay to the front; sources and targets count from the first state of a
    # level.
    for t in range(first_frame, n):
        from_level, to_level = trellis.states_at[t] - base, trellis.states_at[t + 1] - base
        # The new position of each level's first state that stays.
        from_first = 0
        if begin <= t and from_level < len(alive):
            from_first = new_position[from_level] - alive[from_level] + 1
        to_first = new_position[to_level] - alive[to_level] + 1 if to_level < len(alive) else 0
        for k in range(next_arc, trellis.arcs_at[t + 1]):
            if not keep_arc[k - first_arc]:
                continue
            source = trellis.source[k]
            if t >= begin:
                source = new_position[from_level + source] - from_first
            trellis.source[arcs_end] = source
            trellis.target[arcs_end] = new_position[to_level + trellis.target[k]] - to_first
            trellis.arc[arcs_end], trellis.score[arcs_end] = trellis.arc[k], trellis.score[k]
            arcs_end += 1
        next_arc = trellis.arcs_at[t + 1]
        trellis.arcs_at[t + 1] = arcs_end
    # Move the states that stay to the front too, level by level.
    i = 0
    for t in range(begin, n + 1):
        last = trellis.states_at[t + 1] - base
        while i < last:
            if alive[i]:
                trellis.state[base + new_position[i]] = trellis.state[base + i]
                trellis.forward[base + new_position[i]] = trellis.forward[base + i]
            i += 1
        trellis.states_at[t + 1] = base + (new_position[last - 1] + 1 if last else 0)


@njit(nogil=True, cache=True)
def search(
    graph: GraphArrays, scores: Array, limits: tuple[float, int, int], output: float
) -> Trellis:
    """Search an utterance's scores [T, P] float32 to the graph's final state.

    The trellis's last level is empty if no path reaches that state, and otherwise holds it alone.
    """
    place = np.full(len(graph.first) - 1, -1, np.int32)
    trellis = empty_trellis(limits[0])
    frames = len(scores)
    for t in range(frames):
        trellis = advance_frame(trellis, graph, scores[t], frames - 1 - t, limits, output, place)
        if (t + 1) % PRUNE_EVERY == 0:
            prune_trellis(trellis, np.int64(PRUNE_BACK), 0, output)  # typed as in `prune_end`
    trellis = advance_frame(trellis, graph, scores[0], np.int64(-1), limits, output, place)
    prune_end(trellis, output)
    return trellis


@njit(nogil=True, cache=True)
def prune_end(trellis: Trellis, output: float) -> None:
    """Prune a last time, after the arcs to the final state."""
    frames = trellis.frames[0] - 1
    prune_trellis(trellis, 1 + frames % PRUNE_EVERY + PRUNE_BACK - PRUNE_EVERY, 0, output)


FrameScores = Tensor | LazyGmmScores
"""Scaled log-likelihoods [T, P] of an utterance, one row per frame."""


def kernel_scores(scores: FrameScores) -> Array | MixtureArrays:
    """Convert scores to the form that the kernels take: float32, on the CPU."""
    if isinstance(scores, LazyGmmScores):
        return scores.arrays()
    return np.ascontiguousarray(scores.detach().cpu().numpy(), dtype=np.float32)


def num_frames(scores: Any) -> int:
    """Return T for the result of `kernel_scores`; callable in kernels only."""
    raise NotImplementedError


def frame_row(scores: Any, frame: int, graph: GraphArrays, states: Array) -> Array:
    """Return a frame's scores as `add_final_column` does; lazy scores only for arcs from `states`.

    For kernels only.

    Args:
      scores: what `kernel_scores` returns.
      frame: T for the step to the final state.
      graph: its labels are column + 1.
      states: the active states.
    """
    raise NotImplementedError


# numba requires an overload and the function that it returns to have the same annotations.
@overload(num_frames)
def _num_frames(scores: Any) -> Any:
    """Choose the implementation of `num_frames` by the type of the scores."""
    return _num_tensor_rows if isinstance(scores, types.Array) else _num_lazy_rows


def _num_tensor_rows(scores: Any) -> int:
    """Return T of scores in an array."""
    return len(scores)


def _num_lazy_rows(scores: Any) -> int:
    """Return T of lazy GMM scores."""
    return len(scores.rows)


@overload(frame_row)
def _frame_row(scores: Any, frame: Any, graph: Any, states: Any) -> Any:
    """Choose the implementation of `frame_row` by the type of the scores."""
    return _tensor_row if isinstance(scores, types.Array) else _lazy_row


def _tensor_row(scores: Any, frame: Any, graph: Any, states: Any) -> Array:
    """Return a frame's scores from an array."""
    return add_final_column(scores[min(frame, len(scores) - 1)], frame == len(scores))


def _lazy_row(scores: Any, frame: Any, graph: Any, states: Any) -> Array:
    """Return a frame's lazily computed GMM scores."""
    return _lazy_gmm_row(scores, frame, graph, states)


@njit(cache=True, nogil=True)
def _lazy_gmm_row(scores: MixtureArrays, frame: int, graph: GraphArrays, states: Array) -> Array:
    """Compute a frame's GMM scores for the arcs that leave `states`."""
    ending = frame == len(scores.rows)
    row = add_final_column(np.full(len(scores.first), -np.inf, np.float32), ending)
    if ending:
        return row
    for state in states:
        for arc in range(graph.first[state], graph.first[state + 1]):
            label = graph.label[arc]
            if label > 0 and row[label + 1] == -np.inf:
                row[label + 1] = demanded_score(scores, frame, label - 1)
    return row


@njit(nogil=True, cache=True)
def viterbi(
    graph: GraphArrays, scores: Array | MixtureArrays, limits: tuple[float, int, int]
) -> tuple[Array, float]:
    """Return the best path of scores through a graph, pruned as in `search_kernels.search`.

    Only the best arc into each state is kept, whereas a lattice keeps all; scores are added in
    float64.

    Args:
      graph: its labels are column + 1.
      scores: [T, P], see `toolkit.fsa.search_kernels.kernel_scores`.
      limits: beam, fewest and most active states.

    Returns:
      The graph's arcs, one per frame and one to the final state (none if no path reaches it), and
      the path's score.
    """
    frames = num_frames(scores)
    position_of = np.full(len(graph.first) - 1, -1, np.int32)
    states, forward = np.zeros(1, np.int32), np.zeros(1, np.float64)
    previous, entry = np.full(1, -1), np.full(1, -1, np.int32)  # of all levels, one after the other
    begin, end, beam = 0, 1, np.float32(limits[0])
    for t in range(frames + 1):
        row, num_arcs = frame_row(scores, t, graph, states), 0
        for state in states:
            num_arcs += graph.first[state + 1] - graph.first[state]
        # Scores of all arcs out of the active states, and the best of each state.
        arc_totals = np.empty(num_arcs, np.float64)
        best_of_state = np.empty(len(states), np.float64)
        count, best = 0, -np.inf
        for i in range(len(states)):
            state_best = -np.inf
            for a in range(graph.first[states[i]], graph.first[states[i] + 1]):
                total = forward[i] + graph.score[a] + row[np.uint32(graph.label[a] + 1)]
                arc_totals[count] = total
                state_best = total if total > state_best else state_best
                count += 1
            best_of_state[i] = state_best
            best = state_best if state_best > best else best
        # The beam is wider in the last frames, as in `advance_frame`.
        beam = adapted_beam(beam, len(states), limits)
        cutoff = best - beam * 1.25 ** max(0, FINAL_FRAMES - (frames - 1 - t))
        num_arcs = 0  # within the beam
        for total in arc_totals:
            num_arcs += total > cutoff
        # For each state that is reached within the beam, its best score and the arc that gives it.
        previous = with_capacity(previous, end + num_arcs)
        entry = with_capacity(entry, end + num_arcs)
        next_forward, next_states = np.empty(num_arcs, np.float64), np.empty(num_arcs, np.int32)
        num_next, expanded = 0, 0
        for i in range(len(states)):
            first, after_last = graph.first[states[i]], graph.first[states[i] + 1]
            if not best_of_state[i] > cutoff:
                expanded += after_last - first
                continue
            for a in range(first, after_last):
                total = arc_totals[expanded]
                expanded += 1
                if not total > cutoff:
                    continue
                target_state = graph.target[a]
                position = position_of[target_state]
                if position < 0:
                    position = position_of[target_state] = num_next
                    next_states[num_next], next_forward[num_next] = target_state, -np.inf
                    num_next += 1
                if total > next_forward[position]:
                    next_forward[position] = total
                    previous[end + position], entry[end + position] = begin + i, a
        for state in next_states[:num_next]:
            position_of[state] = -1
        states, forward = next_states[:num_next].copy(), next_forward[:num_next].copy()
        begin, end = end, end + num_next
        if not num_next:
            return np.empty(0, np.int64), -np.inf
    # Follow the entries back from the final state, the only one of the last level.
    path, level_state = np.empty(frames + 1, np.int64), begin
    for t in range(frames, -1, -1):
        path[t] = entry[level_state]
        level_state = previous[level_state]
    return path, forward[0]
