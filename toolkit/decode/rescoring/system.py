"""Rescoring of a hybrid system's n-best lists with a neural language model."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from toolkit.decode.calibrate import right_words
from toolkit.decode.confidence import Calibration
from toolkit.decode.first_pass import Decoder
from toolkit.decode.rescoring.candidates import Candidates, list_candidates, read_candidates
from toolkit.decode.rescoring.lists import (
    NeuralRescoringConfig,
    RescoredLists,
    score_lists,
    tune_lists,
)
from toolkit.decode.rescoring.rescorer import RescoringWeights
from toolkit.decode.system import Progress, Scorers, references_of, speakers_of
from toolkit.fsa.lattice import Weights
from toolkit.models.neural_lm import NeuralLm


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
    before, explored = Weights.load(tuned), explored or {}

    @cache
    def lists(split: str, scale: float) -> RescoredLists:
        if split in explored and scale == before.acoustic_scale:
            listed = read_candidates(explored[split], before, config.count)
        else:
            folder = out / split / "candidates" / f"{scale:g}"
            folder.mkdir(parents=True, exist_ok=True)
            searched, penalty = decoder.at(scale), before.word_penalty
            listed = list_candidates(scorers[split], searched, penalty, config.count, folder, jobs)
        without_features = scorers[split].store.failed_cuts
        found = {x.utterance: x.candidates for x in listed}
        found |= {cut.id: Candidates((), (), (), ()) for cut in without_features}
        audio = sum(x.audio_seconds for x in listed) + sum(cut.duration for cut in without_features)
        return RescoredLists.of(found, model, audio, sum(x.decode_seconds for x in listed))

    references = {split: references_of(scorer) for split, scorer in scorers.items()}
    grid, within = decoder.config.grid, decoder.config.untuned_within
    best = tune_lists(lists, references, tune_on, before, grid, within, config, out)
    at_best = [(lists(split, best.acoustic_scale), references[split]) for split in tune_on]
    _calibration(at_best, best).save(out / "calibration.json")
    speakers = {split: speakers_of(scorer) for split, scorer in scorers.items()}
    named = {"system": system, "lm": lm, "command": command}
    return score_lists(lists, best, references, speakers, out, named, progress)


def _calibration(
    found: Sequence[tuple[RescoredLists, Mapping[str, str]]], weights: RescoringWeights
) -> Calibration:
    """Fit the calibration of posteriors on rescored splits with their references."""
    posteriors: list[float] = []
    correct: list[bool] = []
    for rescored, references in found:
        for utterance, (words, sure) in rescored.words(weights).items():
            posteriors += sure
            correct += right_words(references[utterance], words)
    return Calibration.fit(posteriors, correct)
