"""Rescores the n-best lists of hybrid and CTC searches with a neural language model.

For CTC, the score of a text (see `WordsConfig`) is divided by the language model weight w. This
gives the sum that rescoring uses, with acoustic scale 1 / w, word penalty word_bonus / w and no
graph score.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from toolkit.align.scorer import ScoredUtterance, Scorer, map_scored_shards, map_utterances
from toolkit.config.fields import Finite, FinitePositive, Settings, Share, read_plain
from toolkit.decode.config import NeuralRescoringConfig, WordsConfig
from toolkit.decode.ctc.search import CtcHypothesis, WordsDecoder
from toolkit.decode.ctc.system import SplitData
from toolkit.decode.decoded import (
    ListedUtterance,
    NbestList,
    nbest_path,
    read_nbest_lists,
    read_nbest_shard,
    write_nbest_shard,
)
from toolkit.decode.search import (
    WEIGHTS as WEIGHT_NAMES,
)
from toolkit.decode.search import (
    Decoder,
    DecoderFiles,
    first_axes,
    open_decoder,
    smallest_change,
    weight_axes,
)
from toolkit.decode.system import (
    Progress,
    Scorers,
    correct_words,
    references_of,
    speakers_of,
    words_of,
)
from toolkit.decode.tune import (
    Axis,
    ErrorCount,
    Keep,
    Point,
    Tuning,
    choose,
    enough_words_to_tune,
    tune,
    write_grid,
)
from toolkit.decode.words import Calibration, word_confidences
from toolkit.fsa.lattice import Weights, WeightsError
from toolkit.fsa.nbest import n_best
from toolkit.lang.ngram import BackoffModel
from toolkit.models.neural_lm import NeuralLm
from toolkit.processes.workers import processor_seconds
from toolkit.score.alignment import align
from toolkit.score.results import Result, can_be_scored, record_results, score_split, write_texts
from toolkit.storage.files import write_atomically


def make_nbest_lists(
    scorer: Scorer, decoder: DecoderFiles, penalty: float, count: int, out: Path, jobs: int
) -> list[ListedUtterance]:
    """Decode every utterance of a feature store into an n-best list.

    Args:
      scorer: the acoustic model with its features.
      decoder: graph and search; the lattices of its last pass are used.
      penalty: word penalty with which the lists are made, at the decoder's acoustic scale.
      count: length of the lists.
      out: the folder that gets a file per feature shard; files of an earlier run are kept.
      jobs: worker processes, or threads if the network runs on a GPU.

    Raises:
      NbestListError: a file of an earlier run is damaged.
    """
    list_shard = partial(_list_shard, decoder, penalty, count, out)
    paths = map_scored_shards(list_shard, scorer, jobs, "n-best")
    return [utterance for path in paths for utterance in read_nbest_shard(path)]


def _list_shard(
    decoder: DecoderFiles,
    penalty: float,
    count: int,
    out: Path,
    scorer: Scorer,
    threads: int,
    shard: tuple[int, Sequence[str]],
) -> Path:
    """Write the n-best lists of one feature shard, unless an earlier run has written them."""
    number, ids = shard
    path = nbest_path(out, number)
    if not path.exists():
        list_utterance = _lister(open_decoder(decoder), penalty, count, scorer)
        write_nbest_shard(path, map_utterances(list_utterance, scorer, ids, threads))
    return path


def _lister(
    decoder: Decoder, penalty: float, count: int, scorer: Scorer
) -> Callable[[ScoredUtterance], ListedUtterance]:
    """Return a function that makes an utterance's n-best list."""
    weights = Weights(decoder.acoustic_scale, penalty)

    def list_utterance(scored: ScoredUtterance) -> ListedUtterance:
        start = scored.clock() - scored.seconds
        lattice = decoder.search(scored.log_likelihoods).last_lattice
        hypotheses = [] if lattice is None else n_best(lattice, weights, count)
        nbest = NbestList.of(hypotheses, weights, decoder.words)
        seconds = round(scorer.store.cut(scored.utterance).duration, 4)
        return ListedUtterance(scored.utterance, seconds, round(scored.clock() - start, 6), nbest)

    return list_utterance


