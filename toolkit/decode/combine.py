"""System combination: decodes the union of several systems' lattices.

The default rule, "mbr", is that of Xu et al. (2011; see `toolkit.fsa.minimum_bayes_risk`) and of
Kaldi's lattice-combine and lattice-mbr-decode: the posteriors of each system's lattice are
multiplied by the system's weight. If only words and confidences are known, as in ROVER (Fiscus,
1997), they are made into linear lattices first. The other rule takes the best path of the union.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal, TypeVar, get_args

import numpy as np
from lhotse import MonoCut

from toolkit.align.ctm_textgrid import CtmEntry, TimedToken, read_ctm, write_ctm
from toolkit.corpus.manifest import speaker_of, text_of
from toolkit.decode.tune import ErrorCount, choose, enough_words_to_tune, write_grid
from toolkit.errors import ToolkitError
from toolkit.fsa.lattice_store import LatticeStore, WordCodec, WordTable
from toolkit.fsa.minimum_bayes_risk import (
    Candidate,
    best_path_in_bins,
    minimum_risk,
    spoken_words,
)
from toolkit.fsa.word_lattice import NO_WORD, WordLattice, normalise_to_weight, union
from toolkit.processes.workers import map_in_processes
from toolkit.score.compare import compare, comparison_lines
from toolkit.score.results import (
    Result,
    can_be_scored,
    read_results,
    record_results,
    score_split,
    write_texts,
)
from toolkit.score.transcripts import form_by_name, read_transcripts
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

LATTICES, CTM, TEXT = "word_lattices", "words.ctm", "text"
OTHER = -1
"""The word id of "another word", whose probability is 1 minus the confidence of the recognised
word."""
LEAST = 1e-4
"""Lower limit of confidences."""
logger = logging.getLogger(__name__)


class CombinationError(ToolkitError):
    """Raised for systems that cannot be combined."""


@dataclass(frozen=True)
class System:
    """One system's lattices (or words) for a set of utterances."""

    path: Path
    """The folder or file that the system was read from."""
    lattices: Mapping[str, tuple[WordLattice, np.ndarray]]
    """By utterance: a lattice, and the scores [A] of its A arcs."""
    ids: Sequence[str]
    """All utterances, including those in which nothing was recognised."""
    timed: bool = True
    """Whether the words have times."""
    lattice: bool = False
    """Whether `lattices` come from a search; otherwise they are linear lattices of words."""


def read_system(path: Path, words: WordTable) -> System:
    """Read the lattices of a decoded split, or the words of a CTM or text file.

    Args:
      path: a folder, a CTM file, or a file of transcripts (see
        `toolkit.score.transcripts.read_transcripts`). In a folder, the first of these that exists
        is read: `word_lattices/`; `words.ctm`, with `text` for utterances that could not be
        aligned; `text`. Words without confidences get confidence 1.
      words: gives ids to the words of all systems.

    Raises:
      CombinationError: the folder has none of these, or an utterance has several channels.
    """
    source = path
    if path.is_dir():
        sources = [path / name for name in (LATTICES, CTM, TEXT) if (path / name).exists()]
        if not sources and WordCodec().files(path):
            sources = [path]
        if not sources:
            raise CombinationError(
                f"{path} contains no word lattices, no words.ctm and no text: give the folder of "
                "a decoded split, such as exp/demo/decode/sat/dev, or a file"
            )
        source = sources[0]
    if source.is_dir():
        store = LatticeStore(source, WordCodec(words))
        lattices = {}
        for name in store.ids:
            lattice, used = store.load(name), store.info(name)
            lattices[name] = lattice, lattice.scores(used.acoustic_scale, used.word_penalty)
        return System(path, lattices, [*lattices, *store.failed], lattice=True)
    if form_by_name(source) != "ctm":
        untimed = _untimed(read_transcripts(source, side="hyp").plain_texts())
        chains = {name: _chain(tokens, words) for name, tokens in untimed.items()}
        return System(path, chains, list(untimed), timed=False)
    entries = _by_utterance(source)
    # Words that could not be aligned are only in `text`.
    texts = read_transcripts(path / TEXT).plain_texts() if (path / TEXT).exists() else {}
    unaligned = {name: text for name, text in texts.items() if text and name not in entries}
    if unaligned:
        logger.warning(
            "%s lacks %d utterances of %s, such as %s. The combination is written without times",
            *(source, len(unaligned), path / TEXT, next(iter(unaligned))),
        )
    entries |= _untimed(unaligned)
    chains = {name: _chain(tokens, words) for name, tokens in entries.items()}
    return System(path, chains, list({**texts, **chains}), timed=not unaligned)


