"""Rescoring of a system's n-best lists: weights tuned on the development splits, all scored."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from toolkit.corpus.manifest import speaker_of
from toolkit.decode.calibrate import right_words
from toolkit.decode.confidence import Calibration
from toolkit.decode.first_pass import Decoder
from toolkit.decode.rescoring.candidates import Listed, list_candidates, read_candidates
from toolkit.decode.rescoring.rescorer import WEIGHTS, RescoringWeights, neural_scores
from toolkit.decode.rescoring.tuning import RescoringTuning, tune_rescoring
from toolkit.decode.system import Progress, Scorers, references_of, words_of
from toolkit.decode.tuning import FEWEST_WORDS, Count, Grid, percent
from toolkit.fsa.lattice import Weights
from toolkit.models.neural_lm import NeuralLm
from toolkit.score.align import align
from toolkit.score.results import Result, record_results
from toolkit.score.split import can_be_scored, score_split, write_texts
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class NeuralRescoringConfig:
    """The n-best lists and the weights tried on the development set."""

    count: int = 100
    """Length of the n-best lists."""
    weights: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Weights of the neural model's log-probability tried; the n-gram's has the rest. With 0 the
    neural model is not used where it does not help."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}, needs to be at least 1")
        if not self.weights or not all(0 <= weight <= 1 for weight in self.weights):
            raise ValueError(f"weights is {self.weights}, needs values in [0, 1]")


def rescore_system(
    system: str,
    lm: str,
    scorers: Scorers,
    tune_on: Sequence[str],
    decoder: Decoder,
    tuned: Path,
    model: NeuralLm,
    config: NeuralRescoringConfig,
    out: Path,
    jobs: int,
    command: str,
    progress: Progress = lambda done, total: None,
    explored: Mapping[str, Path] | None = None,
) -> dict[str, float]:
    """Make n-best lists of every split, rescore them with tuned weights, and score.

    Args:
      system: name of the system in the results.
      lm: name of the language models in the results.
      scorers: the acoustic model on each split.
      tune_on: the splits on which the weights are tuned.
      decoder: graph and search; the lattices of its last pass are used.
      tuned: `tuned.json` of that pass.
      model: the neural language model.
      config: lists and weights.
      out: the folder that gets `weights.json`, `grid.tsv`, `calibration.json` of the words'
        posteriors in the rescored lists, `rows.json` and, by split, hypotheses, reports and
        `candidates/`.
      jobs: worker processes.
      command: the command line, for the results.
      progress: called with (splits rescored, splits).
      explored: by split the folder of the lists that were made with the weights of `tuned`, see
        `read_candidates`: the split is not searched again at that scale.

    Returns:
      WER in percent by split, and the weight of the neural model.
    """
    before = Weights.load(tuned)
    lists = _Lists(scorers, decoder, before, model, config.count, out, jobs, explored or {})
    references = {split: references_of(scorer) for split, scorer in scorers.items()}

    def counted(neural: float, scale: float, grid: Grid) -> list[Count]:
        found = {split: lists.at(split, scale) for split in tune_on}
        pairs = [RescoringWeights.of(neural, pair) for pair in grid.pairs()]
        return [_count(found, references, pair) for pair in pairs]

    grid = Grid(decoder.config.scales, decoder.config.penalties)
    words = words_of(references, tune_on)
    grid = grid.if_tunable(words, before)
    tried = config.weights if words >= FEWEST_WORDS else [min(config.weights)]
    tuning = tune_rescoring(counted, tried, before.acoustic_scale, grid)
    _write_grid(tuning, out / "grid.tsv")
    tuning.best.save(out / WEIGHTS)
    at_best = [
        (lists.at(split, tuning.best.acoustic_scale), references[split]) for split in tune_on
    ]
    _calibration(at_best, tuning.best).save(out / "calibration.json")
    rows: list[Result] = []
    for split, scorer in scorers.items():
        found = lists.at(split, tuning.best.acoustic_scale)
        speakers = {u: speaker_of(scorer.store.cut(u)) for u in scorer.store.ids}
        named = {"system": system, "split": split, "lm": lm, "command": command}
        texts = found.best(tuning.best)
        if not can_be_scored(references[split], split):
            write_texts(texts, out / split)
            continue
        rtf = found.real_time_factor
        rows.append(score_split(references[split], texts, speakers, out / split, rtf=rtf, **named))
        progress(len(rows), len(scorers))
    record_results(out / "rows.json", rows)
    return {f"wer {row.split}": row.wer for row in rows} | {"neural weight": tuning.best.neural}


@dataclass(frozen=True)
class _Rescored:
    """The n-best lists of a split and the neural model's scores."""

    listed: Sequence[Listed]
    neural: Sequence[np.ndarray]
    seconds: float
    """Processor time of the neural model."""
    errors: dict[tuple[str, str], Count] = field(default_factory=dict)
    """By utterance and hypothesis, as they were counted."""

    def best(self, weights: RescoringWeights) -> dict[str, str]:
        """The best hypothesis of each utterance."""
        return {
            x.utterance: weights.best(x.candidates, neural)
            for x, neural in zip(self.listed, self.neural, strict=True)
        }

    def words(self, weights: RescoringWeights) -> dict[str, tuple[list[str], list[float]]]:
        """The words of the best hypothesis of each utterance, and their posteriors."""
        return {
            x.utterance: weights.words(x.candidates, neural)
            for x, neural in zip(self.listed, self.neural, strict=True)
        }

    @property
    def real_time_factor(self) -> float:
        """Seconds of one core per second of speech."""
        audio = sum(x.audio_seconds for x in self.listed)
        spent = sum(x.decode_seconds for x in self.listed) + self.seconds
        return spent / audio if audio else float("nan")