WEIGHTS = "weights.json"
SAMPLES = 1000
"""Number of hypotheses sampled for posteriors."""


@dataclass(frozen=True)
class RescoringWeights(Settings):
    """The weights by which a hypothesis's scores are added up."""

    neural: Share
    """Weight of the neural model's log-probability, 0 to 1; the n-gram model has 1 - `neural`."""
    acoustic_scale: FinitePositive
    """Factor on acoustic log-likelihoods."""
    word_penalty: Finite
    """Added per word; negative means fewer words."""

    @classmethod
    def of(cls, neural: float, weights: Weights) -> "RescoringWeights":
        """Combine the neural model's weight with the other weights."""
        return cls(neural, weights.acoustic_scale, weights.word_penalty)

    @classmethod
    def load(cls, path: Path) -> "RescoringWeights":
        """Read the weights that `save` wrote.

        Raises:
          WeightsError: the file cannot be read; the message names it.
        """
        return read_plain(path, cls, WeightsError, "rescore again")

    def save(self, path: Path) -> None:
        """Write the weights as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    def total(self, nbest: NbestList, neural: np.ndarray) -> np.ndarray:
        """Return the weighted total score of each hypothesis.

        The language models are interpolated log-linearly: their weighted log-probabilities are
        added. The n-gram model's log-probability comes from the lattice.

        Args:
          nbest: K hypotheses.
          neural: [K] log-probability by the neural model.

        Returns:
          [K] total scores.
        """
        # scale * acoustic + graph + penalty * words, and the language models' log-probabilities.
        acoustic, graph, lm, words = nbest.scores  # [K] each
        language = self.neural * neural + (1 - self.neural) * lm
        return self.acoustic_scale * acoustic + graph + language + self.word_penalty * words

    def best(self, nbest: NbestList, neural: np.ndarray) -> str:
        """Return the words of the hypothesis with the highest `total`; ties go to the first.

        An empty list gives no words.
        """
        if not nbest.texts:
            return ""
        return nbest.texts[int(np.argmax(self.total(nbest, neural)))]

    def words(self, nbest: NbestList, neural: np.ndarray) -> tuple[list[str], list[float]]:
        """Return the words of the best hypothesis, and the posterior of each word.

        A posterior is the share of sampled hypotheses that contain the word in this position (see
        `toolkit.decode.words.word_confidences`). Samples are drawn in proportion to exp(total).
        """
        best = self.best(nbest, neural).split()
        if not best:
            return [], []
        # Systematic sampling: SAMPLES equidistant points on the cumulative sum of exp(total). The
        # largest total is subtracted first, to avoid overflow.
        total = self.total(nbest, neural)
        mass = np.cumsum(np.exp(total - total.max()))
        places = np.searchsorted(mass, (np.arange(SAMPLES) + 0.5) / SAMPLES * mass[-1])
        samples = [tuple(nbest.texts[place].split()) for place in places]
        return best, word_confidences(best, samples)


@dataclass(frozen=True)
class Rescorer:
    """A neural language model and its tuned weights."""

    lm: NeuralLm
    """The model."""
    weights: RescoringWeights
    """The weights."""

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> "Rescorer":
        """Load the model and `weights.json` from a folder.

        Raises:
          ModelError, ShortlistError, WeightsError: a file is missing or damaged.
        """
        return cls(NeuralLm.load(folder, device), RescoringWeights.load(Path(folder) / WEIGHTS))

    def best(self, nbest: NbestList) -> str:
        """Return the words of the best hypothesis; see `RescoringWeights.best`."""
        return self.weights.best(nbest, neural_scores(self.lm, [nbest])[0])

    def words(self, nbest: NbestList) -> tuple[list[str], list[float]]:
        """Return the best words with their posteriors; see `RescoringWeights.words`."""
        return self.weights.words(nbest, neural_scores(self.lm, [nbest])[0])


def neural_scores(lm: NeuralLm, lists: list[NbestList]) -> list[np.ndarray]:
    """Return the neural model's log-probability of every hypothesis: [K] for each list."""
    # All hypotheses are scored in one call, and divided among the lists afterwards.
    sentences = [words for nbest in lists for words in nbest.sentences]
    sums = np.array([scores.sum() for scores in lm.score(sentences)])
    return np.split(sums, np.cumsum([len(nbest.texts) for nbest in lists])[:-1])