def _by_utterance(path: Path) -> dict[str, list[CtmEntry]]:
    """Read a CTM file; return the words of each utterance."""
    entries: dict[str, list[CtmEntry]] = {}
    for entry in read_ctm(path):
        of_utterance = entries.setdefault(entry.utterance, [])
        if of_utterance and of_utterance[0].channel != entry.channel:
            raise CombinationError(
                f"{path}: {entry.utterance!r} has the channels {of_utterance[0].channel} and "
                f"{entry.channel}: give each channel its own utterance id"
            )
        of_utterance.append(entry)
    return entries


def _untimed(texts: Mapping[str, str]) -> dict[str, list[CtmEntry]]:
    """Return the words of each text, all with time 0."""
    return {
        name: [CtmEntry(name, "1", 0.0, 0.0, word) for word in text.split()]
        for name, text in texts.items()
    }


def empty_word_lattice() -> tuple[WordLattice, np.ndarray]:
    """Return the lattice of an utterance without recognised words, and its arc scores."""
    return _chain([], WordTable())


def _chain(entries: Sequence[CtmEntry], words: WordTable) -> tuple[WordLattice, np.ndarray]:
    """Make a linear lattice: each word with its confidence, beside an arc for "another word".

    An arc without a word stands before each word, and another at the end.
    """
    source, target, spoken, scores = [], [], [], []
    times = [0.0]
    for entry in sorted(entries, key=lambda entry: entry.start):
        state, confidence = len(times), 1.0 if entry.confidence is None else entry.confidence
        probability_of_word = min(max(confidence, LEAST), 1.0)
        arcs = [
            (state - 1, state, NO_WORD, 1.0),
            (state, state + 1, words.id_of(entry.token), probability_of_word),
        ]
        arcs += (
            [(state, state + 1, OTHER, 1.0 - probability_of_word)]
            if probability_of_word < 1
            else []
        )
        for a, b, word, probability in arcs:
            source.append(a)
            target.append(b)
            spoken.append(word)
            scores.append(np.log(probability))
        times += [entry.start, entry.end]
    last = len(times)
    lattice = WordLattice(
        source=np.int32([*source, last - 1]),
        target=np.int32([*target, last]),
        words=np.int32([*spoken, NO_WORD]),
        graph=np.array([*scores, 0.0]),
        acoustic=np.zeros(len(scores) + 1),
        times=np.maximum.accumulate([*times, times[-1]]),
    )
    return lattice, lattice.graph


PARTS = {1: 1, 2: 10, 3: 6, 4: 4}
"""By number of systems: the number of equal parts into which tuning divides the total weight of 1.
With more than four systems there are 2 parts."""
GROUP = 50
"""Utterances that a worker process takes at a time."""

