"""Who averages with whom, and what averaging does to the models of all learners (B1).

Learner i of K has the weights x_i; averaging multiplies the K models by a doubly stochastic matrix.
So the mean of the models stays, and their distance from it contracts by the matrix's second
eigenvalue: 0 for the mean of all (SCPSGD), 1/2 for pairs of 2, close to 1 on a long ring.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Pattern = Literal["fixed", "random"]
"""`fixed`: neighbours on a ring; `random`: on a ring that is drawn anew for every averaging."""


def mean_matrix(learners: int) -> Tensor:
    """Average over all learners: [K, K] float64, each entry 1 / K."""
    return torch.full((learners, learners), 1 / learners, dtype=torch.float64)


def ring_matrix(learners: int) -> Tensor:
    """Average of each learner with both neighbours on a ring: [K, K] float64, 1/3 each."""
    if learners < 3:
        return mean_matrix(learners)
    own = torch.eye(learners, dtype=torch.float64)
    return (own + own.roll(1, 0) + own.roll(-1, 0)) / 3


def pair_matrix(learners: int, pairs: Iterable[tuple[int, int]]) -> Tensor:
    """Average within disjoint pairs, others stay: [K, K] float64."""
    matrix = torch.eye(learners, dtype=torch.float64)
    for a, b in pairs:
        matrix[[a, a, b, b], [a, b, a, b]] = 0.5
    return matrix


def second_eigenvalue(matrix: Tensor) -> float:
    """Second largest modulus of a symmetric matrix's eigenvalues.

    Multiplying models by the matrix makes their consensus distance at least so much smaller; for
    a pair drawn at random, pass the mean of the pairs' matrices: the expected square of the
    distance contracts by its second eigenvalue.
    """
    if len(matrix) == 1:
        return 0.0
    return float(torch.linalg.eigvalsh(matrix).abs().sort().values[-2])


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

    On the fixed ring the neighbours take turns; on the random one anyone passive is as likely.
    """
    choice = partners(rank, learners, pattern)
    if pattern == "fixed":
        return choice[number % len(choice)]
    return choice[np.random.default_rng([seed, rank, number]).integers(len(choice))]


def edges(learners: int, pattern: Pattern) -> list[tuple[int, int]]:
    """List all pairs (active, passive) that may average."""
    active = filter(is_active, range(learners))
    return [(rank, other) for rank in active for other in partners(rank, learners, pattern)]