@dataclass(frozen=True)
class RescoredLists:
    """The n-best lists of a split with the neural model's scores."""

    lists: Mapping[str, NbestList]
    """The lists, by utterance."""
    neural: Sequence[np.ndarray]
    """[K] log-probabilities by the neural model, in the same order."""
    real_time_factor: float
    """Real-time factor: CPU seconds of search and neural model per second of speech."""
    errors: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """(word errors, reference words) by (utterance, hypothesis), filled by `count`."""

    @classmethod
    def of(
        cls,
        lists: Mapping[str, NbestList],
        model: NeuralLm,
        audio_seconds: float,
        search_seconds: float,
    ) -> "RescoredLists":
        """Score n-best lists with a neural model.

        Args:
          lists: the list of each utterance.
          model: the neural model.
          audio_seconds: total seconds of speech.
          search_seconds: CPU seconds of the search.
        """
        start = time.process_time()
        neural = neural_scores(model, list(lists.values()))
        seconds = search_seconds + time.process_time() - start
        return cls(lists, neural, seconds / audio_seconds if audio_seconds else float("nan"))

    def best(self, weights: RescoringWeights) -> dict[str, str]:
        """Return the best hypothesis of each utterance."""
        pairs = zip(self.lists.items(), self.neural, strict=True)
        return {utterance: weights.best(listed, scores) for (utterance, listed), scores in pairs}

    def words(self, weights: RescoringWeights) -> dict[str, tuple[list[str], list[float]]]:
        """Return the words of each utterance's best hypothesis with their posteriors."""
        pairs = zip(self.lists.items(), self.neural, strict=True)
        return {utterance: weights.words(listed, scores) for (utterance, listed), scores in pairs}

    def count(self, references: Mapping[str, str], weights: RescoringWeights) -> ErrorCount:
        """Count word errors and words; each hypothesis is compared only once."""
        counts = []
        for utterance, text in self.best(weights).items():
            if (utterance, text) not in self.errors:
                reference = references[utterance].split()
                wrong = sum(a != b for a, b in align(reference, text.split()))
                self.errors[utterance, text] = wrong, len(reference)
            counts.append(self.errors[utterance, text])
        return ErrorCount.of([wrong for wrong, _ in counts], sum(words for _, words in counts))


ListsAt = Callable[[str, float], RescoredLists]
"""Function that searches a split at an acoustic scale and rescores the n-best lists."""
Texts = Mapping[str, Mapping[str, str]]
"""Transcripts or speakers, by split and utterance."""