Weights = tuple[float, ...]
Rule = Literal["mbr", "best"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""mbr: the words with the fewest expected errors; best: those of the best path."""
Row = Sequence[tuple[WordLattice, np.ndarray] | None]
"""The lattices of an utterance, one per system, with the scores of their arcs; None if the search
failed, in which case the system has no vote."""
MapResult = TypeVar("MapResult")


@dataclass(frozen=True)
class Combination:
    """The combination rule and the weight of each system."""

    weights: Weights
    """One weight for each system; they add up to 1. A system with weight 0 is left out."""
    rule: Rule = "mbr"
    """How the words are chosen, see `RULES`."""

    def __post_init__(self) -> None:
        # Weights that were printed with six digits may add up to 1 only within 1e-6.
        if not (min(self.weights) >= 0 and abs(sum(self.weights) - 1) < 1e-5):
            weights = ", ".join(f"{weight:g}" for weight in self.weights)
            raise CombinationError(
                f"the weights {weights} are not allowed: give one weight per system, none of them "
                "negative, with a sum of 1"
            )


def combine(
    systems: Sequence[System], combination: Combination, words: WordTable, jobs: int = 1
) -> dict[str, list[TimedToken]]:
    """Combine the results of several systems into one text per utterance.

    Args:
      systems: one or more. On an utterance that it lacks, a system with search lattices has no
        vote; any other system counts as having recognised nothing.
      combination: their weights, and the rule.
      words: the word table with which the systems were read.
      jobs: worker processes.

    Returns:
      The words of each utterance, with their posteriors as confidences.

    Raises:
      CombinationError: there is not one weight per system, or two systems have no utterance in
        common.
    """
    if len(combination.weights) != len(systems):
        raise CombinationError(f"{len(combination.weights)} weights for {len(systems)} systems")
    candidates_of = _map(partial(_decoded, combination), systems, jobs)
    return {name: _timed_words(candidates, words) for name, candidates in candidates_of.items()}


@dataclass(frozen=True)
class CombinationTuning:
    """The combination with the fewest errors, and all combinations that were tried."""

    best: Combination
    """The best combination. Ties go to the most equal weights, then to minimum Bayes risk."""
    tried: Mapping[Combination, ErrorCount]
    """The errors of each combination that was tried."""


def tune_combination(
    splits: Sequence[tuple[Sequence[System], Mapping[str, str]]],
    words: WordTable,
    jobs: int = 1,
    rules: Sequence[Rule] = RULES,
) -> CombinationTuning:
    """Find the rule and the weights with the fewest word errors; single systems are tried too.

    If several rules are given, "best" is tried only if all systems have search lattices: the
    probabilities in linear lattices of words are not path scores.

    Args:
      splits: for each development split, the systems and the reference texts by utterance.
      words: the word table with which the systems were read.
      jobs: worker processes.
      rules: the rules to try.
    """
    num_systems = len(splits[0][0])
    parts = PARTS.get(num_systems, 2)
    lattices = all(system.lattice for systems, _ in splits for system in systems)
    grid = [
        Combination(tuple(part / parts for part in shares), rule)
        for rule in rules
        if lattices or len(rules) == 1 or rule != "best"
        for shares in product(range(parts, -1, -1), repeat=num_systems)
        if sum(shares) == parts
    ]
    counts = dict.fromkeys(grid, ErrorCount(0, 0, ()))
    for systems, references in splits:
        sequences = _map(partial(_sequences, grid), systems, jobs)
        for i, combination in enumerate(grid):
            texts = {
                utterance: " ".join(words.symbols[word] for word in by_combination[i])
                for utterance, by_combination in sequences.items()
            }
            split_score, count = score(references, texts), counts[combination]
            errors = [*count.by_utterance, *(u.errors for u in split_score.utterances)]
            counts[combination] = ErrorCount.of(errors, count.words + split_score.ref_units)
    # Ties go to the most even weights, whose sum of squares is the smallest.
    best = choose(counts, lambda combination: sum(weight**2 for weight in combination.weights))
    return CombinationTuning(best, counts)


def _map(
    function: Callable[[Row], MapResult], systems: Sequence[System], jobs: int
) -> dict[str, MapResult]:
    """Apply a function to every utterance's lattices, in worker processes."""
    first = systems[0]
    for system in systems[1:]:
        if not set(first.ids) & set(system.ids):
            raise CombinationError(f"{first.path} and {system.path} have no utterance in common")
    ids = list(dict.fromkeys(name for system in systems for name in system.ids))
    missing = [None if system.lattice else empty_word_lattice() for system in systems]
    rows = [
        [system.lattices.get(name, none) for system, none in zip(systems, missing, strict=True)]
        for name in ids
    ]
    groups = [rows[i : i + GROUP] for i in range(0, len(rows), GROUP)]
    results = map_in_processes(partial(_each, function), groups, jobs)
    return dict(zip(ids, (result for group in results for result in group), strict=True))


def _each(function: Callable[[Row], MapResult], rows: Sequence[Row]) -> list[MapResult]:
    """Apply a function to some rows, in a worker process."""
    return [function(row) for row in rows]


def _decoded(combination: Combination, row: Row) -> list[Candidate]:
    """Combine the lattices of one utterance."""
    weighted = [
        (lattice[0], lattice[1], weight)
        for lattice, weight in zip(row, combination.weights, strict=True)
        if lattice is not None and weight > 0
    ]
    if not weighted:
        return []
    # In each lattice, the path probabilities are divided by their sum and multiplied by the
    # system's weight. The paths of the union then have weighted posteriors.
    combined = union([normalise_to_weight(*lattice) for lattice in weighted])
    if combination.rule == "best":
        return best_path_in_bins(combined, combined.graph)
    # Minimum Bayes risk decoding improves a word sequence step by step; it begins with the best
    # words of each system.
    starts = [spoken_words(lattice, scores) for lattice, scores, _ in weighted]
    return minimum_risk(combined, combined.graph, starts).words


def _sequences(grid: Sequence[Combination], row: Row) -> list[list[int]]:
    """Return the words that each combination of a grid finds in one utterance."""
    return [[candidate.word for candidate in _decoded(each, row)] for each in grid]


def _timed_words(candidates: Sequence[Candidate], words: WordTable) -> list[TimedToken]:
    """Return words with their mean times; no word begins before the previous word ends."""
    timed, end = [], 0.0
    for candidate in candidates:
        begin = max(candidate.begin, end)
        end = max(candidate.end, begin)
        word, confidence = words.symbols[candidate.word], min(candidate.posterior, 1.0)
        timed.append(TimedToken(word, begin, end, confidence))
    return timed


NAME = "combined"


def write_combined(
    systems: Sequence[System], combination: Combination, words: WordTable, out: Path, jobs: int
) -> dict[str, str]:
    """Combine systems, write `text` and, if all have times, `words.ctm`; return the texts.

    The `words.ctm` of an earlier combination is removed, as `read_system` would prefer it to
    `text`.
    """
    combined = combine(systems, combination, words, jobs)
    texts = {name: " ".join(w.token for w in words) for name, words in combined.items()}
    (out / CTM).unlink(missing_ok=True)
    write_texts(texts, out)
    if all(system.timed for system in systems):
        write_ctm(((name, "1", timed) for name, timed in combined.items()), out / CTM)
    return texts


@dataclass(frozen=True)
class DecodedSplit:
    """A split that several systems have decoded."""

    cuts: Sequence[MonoCut]
    """The split's utterances, with transcripts and speakers."""
    systems: Mapping[str, Path]
    """The folder of each system's decode of the split, by system name."""
    tuned: bool
    """Whether the weights are tuned on it."""


def combine_decodes(
    splits: Mapping[str, DecodedSplit],
    rows: Sequence[Path],
    out: Path,
    jobs: int,
    command: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Combine systems with weights tuned on the development splits, and score all splits.

    Args:
      splits: by name; all have the same systems.
      rows: `rows.json` of each system, in the order of the systems.
      out: the folder that gets `grid.tsv` (what was tried), `tuned.json`, `rows.json` and, by
        split, `text`, `words.ctm`, reports and `comparison.txt` (the combination against the
        system that is best on the development splits).
      jobs: worker processes.
      command: the command line, for the results.
      progress: called with (splits done, splits).

    Returns:
      WER in percent by split (`wer SPLIT`), and the weight of each system (`weight SYSTEM`).
    """
    words = WordTable()
    read = {
        name: [read_system(path, words) for path in split.systems.values()]
        for name, split in splits.items()
    }
    references = {
        name: {cut.id: text_of(cut) for cut in split.cuts} for name, split in splits.items()
    }
    names = list(next(iter(splits.values())).systems)
    splits = {s: split for s, split in splits.items() if can_be_scored(references[s], s)}
    tuning = _tuned([(read[s], references[s]) for s in splits if splits[s].tuned], words, jobs)
    tuning = tuning or CombinationTuning(Combination((1 / len(rows),) * len(rows)), {})
    grid = (((c.rule, *c.weights), count, None) for c, count in tuning.tried.items())
    write_grid(("rule", *names), grid, out / "grid.tsv")
    weights = dict(zip(names, tuning.best.weights, strict=True))
    chosen = {"rule": tuning.best.rule, "weights": weights}
    write_atomically(out / "tuned.json", json.dumps(chosen, indent=1) + "\n")
    # A system may have several rows for a split; the last one belongs to its last pass.
    rows_of = [{row.split: row for row in read_results(path)} for path in rows]
    best = min(names, key=lambda name: _errors(rows_of[names.index(name)], splits))
    results: list[Result] = []
    for name, split in splits.items():
        speakers = {cut.id: speaker_of(cut) for cut in split.cuts}
        start = time.perf_counter()
        texts = write_combined(read[name], tuning.best, words, out / name, jobs)
        audio_seconds = sum(cut.duration for cut in split.cuts)
        combination_rtf = (time.perf_counter() - start) * jobs / audio_seconds
        row = score_split(
            references[name],
            # Systems have no lattice of an utterance whose features could not be extracted.
            {utterance: texts.get(utterance, "") for utterance in references[name]},
            speakers,
            out / name,
            system=NAME,
            split=name,
            lm="+".join(sorted({rows_by_split[name].lm for rows_by_split in rows_of})),
            rtf=combination_rtf + sum(rows_by_split[name].rtf for rows_by_split in rows_of),
            command=command,
        )
        results.append(row)
        single = read_transcripts(split.systems[best] / "text", "text").texts
        single_score = score(references[name], single, speakers=speakers)
        combined_score = score(references[name], texts, speakers=speakers)
        lines = comparison_lines(compare(single_score, combined_score), (best, NAME))
        write_atomically(out / name / "comparison.txt", "".join(f"{line}\n" for line in lines))
        progress(len(results), len(splits))
    record_results(out / "rows.json", results)
    headline = {f"wer {row.split}": row.wer for row in results}
    return headline | {f"weight {name}": weight for name, weight in weights.items()}


def _tuned(
    splits: Sequence[tuple[Sequence[System], Mapping[str, str]]], words: WordTable, jobs: int
) -> CombinationTuning | None:
    """Tune a combination on splits; warn and return None if they have too few words."""
    count = sum(len(text.split()) for _, references in splits for text in references.values())
    if enough_words_to_tune(count, "all systems have the same weight"):
        return tune_combination(splits, words, jobs)
    return None


def _errors(rows: Mapping[str, Result], splits: Mapping[str, DecodedSplit]) -> int:
    """Return one system's word errors on the development splits."""
    tuned = [rows[name] for name, split in splits.items() if split.tuned]
    return sum(row.insertions + row.deletions + row.substitutions for row in tuned)
