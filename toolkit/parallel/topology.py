"""Who averages with whom, and how far the models of all learners are apart (B1).

Learner i of K has the weights x_i; an averaging of two multiplies the K models by a doubly
stochastic matrix. So the mean of the models stays, and their distance from it becomes no longer.
"""

from typing import Literal

import numpy as np
from torch import Tensor

Pattern = Literal["fixed", "random"]
"""`fixed`: neighbours on a ring in turn; `random`: whoever an active learner draws, on its own."""


def consensus_distance(models: Tensor) -> float:
    """Root mean square over the learners of the distance of [K, P] models from their mean."""
    return float((models - models.mean(dim=0)).square().sum(dim=1).mean().sqrt())


def is_active(rank: int) -> bool:
    """Whether a learner asks others for an averaging; those that do not, answer.

    Even ranks ask, odd ranks answer: somebody who answers waits for nobody, and so no circle of
    waiting learners can arise (the bipartite graph of Lian et al. 2018).
    """
    return rank % 2 == 0


def partners(rank: int, learners: int, pattern: Pattern) -> list[int]:
    """List those that an active learner may ask, or that may ask a passive one; the next first.

    On a fixed ring of an odd number of learners the last and the first, both active, do not meet;
    what is left of the ring still connects all.
    """
    if pattern == "fixed":
        around = dict.fromkeys([(rank + 1) % learners, (rank - 1) % learners])
    else:
        around = range(learners)
    return [other for other in around if is_active(other) != is_active(rank)]


def partner(rank: int, learners: int, pattern: Pattern, number: int, seed: int = 0) -> int:
    """Choose whom an active learner asks for its averaging `number` (from 0).

    On the fixed ring the neighbours take turns; at random anyone passive is as likely.
    """
    choice = partners(rank, learners, pattern)
    if pattern == "fixed":
        return choice[number % len(choice)]
    return choice[np.random.default_rng([seed, rank, number]).integers(len(choice))]