def rescore_lists(
    lists_at: ListsAt,
    references: Texts,
    speakers: Texts,
    tune_on: Sequence[str],
    first_weights: Weights,
    axes: tuple[Axis, Axis],
    keep: float | None,
    config: NeuralRescoringConfig,
    out: Path,
    named: Mapping[str, str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[RescoringWeights, dict[str, float]]:
    """Tune the weights on the development splits, and score every split's best hypotheses.

    Args:
      lists_at: called for the splits and the scales that are tried.
      references: transcripts of the splits.
      speakers: speaker of each utterance.
      tune_on: the splits whose word errors decide on the weights.
      first_weights: the weights without the neural model.
      axes: scales and penalties to begin with.
      keep: `first_weights` are kept unless others make fewer errors by more than this many standard
        errors of the difference; None: those with the fewest errors are taken.
      config: weights of the neural model.
      out: the folder that gets `weights.json`, `grid.tsv`, `rows.json` and, by split, hypotheses
        and reports.
      named: `system`, `lm` and `command` of the results.
      progress: called with (splits scored, splits).

    Returns:
      The weights; and a dict of the WER in percent by split (`wer SPLIT`) and the weight of the
      neural model (`neural weight`).
    """

    def count_errors(neural: float, scale: float, points: Sequence[Point]) -> list[ErrorCount]:
        lists = {split: lists_at(split, scale) for split in tune_on}
        totals = []
        for point in points:
            weights = RescoringWeights.of(neural, Weights(*point))
            counts = [
                rescored.count(references[split], weights) for split, rescored in lists.items()
            ]
            each = [errors for count in counts for errors in count.by_utterance]
            totals.append(ErrorCount.of(each, sum(count.words for count in counts)))
        return totals

    best, tried = tune_rescoring(
        count_errors, words_of(references, tune_on), first_weights, axes, keep, config.weights
    )
    rows = (
        ((neural, *point), count, scale)
        for neural, tuning in tried.items()
        for point, (scale, count) in sorted(tuning.tried.items())
    )
    write_grid(("neural", *WEIGHT_NAMES), rows, out / "grid.tsv")
    best.save(out / WEIGHTS)
    return best, _score_lists(lists_at, best, references, speakers, out, named, progress)


def tune_rescoring(
    count_errors: Callable[[float, float, Sequence[Point]], Sequence[ErrorCount]],
    words: int,
    first_weights: Weights,
    axes: tuple[Axis, Axis],
    keep: float | None,
    neural_weights: Sequence[float],
) -> tuple[RescoringWeights, dict[float, Tuning]]:
    """Tune scale and penalty for each neural model weight; see `toolkit.decode.tune.tune`.

    The weight with the fewest errors is taken, and among equals the smallest, so that the neural
    model gets no more weight than it earns.

    Args:
      count_errors: takes the neural model's weight, the acoustic scale of a search, and points
        (scale, penalty); rescores the lists of that search and counts the errors of each point.
      words: number of words in the references; if there are too few, the neural model's lowest
        weight is taken, with `first_weights`.
      first_weights: the weights without the neural model.
      axes, keep: see `rescore_lists`.
      neural_weights: weights of the neural model to try, 0 to 1.

    Returns:
      The best weights, and the tuning for each weight of the neural model.
    """
    point = first_weights.acoustic_scale, first_weights.word_penalty
    keep_before = None if keep is None else Keep(point, keep)
    if keep_before is not None:
        axes = axes[0].including(point[0]), axes[1].including(point[1])
    consequence = f"acoustic scale {point[0]:g} and word penalty {point[1]:g} are kept"
    if not enough_words_to_tune(words, consequence):
        axes, keep_before = weight_axes([point[0]], [point[1]]), None
        neural_weights = [min(neural_weights)]
    tried = {
        weight: tune(
            axes,
            partial(count_errors, weight),
            smallest_change,
            first_search=first_weights.acoustic_scale,
            keep=keep_before,
        )
        for weight in sorted(set(neural_weights))
    }
    chosen = choose({weight: tuning.count for weight, tuning in tried.items()}, lambda w: w)
    return RescoringWeights.of(chosen, Weights(*tried[chosen].best)), tried


def _score_lists(
    lists_at: ListsAt,
    weights: RescoringWeights,
    references: Texts,
    speakers: Texts,
    out: Path,
    named: Mapping[str, str],
    progress: Callable[[int, int], None],
) -> dict[str, float]:
    """Choose each utterance's best hypothesis with the weights, and score the split."""
    rows: list[Result] = []
    for split, transcripts in references.items():
        lists = lists_at(split, weights.acoustic_scale)
        texts = lists.best(weights)
        if not can_be_scored(transcripts, split):
            write_texts(texts, out / split)
            continue
        spoken_by, rtf = speakers[split], lists.real_time_factor
        rows.append(
            score_split(transcripts, texts, spoken_by, out / split, rtf=rtf, split=split, **named)
        )
        progress(len(rows), len(references))
    record_results(out / "rows.json", rows)
    return {f"wer {row.split}": row.wer for row in rows} | {"neural weight": weights.neural}


def rescore_system(
    system: str,
    lm: str,
    scorers: Scorers,
    tune_on: Sequence[str],
    decoder: DecoderFiles,
    tuned: Path,
    model: NeuralLm,
    config: NeuralRescoringConfig,
    out: Path,
    jobs: int,
    command: str,
    progress: Progress = lambda done, total: None,
    nbest: Mapping[str, Path] | None = None,
) -> dict[str, float]:
    """Make n-best lists of every split, rescore them with tuned weights, and score the splits.

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
        `nbest/`.
      jobs: worker processes.
      command: the command line, for the results.
      progress: called with (splits rescored, splits).
      nbest: by split, the folder of n-best lists made with the weights of `tuned`, see
        `read_nbest_lists`; the split is then not searched again at that acoustic scale.

    Returns:
      WER in percent by split, and the weight of the neural model.
    """
    first_weights, nbest = Weights.load(tuned), nbest or {}

    @cache
    def lists(split: str, scale: float) -> RescoredLists:
        if split in nbest and scale == first_weights.acoustic_scale:
            listed = read_nbest_lists(nbest[split], config.count)
        else:
            folder = out / split / "nbest" / f"{scale:g}"
            folder.mkdir(parents=True, exist_ok=True)
            searched, penalty = decoder.at(scale), first_weights.word_penalty
            listed = make_nbest_lists(scorers[split], searched, penalty, config.count, folder, jobs)
        without_features = scorers[split].store.failed_cuts
        lists_of = {x.utterance: x.nbest for x in listed}
        # Utterances without features have empty lists, so that their words count as deleted.
        lists_of |= {cut.id: NbestList((), (), (), ()) for cut in without_features}
        audio = sum(x.audio_seconds for x in listed) + sum(cut.duration for cut in without_features)
        return RescoredLists.of(lists_of, model, audio, sum(x.decode_seconds for x in listed))

    references = {split: references_of(scorer) for split, scorer in scorers.items()}
    speakers = {split: speakers_of(scorer) for split, scorer in scorers.items()}
    best, headline = rescore_lists(
        lists,
        references,
        speakers,
        tune_on,
        first_weights,
        first_axes(decoder.config),
        decoder.config.untuned_within,
        config,
        out,
        {"system": system, "lm": lm, "command": command},
        progress,
    )
    at_best = [(lists(split, best.acoustic_scale), references[split]) for split in tune_on]
    _calibration(at_best, best).save(out / "calibration.json")
    return headline


def _calibration(
    splits: Sequence[tuple[RescoredLists, Mapping[str, str]]], weights: RescoringWeights
) -> Calibration:
    """Fit the calibration of word posteriors on rescored splits."""
    posteriors: list[float] = []
    correct: list[bool] = []
    for rescored, references in splits:
        for utterance, (words, word_posteriors) in rescored.words(weights).items():
            posteriors += word_posteriors
            correct += correct_words(references[utterance], words)
    return Calibration.fit(posteriors, correct)


def to_weights(config: WordsConfig) -> Weights:
    """Convert language model weight and word bonus to acoustic scale and word penalty."""
    return Weights(1 / config.lm_weight, config.word_bonus / config.lm_weight)


def nbest_search_config(config: WordsConfig, weights: Weights, count: int) -> WordsConfig:
    """Return search settings for n-best lists of `count` texts with these weights."""
    # With lm_weight = 1 / scale and word_bonus = penalty / scale the search ranks texts as
    # rescoring with these weights does; its beam must hold the whole list.
    scale, penalty = weights.acoustic_scale, weights.word_penalty
    width = max(config.width, count)
    weighted = replace(config, lm_weight=1 / scale, word_bonus=penalty / scale)
    return replace(weighted, width=width, nbest=count)


def to_nbest_list(
    hypotheses: Sequence[CtcHypothesis], lm: BackoffModel, config: WordsConfig, missing: int = 0
) -> NbestList:
    """Make an n-best list from hypotheses, with their scores split into parts.

    Args:
      hypotheses: from `WordsDecoder.decode`, in a mode with n-grams.
      lm: the n-grams of the search.
      config: settings of the search that found the hypotheses.
      missing: number of words that the dictionary has and the n-grams lack (`missing_words`); they
        share the probability of <UNK>.
    """
    # score = log P(text | posteriors) + lm_weight log P(text) + word_bonus * words: solved for the
    # first term, the acoustic score. Words that the n-grams lack share the probability of <UNK>.
    texts = tuple(hypothesis.text for hypothesis in hypotheses)
    sentences = [text.split() for text in texts]
    unknown = np.array([missing_words(lm, words) for words in sentences])
    language = math.log(10) * lm.logprobs(sentences) - math.log(max(1, missing)) * unknown
    bonus = config.word_bonus * np.array([len(words) for words in sentences])
    acoustic = (
        np.array([hypothesis.score for hypothesis in hypotheses])
        - config.lm_weight * language
        - bonus
    )
    none = (0.0,) * len(texts)
    return NbestList(texts, tuple(acoustic.tolist()), none, tuple(language.tolist()))


def missing_words(lm: BackoffModel, words: Collection[str]) -> int:
    """Return how many words of a dictionary an n-gram model lacks."""
    return sum(word not in lm.ids for word in words)


@dataclass(frozen=True)
class CtcRescorer:
    """Rescores the n-best list of a CTC search with a neural language model."""

    rescorer: Rescorer
    """The neural model and the weights."""
    lm: BackoffModel
    """The n-grams of the search."""
    config: WordsConfig
    """The search."""
    missing: int = 0
    """See `to_nbest_list`."""

    def best(self, hypotheses: Sequence[CtcHypothesis]) -> str:
        """Return the best text of an n-best list."""
        return self.rescorer.best(to_nbest_list(hypotheses, self.lm, self.config, self.missing))


SCALES = (2 / 3, 0.8, 1.0, 1.25, 1.5)
"""Acoustic scales to try, relative to the scale of the search with n-grams only."""
PENALTIES = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Word penalties to try, each added to that of the search with n-grams only."""


def rescore_ctc(
    splits: Mapping[str, SplitData],
    tune_on: Sequence[str],
    decoder: WordsDecoder,
    lm: BackoffModel,
    model: NeuralLm,
    config: NeuralRescoringConfig,
    out: Path,
    jobs: int,
    named: Mapping[str, str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Make n-best lists of every split by a CTC search, rescore them, and score the splits.

    An interrupted call starts again from the beginning: on the demo a call takes four seconds.

    Args:
      splits: the splits, by name.
      tune_on: the splits on which the weights are tuned.
      decoder: the tuned search with the n-grams.
      lm: the n-grams.
      model: the neural language model.
      config: lists and weights.
      out: the folder that gets `weights.json`, `grid.tsv`, `rows.json` and, by split, hypotheses
        and reports.
      jobs: threads.
      named: `system`, `lm` and `command` of the results.
      progress: called with (splits scored, splits).

    Returns:
      WER in percent by split, and the weight of the neural model.
    """
    first_weights, missing = to_weights(decoder.config), missing_words(lm, decoder.dictionary.words)

    @cache
    def lists(split: str, scale: float) -> RescoredLists:
        data, weights = splits[split], Weights(scale, first_weights.word_penalty)
        searched = decoder.configured(nbest_search_config(decoder.config, weights, config.count))
        start = processor_seconds()
        decoded = searched.decode_many(list(data.posteriors.values()), jobs)
        lists = {
            utterance: to_nbest_list(hypotheses, lm, searched.config, missing)
            for utterance, hypotheses in zip(data.posteriors, decoded, strict=True)
        }
        without_posteriors = [utterance for utterance in data.references if utterance not in lists]
        lists |= {utterance: NbestList((), (), (), ()) for utterance in without_posteriors}
        seconds = processor_seconds() - start
        return RescoredLists.of(lists, model, data.seconds, seconds)

    axes = weight_axes(
        [factor * first_weights.acoustic_scale for factor in SCALES],
        [first_weights.word_penalty + offset for offset in PENALTIES],
    )
    references = {split: data.references for split, data in splits.items()}
    speakers = {split: data.speakers for split, data in splits.items()}
    _, headline = rescore_lists(
        lists,
        references,
        speakers,
        tune_on,
        first_weights,
        axes,
        None,
        config,
        out,
        named,
        progress,
    )
    return headline
