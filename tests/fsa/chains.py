"""Small denominators and the enumeration of their paths."""

import itertools

import numpy as np
import torch

from toolkit.fsa.denominator import Denominator


def random_denominator(seed: int, states: int = 3, pdfs: int = 3) -> Denominator:
    """An HMM with random transitions, at least one out of each state."""
    chance = np.random.default_rng(seed)
    present = chance.random((states, states)) < 0.6
    present[np.arange(states), (np.arange(states) + 1) % states] = True
    source, target = np.nonzero(present)
    initial = chance.random(states)
    return Denominator(
        source.astype(np.int32),
        target.astype(np.int32),
        chance.random(len(source)) + 0.1,
        chance.integers(pdfs, size=states).astype(np.int32),
        initial / initial.sum(),
    )


def sum_over_paths(hmm: Denominator, scores: torch.Tensor, leak: float) -> torch.Tensor:
    """The log of the summed weights of all paths of scores [T, P] through an HMM.

    A path is in a state after each frame, may leak to another one, and moves on by a transition.
    """
    states = range(hmm.num_states)
    weight = torch.zeros(len(states), len(states), dtype=torch.float64)
    weight[hmm.source.astype(int), hmm.target.astype(int)] = torch.from_numpy(hmm.weight)
    leaks = torch.eye(len(states), dtype=torch.float64) + leak * torch.from_numpy(hmm.initial)
    parts = []
    for path in itertools.product(states, repeat=2 * len(scores) + 2):
        value = torch.tensor(hmm.initial[path[0]])
        for t in range(len(scores)):
            source, leaked, target = path[2 * t : 2 * t + 3]
            value = value * leaks[source, leaked] * weight[leaked, target]
            value = value * scores[t, hmm.pdf[target]].exp()
        parts.append(value * leaks[path[-2], path[-1]])
    return torch.stack(parts).sum().log()
