"""Combination of systems: decoding of the union of their lattices.

Xu et al. (2011; see `toolkit.fsa.minimum_bayes_risk`), as Kaldi's lattice-combine and
lattice-mbr-decode: the posteriors of each system's lattice are multiplied with its weight. Where
only words and confidences are known, their chains take the place of lattices, as in ROVER (Fiscus,
1997). The best path of the union is the other rule.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal, TypeVar, get_args

import numpy as np

from toolkit.align.ctm import CtmEntry
from toolkit.decode.combination_inputs import CombinationError, System, nothing
from toolkit.fsa.minimum_bayes_risk import (
    Candidate,
    best_path_in_bins,
    minimum_risk,
    spoken_words,
)
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
Rule = Literal["mbr", "best"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""mbr: the words with the fewest expected errors; best: those of the best path."""
Row = Sequence[tuple[WordLattice, np.ndarray] | None]
"""The lattices of an utterance, one of each system, with the scores of their arcs; None where the
search failed, which says nothing."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Combination:
    """How systems are combined."""

    weights: Weights
    """One for each system, with the sum 1; a system with weight 0 is left out."""
    rule: Rule = "mbr"
    """How the words are chosen, see `RULES`."""

    def __post_init__(self) -> None:
        # A sum of weights as they are printed, to six digits, may be 1e-6 off.
        if not (min(self.weights) >= 0 and abs(sum(self.weights) - 1) < 1e-5):
            given = ", ".join(f"{weight:g}" for weight in self.weights)
            raise CombinationError(
                f"weights {given}: none may be below 0, and their sum must be 1, with one for each"
                " system"
            )


def combine(
    systems: Sequence[System], how: Combination, words: Words, jobs: int = 1
) -> dict[str, list[CtmEntry]]:
    """Combine what systems recognised.

    Args:
      systems: one or more; where the words of one lack an utterance, it has heard nothing.
      how: their weights, and the rule.
      words: with which the systems were read.
      jobs: worker processes.

    Returns:
      The words of each utterance, with their posteriors as confidences.

    Raises:
      CombinationError: the weights do not fit, or two systems have no utterance in common.
    """
    if len(how.weights) != len(systems):
        raise CombinationError(f"{len(how.weights)} weights for {len(systems)} systems")
    found = _map(partial(_decoded, how), systems, jobs)
    return {name: _entries(name, candidates, words) for name, candidates in found.items()}


@dataclass(frozen=True)
class CombinationTuning:
    """The combination with the fewest errors, and what was tried."""

    best: Combination
    """Ties go to the most equal weights, then to minimum Bayes risk."""
    tried: Mapping[Combination, tuple[int, int]]
    """Word errors and words."""


def tune_combination(
    splits: Sequence[tuple[Sequence[System], Mapping[str, str]]],
    words: Words,
    jobs: int = 1,
    rules: Sequence[Rule] = RULES,
) -> CombinationTuning:
    """Find rule and weights with the fewest word errors, those of single systems among them.

    Of several rules the best path is tried only where all systems have lattices: a chain's
    probabilities are no scores of paths.

    Args:
      splits: for each development split the systems and the references.
      words: with which the systems were read.
      jobs: worker processes.
      rules: the rules to try.
    """
    count = len(splits[0][0])
    parts = PARTS.get(count, 2)
    lattices = all(system.lattice for systems, _ in splits for system in systems)
    grid = [
        Combination(tuple(part / parts for part in shares), rule)
        for rule in rules
        if lattices or len(rules) == 1 or rule != "best"
        for shares in product(range(parts, -1, -1), repeat=count)
        if sum(shares) == parts
    ]
    tried = dict.fromkeys(grid, (0, 0))
    for systems, references in splits:
        found = _map(partial(_sequences, grid), systems, jobs)
        for i, how in enumerate(grid):
            texts = {
                name: " ".join(words.symbols[word] for word in one[i])
                for name, one in found.items()
            }
            counted, (errors, units) = score(references, texts), tried[how]
            tried[how] = errors + counted.errors, units + counted.ref_units

    def rank(how: Combination) -> tuple[float, float]:
        return tried[how][0], sum(weight**2 for weight in how.weights)

    return CombinationTuning(min(grid, key=rank), tried)


def _map(
    function: Callable[[Row], Result], systems: Sequence[System], jobs: int
) -> dict[str, Result]:
    """Apply a function to the lattices of every utterance."""
    first = systems[0]
    for other in systems[1:]:
        if not set(first.ids) & set(other.ids):
            raise CombinationError(f"{first.path} and {other.path} have no utterance in common")
    ids = list(dict.fromkeys(name for system in systems for name in system.ids))
    missing = [None if system.lattice else nothing() for system in systems]
    rows = [
        [system.lattices.get(name, none) for system, none in zip(systems, missing, strict=True)]
        for name in ids
    ]
    groups = [rows[i : i + GROUP] for i in range(0, len(rows), GROUP)]
    results = map_in_processes(partial(_each, function), groups, jobs)
    return dict(zip(ids, (result for group in results for result in group), strict=True))


def _each(function: Callable[[Row], Result], rows: Sequence[Row]) -> list[Result]:
    return [function(row) for row in rows]


def _decoded(how: Combination, row: Row) -> list[Candidate]:
    chosen = [(*x, w) for x, w in zip(row, how.weights, strict=True) if x is not None and w > 0]
    if not chosen:
        return []
    union = united([weighted(*one) for one in chosen])
    if how.rule == "best":
        return best_path_in_bins(union, union.graph)
    starts = [spoken_words(lattice, scores) for lattice, scores, _ in chosen]
    return minimum_risk(union, union.graph, starts).words


def _sequences(grid: Sequence[Combination], row: Row) -> list[list[int]]:
    return [[candidate.word for candidate in _decoded(how, row)] for how in grid]


def _entries(name: str, candidates: Sequence[Candidate], words: Words) -> list[CtmEntry]:
    """Words with their mean times; a word begins no earlier than the one before it ends."""
    entries, end = [], 0.0
    for found in candidates:
        begin = max(found.begin, end)
        end = max(found.end, begin)
        word, confidence = words.symbols[found.word], min(found.posterior, 1.0)
        entries.append(CtmEntry(name, "1", begin, end - begin, word, confidence))
    return entries