@dataclass
class _Lists:
    """Rescored n-best lists by split and acoustic scale, each made once."""

    scorers: Scorers
    decoder: Decoder
    tuned: Weights
    model: NeuralLm
    count: int
    out: Path
    jobs: int
    explored: Mapping[str, Path]
    _found: dict[tuple[str, float], _Rescored] = field(default_factory=dict)

    def at(self, split: str, scale: float) -> _Rescored:
        """The lists of a split, searched at an acoustic scale."""
        if (split, scale) not in self._found:
            listed = self._listed(split, scale)
            start = time.process_time()
            neural = neural_scores(self.model, [x.candidates for x in listed])
            spent = time.process_time() - start
            self._found[split, scale] = _Rescored(listed, neural, spent)
        return self._found[split, scale]

    def _listed(self, split: str, scale: float) -> list[Listed]:
        if split in self.explored and scale == self.tuned.acoustic_scale:
            return read_candidates(self.explored[split], self.tuned, self.count)
        folder = self.out / split / "candidates" / f"{scale:g}"
        folder.mkdir(parents=True, exist_ok=True)
        decoder, scorer = self.decoder.at(scale), self.scorers[split]
        penalty = self.tuned.word_penalty
        return list_candidates(scorer, decoder, penalty, self.count, folder, self.jobs)


def _count(
    found: Mapping[str, _Rescored],
    references: Mapping[str, Mapping[str, str]],
    weights: RescoringWeights,
) -> Count:
    """Word errors and words of all splits; every hypothesis is compared once."""
    errors = words = 0
    for split, rescored in found.items():
        for utterance, text in rescored.best(weights).items():
            if (utterance, text) not in rescored.errors:
                reference = references[split][utterance].split()
                wrong = sum(a != b for a, b in align(reference, text.split()))
                rescored.errors[utterance, text] = wrong, len(reference)
            more = rescored.errors[utterance, text]
            errors, words = errors + more[0], words + more[1]
    return errors, words


def _calibration(
    found: Sequence[tuple[_Rescored, Mapping[str, str]]], weights: RescoringWeights
) -> Calibration:
    """Fit the calibration of posteriors on rescored splits with their references."""
    posteriors: list[float] = []
    correct: list[bool] = []
    for rescored, references in found:
        for utterance, (words, sure) in rescored.words(weights).items():
            posteriors += sure
            correct += right_words(references[utterance], words)
    return Calibration.fit(posteriors, correct)


def _write_grid(tuning: RescoringTuning, path: Path) -> None:
    lines = ["neural\tacoustic_scale\tword_penalty\terrors\twords\twer\tsearch_scale"]
    lines += [
        f"{neural:g}\t{w.acoustic_scale:g}\t{w.word_penalty:g}\t{e}\t{n}\t"
        f"{percent(e, n):.2f}\t{s:g}"
        for neural, one in tuning.tried.items()
        for w, (s, (e, n)) in sorted(one.tried.items())
    ]
    write_atomically(path, "\n".join(lines) + "\n")
