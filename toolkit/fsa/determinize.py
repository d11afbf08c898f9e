"""Determinization of weighted transducers."""

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.fsa.arrays import from_fixed_point, to_fixed_point
from toolkit.fsa.determinize_kernels import InputFst, determinized
from toolkit.fsa.fst import Fst

_FACTOR, _LEAST = 10, 10**6
"""Arcs of the result at most: a multiple of those of the input, or this many if that is less."""


class DeterminizationError(ToolkitError):
    """A transducer that has no deterministic equal, or a far larger one."""


def determinize(fst: Fst) -> Fst:
    """The transducer in which no state has two arcs with the same label.

    Mohri's algorithm in the tropical semiring: a state of the result is a set of states of `fst`,
    each with the score and the words by which it lags behind. Scores come as early as they can
    (what the best of a set has gained is on the arc to the set), and so do words (what all of a
    set have written). So do the `lm_scores`, on their own. Of two ways to the same state with the
    same words the better one is kept.

    As OpenFst's and Kaldi's fstdeterminizestar; k2's keeps whole sequences of arcs apart, and so
    has a copy of the next state for every word that leads there. Label 0 is a label like others.
    An input string with several outputs keeps them all, in several arcs to the final state.
    Scores are added in integers (see `toolkit.fsa.arrays.to_fixed_point`), so that equal sets are
    found equal.

    Args:
      fst: connected (see `toolkit.fsa.fst`).

    Raises:
      DeterminizationError: the result has more than ten times the arcs, and a million, or a
        thousand words wait to be written: the scores or words of two cycles that read the same
        differ (no twins).
    """
    input_fst = InputFst(
        fst.first,
        fst.target,
        fst.labels,
        to_fixed_point(fst.scores),
        to_fixed_point(fst.scores if fst.lm_scores is None else fst.lm_scores),
        fst.splits,
        fst.words,
    )
    complete, states, arcs = determinized(input_fst, max(_FACTOR * fst.num_arcs, _LEAST))
    if not complete:
        raise DeterminizationError(
            f"a graph of {fst.num_arcs} arcs cannot be made deterministic: words that sound alike"
            " need disambiguation symbols (`#1`, ...) in the lexicon"
        )
    final = arcs.label < 0  # their target, -1 so far, becomes the last state
    return Fst(
        source=arcs.source,
        target=np.where(final, np.int32(states), arcs.target),
        labels=arcs.label,
        scores=from_fixed_point(arcs.score),
        splits=arcs.splits,
        words=arcs.words,
        lm_scores=None if fst.lm_scores is None else from_fixed_point(arcs.lm),
    )
