"""Communication topologies of ADPSGD, and the distance of models from their consensus (B1).

Learner i of K has the weights x_i; an averaging of two multiplies the K models by a doubly
stochastic matrix. So the mean of the models stays, and their distance from it becomes no longer.
"""

from typing import Literal

import numpy as np
from torch import Tensor

Pattern = Literal["fixed", "random", "shuffled"]
"""`fixed`: neighbours on a ring in turn; `random`: partners that active learners draw on their own,
so that two may draw the same one; `shuffled`: neighbours on a ring that is shuffled for every
averaging, so that those who average as often never ask the same one."""


def consensus_distance(models: Tensor) -> float:
    """Root mean square over the learners of the distance of [K, P] models from their mean."""
    return float((models - models.mean(dim=0)).square().sum(dim=1).mean().sqrt())


def is_active(rank: int) -> bool:
    """Whether a learner is active: requests averagings; passive learners answer requests.

    Even ranks are active, odd ranks passive. As passive learners never wait for others, no
    deadlock can arise (the bipartite graph of Lian et al. 2018).
    """
    return rank % 2 == 0


def partners(rank: int, learners: int, pattern: Pattern) -> list[int]:
    """List the possible partners of a learner, the next one on the ring first.

    These are the passive learners that an active one may ask, or the active ones that may ask a
    passive one. On a fixed ring of an odd number of learners the last and the first, both active,
    never average with each other; the rest of the ring still connects all.
    """
    if pattern == "fixed":
        neighbours = dict.fromkeys([(rank + 1) % learners, (rank - 1) % learners])
    else:
        neighbours = range(learners)
    return [other for other in neighbours if is_active(other) != is_active(rank)]


def partner(rank: int, learners: int, pattern: Pattern, number: int, seed: int = 0) -> int:
    """Choose the partner of an active learner for its averaging `number` (from 0).

    On the fixed ring the neighbours take turns; else all passive learners are equally likely. Of an
    odd number of learners two active ones have the same partner on a shuffled ring.
    """
    choice = partners(rank, learners, pattern)
    if pattern == "fixed":
        return choice[number % len(choice)]
    if pattern == "shuffled":
        passive = [other for other in range(learners) if not is_active(other)]
        ring = np.random.default_rng([seed, number]).permutation(passive)
        return int(ring[rank // 2 % len(ring)])
    return choice[np.random.default_rng([seed, rank, number]).integers(len(choice))]
