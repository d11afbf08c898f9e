"""Arc posteriors by k2, which `toolkit.fsa.forward_backward` is compared with."""

from collections.abc import Sequence

import k2
from torch import Tensor

from toolkit.fsa.fst import Lattice
from toolkit.fsa.k2_engine import to_k2


def total_scores_and_posteriors(lattices: Sequence[Lattice]) -> tuple[Tensor, Tensor]:
    """Total scores [N] and the posteriors of all arcs [A] of lattices, in float64."""
    joined = k2.create_fsa_vec([to_k2(lattice) for lattice in lattices])
    totals = joined.get_tot_scores(use_double_scores=True, log_semiring=True)
    posteriors = joined.get_arc_post(use_double_scores=True, log_semiring=True)
    return totals, posteriors.exp()
