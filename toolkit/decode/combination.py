"""Combination of systems: minimum Bayes risk decoding of the union of their lattices.

Xu et al. (2011; see `toolkit.fsa.minimum_bayes_risk`), as Kaldi's lattice-combine and
lattice-mbr-decode: the posteriors of each system's lattice are multiplied with its weight. Where
only words and confidences are known, their chains take the place of lattices, as in ROVER (Fiscus,
1997).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeVar

import numpy as np

from toolkit.align.ctm import CtmEntry
from toolkit.decode.combination_inputs import CombinationError, System, nothing
from toolkit.fsa.minimum_bayes_risk import Candidate, minimum_risk
from toolkit.fsa.word_lattice import WordLattice, united, weighted
from toolkit.fsa.word_lattice_store import Words
from toolkit.processes.workers import map_in_processes
from toolkit.score.wer import score

PARTS = {1: 1, 2: 10, 3: 6, 4: 4}
"""By the number of systems: of how many equal parts weights are made when they are tuned; 2 parts
for more systems."""
GROUP = 50
"""Utterances that a worker process takes at a time."""

Weights = tuple[float, ...]
Row = Sequence[tuple[WordLattice, np.ndarray]]
"""The lattices of an utterance, one of each system, with the scores of their arcs."""
Result = TypeVar("Result")


def combine(
    systems: Sequence[System], weights: Sequence[float], words: Words, jobs: int = 1
) -> dict[str, list[CtmEntry]]:
    """Combine what systems recognised.

    Args:
      systems: one or more; where one of them lacks an utterance, it has heard nothing.
      weights: one for each, with the sum 1; a system with weight 0 is left out.
      words: with which the systems were read.
      jobs: worker processes.

    Returns:
      The words of each utterance, with their posteriors as confidences.

    Raises:
      CombinationError: the weights do not fit, or two systems have no utterance in common.
    """
    if len(weights) != len(systems) or min(weights) < 0 or abs(sum(weights) - 1) > 1e-6:
        given = ", ".join(f"{weight:g}" for weight in weights)
        raise CombinationError(
            f"weights {given} for {len(systems)} systems: give one for each, with the sum 1"
        )
    found = _map(partial(_decoded, tuple(weights)), systems, jobs)
    return {name: _entries(name, candidates, words) for name, candidates in found.items()}


@dataclass(frozen=True)
class WeightTuning:
    """The weights of systems with the fewest errors, and what was tried."""

    best: Weights
    """Ties go to the most equal weights, then to those of the first systems."""
    tried: Mapping[Weights, tuple[int, int]]
    """Word errors and words."""


def tune_weights(
    splits: Sequence[tuple[Sequence[System], Mapping[str, str]]], words: Words, jobs: int = 1
) -> WeightTuning:
    """Find the weights with the fewest word errors, those of single systems among them.

    Args:
      splits: for each development split the systems and the references.
      words: with which the systems were read.
      jobs: worker processes.
    """
    count = len(splits[0][0])
    parts = PARTS.get(count, 2)
    grid = [
        tuple(part / parts for part in shares)
        for shares in product(range(parts, -1, -1), repeat=count)
        if sum(shares) == parts
    ]
    tried = dict.fromkeys(grid, (0, 0))
    for systems, references in splits:
        found = _map(partial(_sequences, grid), systems, jobs)
        for i, weights in enumerate(grid):
            texts = {
                name: " ".join(words.symbols[word] for word in one[i])
                for name, one in found.items()
            }
            counted, (errors, units) = score(references, texts), tried[weights]
            tried[weights] = errors + counted.errors, units + counted.ref_units

    def rank(weights: Weights) -> tuple[float, float]:
        return tried[weights][0], sum(weight**2 for weight in weights)

    return WeightTuning(min(grid, key=rank), tried)


def _map(
    function: Callable[[Row], Result], systems: Sequence[System], jobs: int
) -> dict[str, Result]:
    """Apply a function to the lattices of every utterance."""
    first = systems[0]
    for other in systems[1:]:
        if not set(first.ids) & set(other.ids):
            raise CombinationError(f"{first.path} and {other.path} have no utterance in common")
    ids = list(dict.fromkeys(name for system in systems for name in system.ids))
    silence = nothing()
    rows = [[system.lattices.get(name, silence) for system in systems] for name in ids]
    groups = [rows[i : i + GROUP] for i in range(0, len(rows), GROUP)]
    results = map_in_processes(partial(_each, function), groups, jobs)
    return dict(zip(ids, (result for group in results for result in group), strict=True))


def _each(function: Callable[[Row], Result], rows: Sequence[Row]) -> list[Result]:
    return [function(row) for row in rows]


def _decoded(weights: Weights, row: Row) -> list[Candidate]:
    parts = [
        weighted(lattice, scores, weight)
        for (lattice, scores), weight in zip(row, weights, strict=True)
        if weight > 0
    ]
    union = united(parts)
    return minimum_risk(union, union.graph).words


def _sequences(grid: Sequence[Weights], row: Row) -> list[list[int]]:
    return [[candidate.word for candidate in _decoded(weights, row)] for weights in grid]


def _entries(name: str, candidates: Sequence[Candidate], words: Words) -> list[CtmEntry]:
    """Words with their mean times; a word begins no earlier than the one before it ends."""
    entries, end = [], 0.0
    for found in candidates:
        begin = max(found.begin, end)
        end = max(found.end, begin)
        word, confidence = words.symbols[found.word], min(found.posterior, 1.0)
        entries.append(CtmEntry(name, "1", begin, end - begin, word, confidence))
    return entries
