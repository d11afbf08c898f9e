"""The scores of a frame as the kernels of a search read them: given, or computed where reached."""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload
from torch import Tensor

from toolkit.fsa.search_kernels import GraphArrays, padded
from toolkit.hmm.demand import DemandedScores
from toolkit.hmm.gmm_kernels import MixtureArrays, demanded_score

Array = np.ndarray
FrameScores = Tensor | DemandedScores
"""Scaled log-likelihoods [T, P] of an utterance, one row per frame."""


def kernel_scores(scores: FrameScores) -> Array | MixtureArrays:
    """Scores as the kernels take them: float32, on the CPU."""
    if isinstance(scores, DemandedScores):
        return scores.arrays()
    return np.ascontiguousarray(scores.detach().cpu().numpy(), dtype=np.float32)


def num_frames(scores: Any) -> int:
    """T, of what `kernel_scores` returns; for kernels only."""
    raise NotImplementedError


def frame_row(scores: Any, frame: int, graph: GraphArrays, states: Array) -> Array:
    """Return a frame's scores as `padded` does, of the arcs that leave `states` at least.

    For kernels only.

    Args:
      scores: what `kernel_scores` returns.
      frame: T for the step to the final state.
      graph: its labels are column + 1.
      states: the active ones.
    """
    raise NotImplementedError


# numba wants the parameters of an overload and of what it returns annotated alike.
@overload(num_frames)
def _num_frames(scores: Any) -> Any:
    return _frames_given if isinstance(scores, types.Array) else _frames_demanded


def _frames_given(scores: Any) -> int:
    return len(scores)


def _frames_demanded(scores: Any) -> int:
    return len(scores.rows)


@overload(frame_row)
def _frame_row(scores: Any, frame: Any, graph: Any, states: Any) -> Any:
    return _row_given if isinstance(scores, types.Array) else _row_demanded


def _row_given(scores: Any, frame: Any, graph: Any, states: Any) -> Array:
    return padded(scores[min(frame, len(scores) - 1)], frame == len(scores))


def _row_demanded(scores: Any, frame: Any, graph: Any, states: Any) -> Array:
    return _demanded(scores, frame, graph, states)


@njit(cache=True, nogil=True)
def _demanded(scores: MixtureArrays, frame: int, graph: GraphArrays, states: Array) -> Array:
    ending = frame == len(scores.rows)
    row = padded(np.full(len(scores.first), -np.inf, np.float32), ending)
    if ending:
        return row
    for state in states:
        for arc in range(graph.first[state], graph.first[state + 1]):
            label = graph.label[arc]
            if label > 0 and row[label + 1] == -np.inf:
                row[label + 1] = demanded_score(scores, frame, label - 1)
    return row
