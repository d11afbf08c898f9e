"""Words of an utterance: times by forced alignment, calibrated confidences, digital silence."""

import json
import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.align.config import AlignConfig
from toolkit.align.ctm_textgrid import TimedToken
from toolkit.align.force_align import (
    TranscriptGraphs,
    UtteranceAlignment,
    check_phones,
    force_align,
)
from toolkit.config.fields import Finite, Settings, read_plain
from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.ctc.kernels import advance_alignment
from toolkit.decode.ctc.search import LogProbs, as_array, space_label
from toolkit.errors import ToolkitError
from toolkit.features.silence import SilentSpans
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.nbest import sampled_words
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang
from toolkit.lang.units import Units
from toolkit.score.alignment import align
from toolkit.storage.files import write_atomically


class CalibrationError(ToolkitError):
    """Raised when a calibration file cannot be read."""


BINS = 10
"""Number of bins, of equal width, for the calibration error."""
PRIOR = np.array([0.0, 1.0])
"""Offset and slope of the calibration that leaves confidences as they are."""


def word_confidences(
    words: Sequence[Hashable], samples: Sequence[tuple[Hashable, ...]]
) -> list[float]:
    """Return, for each word, the share of sampled word sequences that contain it at its place.

    Sequences are aligned with `words` by edit distance, as in minimum Bayes risk decoding. So the
    times at which a lattice outputs its words do not matter, and the two occurrences of a repeated
    word are kept apart. Half a count is added for agreement and half a count against it, so that no
    share is 0 or 1.

    Args:
      words: the recognised words, by their ids or names.
      samples: sampled word sequences, such as from `toolkit.fsa.nbest.sampled_words`.
    """
    agreeing = np.full(len(words), 0.5)
    # Equal samples are aligned only once.
    counts: dict[tuple[Hashable, ...], int] = {}
    for sample in samples:
        counts[sample] = counts.get(sample, 0) + 1
    for sample, count in counts.items():
        # Pairs (word, sampled word), None for an insertion or a deletion.
        pairs = align(list(words), list(sample))
        agreeing += [
            count * (word == sampled_word) for word, sampled_word in pairs if word is not None
        ]
    return (agreeing / (len(samples) + 1)).tolist()


@dataclass(frozen=True)
class Calibration(Settings):
    """A linear map from the log-odds of posteriors to those of calibrated probabilities."""

    offset: Finite = 0.0
    slope: Finite = 1.0

    @classmethod
    def fit(cls, confidences: Sequence[float], correct: Sequence[bool]) -> "Calibration":
        """Fit the map by logistic regression, with standard normal priors on offset and slope - 1.

        The prior keeps the calibration near the identity when there is little data, and gives a
        fit even where all words are right.

        Args:
          confidences: posteriors between 0 and 1, both excluded.
          correct: whether each word was right.
        """
        odds = _log_odds(np.asarray(confidences, dtype=float))
        targets = np.asarray(correct, dtype=float)
        inputs = np.stack([np.ones_like(odds), odds])  # [2, N] for N words

        def log_posterior(line: np.ndarray) -> float:
            # sum_n y_n z_n - log(1 + exp z_n), with y_n = 1 for right words, else 0, and
            # z = offset + slope * odds; minus the prior's |line - PRIOR|^2 / 2.
            logits = line @ inputs
            prior = 0.5 * float(((line - PRIOR) ** 2).sum())
            return float((targets * logits - np.logaddexp(0, logits)).sum()) - prior

        line = PRIOR
        for _ in range(100):  # Newton steps, halved until they improve the fit
            # Gradient X (y - p) and negative Hessian X diag(p (1 - p)) X^T, both with the prior's
            # part; X is `inputs`, p the probability that a word is right.
            probability = _sigmoid(line @ inputs)
            gradient = inputs @ (targets - probability) - (line - PRIOR)
            curvature = (inputs * (probability * (1 - probability))) @ inputs.T + np.eye(2)
            step = np.linalg.solve(curvature, gradient)
            while log_posterior(line + step) < log_posterior(line) and np.abs(step).max() > 1e-9:
                step = step / 2
            if np.abs(step).max() <= 1e-9:
                break
            line = line + step
        return cls(float(line[0]), float(line[1]))

    def __call__(self, confidences: Sequence[float]) -> list[float]:
        """Return the calibrated probability that each word is correct."""
        odds = _log_odds(np.asarray(confidences, dtype=float))
        return _sigmoid(self.offset + self.slope * odds).tolist()

    def save(self, path: Path) -> None:
        """Write the calibration as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Read the calibration that `save` wrote.

        Raises:
          CalibrationError: the file cannot be read; the message names it.
        """
        return read_plain(path, cls, CalibrationError, "decode again")


def calibration_error(confidences: Sequence[float], correct: Sequence[bool]) -> float:
    """Return the expected calibration error (ECE), between 0 and 1.

    This is the mean over words of |mean confidence - share of right words| in the word's bin, with
    `BINS` bins of equal width.
    """
    if not len(confidences):
        return float("nan")
    values, targets = np.asarray(confidences), np.asarray(correct, dtype=float)
    bins = np.minimum((values * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, values - targets, minlength=BINS)
    return float(np.abs(gaps).sum() / len(values))


def cross_entropy_gain(confidences: Sequence[float], correct: Sequence[bool]) -> float:
    """Return the normalised cross entropy (NCE) as NIST defines it.

    It is 1 for confidences that are certain and right, 0 for those that tell no more than the
    error rate, and negative for misleading ones. It is NaN if all words are right or all are wrong.
    """
    values, targets = np.asarray(confidences), np.asarray(correct, dtype=float)
    share = targets.mean() if len(targets) else 0.0
    if share in (0.0, 1.0):
        return float("nan")
    prior = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    entropy = -np.log(np.where(targets > 0, values, 1 - values)).mean()
    return float((prior - entropy) / prior)


def _log_odds(values: np.ndarray) -> np.ndarray:
    """Return log(p / (1 - p))."""
    return np.log(values) - np.log1p(-values)


def _sigmoid(values: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-values))


SAMPLES = 200
"""Number of lattice paths sampled for confidences."""


class WordAligner:
    """Finds the times and confidences of recognised words.

    Args:
      lang: the folder of the lexicon.
      senones: the acoustic model's senones.
      calibration: the file of the confidences' calibration; None leaves the lattice posteriors as
        they are.
      frame_shift: seconds between rows of scores.
      beam: search beam of the forced alignment.

    Raises:
      GraphMismatchError: lexicon and senones have different phones.
    """

    def __init__(
        self,
        lang: Path,
        senones: Senones,
        calibration: Path | None,
        frame_shift: float,
        beam: float,
    ) -> None:
        self._compiler = TranscriptGraphs(Lang.load(lang), senones)
        check_phones(lang, self._compiler.lang, senones)
        self._calibration = Calibration.load(calibration) if calibration else Calibration()
        self.frame_shift = frame_shift
        self._beam = beam

    def __call__(
        self, lattice: ScoredLattice, weights: Weights, scores: Tensor, scale: float
    ) -> list[TimedToken]:
        """Return the words of the best path with their times and confidences.

        Args:
          lattice: the lattice of one utterance.
          weights: acoustic scale and word penalty of the best path.
          scores: [T, P] log-likelihoods times `scale`.
          scale: the acoustic scale of the search.
        """
        # The posterior of a word on the best path is its share in sampled paths.
        best = lattice.best_path(weights)
        names = [self.symbol(word) for word in best.words]
        samples = sampled_words(lattice, weights, SAMPLES)
        posteriors = word_confidences(best.words, samples)
        starts = best.word_frames
        return self.timed(names, posteriors, scores, scale, [*starts, len(scores)])

    def timed(
        self,
        words: Sequence[str],
        posteriors: Sequence[float],
        scores: Tensor,
        scale: float,
        bounds: Sequence[int] | None = None,
    ) -> list[TimedToken]:
        """Return words with their times and confidences.

        Args:
          words: the recognised words.
          posteriors: the posterior of each word, not calibrated.
          scores: [T, P] log-likelihoods times `scale`.
          scale: the acoustic scale of the search.
          bounds: each word's first frame, then T; used if no alignment survives the beam. None: all
            words then get the same length.
        """
        if not words:
            return []
        spans = self.spans(words, scores, scale)
        if spans is None:
            if bounds is None:
                # Words of equal length.
                bounds = [n * len(scores) // len(words) for n in range(len(words) + 1)]
            spans = list(pairwise(bounds))
        confidences = self._calibration(posteriors)
        return [
            TimedToken(
                name,
                round(start * self.frame_shift, 3),
                round(end * self.frame_shift, 3),
                confidence,
            )
            for name, (start, end), confidence in zip(words, spans, confidences, strict=True)
        ]

    def text(self, words: Sequence[int]) -> str:
        """Return the words with these ids, separated by spaces."""
        return " ".join(map(self.symbol, words))

    def symbol(self, word: int) -> str:
        """Return the word with this id."""
        return self._compiler.lang.words.symbol(word)

    def spans(
        self, words: Sequence[str], scores: Tensor, scale: float
    ) -> list[tuple[int, int]] | None:
        """Return each word's first frame and end frame (exclusive) by forced alignment.

        The best path itself does not give these frames: a decoding graph outputs a word when no
        other word is possible any more, which is often late. The result is None if no alignment
        survives the beam.

        Args:
          words: the recognised words, at least one.
          scores: [T, P] log-likelihoods times `scale`.
          scale: the acoustic scale of the search.
        """
        # A linear graph of the words needs few of the P columns, unscaled.
        graph = self._compiler.compile(words)
        columns = scores[:, graph.pdfs] / scale
        config = AlignConfig(scale, beam=self._beam)
        (aligned,) = force_align([columns], [graph], self._compiler.senones, config)
        return aligned and self._ends(aligned)

    def _ends(self, aligned: UtteranceAlignment) -> list[tuple[int, int]]:
        """Return the words' spans; a word ends where the next word or a silence begins."""
        # Phones follow each other without gaps: each ends where the next begins. The last phone of
        # a word is the one before the next word's first, or before the silence between them.
        starts, silence = aligned.phone_frames, self._compiler.senones.topology.silence
        ends = [*starts[1:], len(aligned.pdfs)]
        next_words = [*aligned.word_phones[1:], len(starts)]
        last = [phone - 1 - (aligned.phones[phone - 1] == silence) for phone in next_words]
        return [
            (starts[first], ends[end]) for first, end in zip(aligned.word_phones, last, strict=True)
        ]


PENALTY = 100.0
"""In digital silence, the log-likelihoods of all outputs but silence are at least this much below
the best of silence: after scaling by 0.05 to 1, that is 5 or more, for beams of 13 to 17."""


class SilencePosteriors:
    """Computes the posterior of silence and noise, summed over their senones.

    Args:
      senones: the acoustic model's senones.
      log_priors: [P] the log-priors that turned the model's posteriors into likelihoods.
    """

    def __init__(self, senones: Senones, log_priors: Tensor) -> None:
        topology = senones.topology
        silent = [topology.is_silence(int(phone)) for phone in senones.phone_of_pdf]
        self._silent = torch.tensor(silent)
        self._log_priors = log_priors

    def __call__(self, log_likelihoods: Tensor) -> Tensor:
        """Map [T, P] log p(x | s), up to a constant per frame, to [T] p(silence | x)."""
        # p(s | x) is proportional to p(x | s) p(s).
        posteriors = (log_likelihoods + self._log_priors).softmax(dim=1)
        return posteriors[:, self._silent].sum(dim=1)


def silence_pdfs(senones: Senones) -> Tensor:
    """Return which pdfs belong to pauses between words: [P] bool.

    Pdfs of noise are not included, unless noise and silence share a root of the tree.
    """
    topology = senones.topology
    pauses = torch.tensor(topology.phone_of_state_id) == topology.silence
    silent = torch.zeros(senones.num_pdfs, dtype=torch.bool)
    silent[senones.table[pauses].unique().long()] = True
    return silent


class SilenceGate:
    """Keeps words out of the digital silence of an utterance or stream.

    In the spans that `toolkit.features.silence.SilentSpans` finds, the scores of all outputs but
    those of silence are lowered to `PENALTY` below the best of silence. If `keep` is set, the model
    does not get whole rows of silence, except the first `keep` of a span that follows sound, and
    the gate makes their scores. So the model's state does not depend on the length of a silence.
    If an utterance begins with silence, its rows are counted from its first sound.

    The gate must get features before the rows of scores that a model computes from them; the pieces
    may have any length.

    Args:
      kind: the kind of the raw features, see `FrontendConfig.kind`.
      silence: [P] bool, which outputs are silence.
      factor: frames from one row of scores to the next.
      offset: number of the middle frame among those that the first row covers.
      keep: at least the model's lookahead, in rows: until it has them, a stream cannot finish the
        rows before the silence. None: the model gets all frames, as it must if its rows share
        frames.
    """

    def __init__(
        self, kind: str, silence: Tensor, factor: int, offset: int, keep: int | None
    ) -> None:
        self._spans, self._silence_outputs = SilentSpans(kind), silence
        self._factor, self._offset, self._keep = factor, offset, keep
        self._waiting: Tensor | None = None  # frames [t, F] of a row that is not complete
        self.begin_utterance()

    def begin_utterance(self) -> None:
        """Start a new utterance; a span of digital silence may continue into it."""
        self._silent_frames = torch.zeros(0, dtype=torch.bool)  # of the utterance so far
        self._is_silent: list[bool] = []  # by complete row
        self._is_used: deque[bool] = deque()  # by row that the model has yet to score
        self._silent_rows = 0  # at the end
        self._has_sound = False
        self._skipped = 0  # frames of silence before the first sound that are no whole row
        self._row = 0
        self.finish()

    def push(self, features: Tensor) -> Tensor:
        """Take the utterance's next raw features [T, F]; return those that the model scores."""
        self._silent_frames = torch.cat([self._silent_frames, self._spans.push(features)])
        if self._keep is None:
            self._waiting = features[:0]
            return features
        waiting = features if self._waiting is None else torch.cat([self._waiting, features])
        if not self._has_sound:
            waiting = self._without_silence_at_start(waiting)
        num_rows = len(waiting) // self._factor
        begin, size = len(self._is_silent) * self._factor + self._skipped, num_rows * self._factor
        silent = self._silent_frames[begin : begin + size].view(num_rows, self._factor).all(dim=1)
        scored = []
        for is_silent in silent.tolist():
            scored.append(not is_silent or self._silent_rows < self._keep)
            if scored[-1]:
                self._is_used.append(not is_silent)
            self._silent_rows = self._silent_rows + 1 if is_silent else 0
        self._is_silent += silent.tolist()
        self._waiting = waiting[size:]
        frames = torch.tensor(scored, dtype=torch.bool).repeat_interleave(self._factor)
        return waiting[:size][frames]

    def _without_silence_at_start(self, frames: Tensor) -> Tensor:
        """Return the last frames [T, F] so far from the first sound on; without sound, the last."""
        silent = self._silent_frames[len(self._silent_frames) - len(frames) :]
        num_silent = int(silent.to(torch.int8).cumprod(0).sum())
        num_rows, num_left = divmod(num_silent, self._factor)
        self._is_silent += [True] * num_rows
        self._has_sound = num_silent < len(frames)
        if self._has_sound:
            self._skipped = num_left
            return frames[num_silent:]
        return frames[num_silent - num_left :]

    def finish(self) -> Tensor:
        """Return the remaining frames, which are less than a row."""
        if self._waiting is None:
            return torch.zeros(0, 0)
        remaining, self._waiting = self._waiting, self._waiting[:0]
        return remaining

    def push_utterance(self, features: Tensor) -> Tensor:
        """Take a whole utterance [T, F]; return the features that the model scores."""
        return torch.cat([self.push(features), self.finish()])

    def __call__(self, scores: Tensor) -> Tensor:
        """Take the model's next unscaled scores [t, P]; return the rows [T', P] that are known."""
        # 1. Put rows of silence between those of the model. The last row may be incomplete.
        used = [not self._is_used or self._is_used.popleft() for _ in range(len(scores))]
        scores = scores[torch.tensor(used, dtype=torch.bool)]
        added: list[bool] = []
        num_taken = 0
        while True:
            row = self._row + len(added)
            is_silent = row < len(self._is_silent) and self._is_silent[row]
            if not is_silent and num_taken == len(scores):
                break
            added.append(is_silent)
            num_taken += not is_silent
        rows = torch.arange(self._row, self._row + len(added))
        self._row += len(added)
        if not self._silent_frames.any():
            return scores
        is_added = torch.tensor(added, dtype=torch.bool)
        gated = scores.new_full((len(added), scores.shape[1]), -PENALTY)
        gated[:, self._silence_outputs] = 0.0
        gated[~is_added] = scores
        # 2. A row of the model counts as silent if the middle one of its frames is.
        middle = rows * self._factor + self._skipped + self._offset
        middle = middle.clamp(max=len(self._silent_frames) - 1)
        silent = self._silent_frames[middle] & ~is_added
        best = gated[silent][:, self._silence_outputs].amax(dim=1, keepdim=True)
        # Lower all outputs but silence to at least PENALTY below the best of silence.
        lowered = torch.minimum(gated[silent], best) - PENALTY
        gated[silent] = torch.where(self._silence_outputs, gated[silent], lowered)
        return gated


@dataclass(frozen=True)
class LabelTimes:
    """The frames of a text's labels in the best path."""

    starts: np.ndarray
    """[L] first frame of each label."""
    ends: np.ndarray
    """[L] last frame of each label, plus 1."""
    log_posteriors: np.ndarray
    """[L] sum of each label's log-probabilities over its frames."""
    score: float
    """Log-probability of the path."""


def align_labels(log_probs: np.ndarray, labels: Sequence[int], blank: int) -> LabelTimes:
    """Find the best path of a label sequence through CTC log-probabilities.

    The search is exact, without pruning. Memory grows with the square root of the number of frames:
    the scores are kept at the start of each block of frames, and the path is found block by block
    from the end.

    Args:
      log_probs: [T, C] float32 without NaN.
      labels: [L] without blanks, at least one.
      blank: the blank's column.

    Raises:
      CtcDecodeError: there is no path, because there are too few frames, or because the text has
        probability 0.
    """
    frames, states = len(log_probs), 2 * len(labels) + 1
    marks = np.asarray(labels, dtype=np.int64)
    # A blank must lie between equal labels.
    needed = len(labels) + int((marks[1:] == marks[:-1]).sum())
    if frames < needed:
        raise CtcDecodeError(
            f"{frames} frames are too few for a text of {needed} symbols. Check that the audio "
            "and the text belong together"
        )
    # Blocks of sqrt(T) frames: forward once, keeping the scores at each block's start.
    size = max(1, math.isqrt(frames))
    blocks = [log_probs[begin : begin + size] for begin in range(0, frames, size)]
    scores = np.full(states, -math.inf)
    scores[0] = 0.0  # as after a blank
    no_steps = np.zeros((0, states), np.int8)
    checkpoints = []
    for block in blocks:
        checkpoints.append(scores.copy())
        advance_alignment(block, marks, blank, scores, no_steps)
    # The path ends in the last blank or in the last label.
    state = states - 1 if scores[-1] >= scores[-2] else states - 2
    score = float(scores[state])
    if score == -math.inf:
        raise CtcDecodeError(
            "the text has probability 0 under the network's posteriors. Check that the audio and "
            "the text belong together"
        )
    # Backward, block by block: the steps of a block are computed again from its checkpoint.
    path = np.zeros(frames, np.int64)
    for number in range(len(blocks) - 1, -1, -1):
        block, begin = blocks[number], number * size
        steps = np.zeros((len(block), states), np.int8)
        advance_alignment(block, marks, blank, checkpoints[number], steps)
        for t in range(len(block) - 1, -1, -1):
            path[begin + t] = state
            state -= int(steps[t, state])
    # Odd states are labels: their first and last frames, and log-posteriors summed by label.
    rows = np.flatnonzero(path % 2)
    label = path[rows] // 2
    starts = rows[np.searchsorted(label, np.arange(len(marks)))]
    ends = rows[np.searchsorted(label, np.arange(len(marks)), side="right") - 1] + 1
    log_probs_on_path = log_probs[rows, marks[label]].astype(np.float64)
    return LabelTimes(starts, ends, np.bincount(label, log_probs_on_path, len(marks)), score)


@dataclass(frozen=True)
class CtcAlignment:
    """Times and confidences of a text's words and units."""

    words: tuple[TimedToken, ...]
    """The text's words. A word's confidence is the geometric mean of the posteriors of its labels
    in their frames."""
    units: tuple[TimedToken, ...]
    """The text's units, without spaces."""
    log_likelihood_per_frame: float
    """Log-probability of the best path, divided by the number of frames."""
    confidence: float
    """Confidence of all labels together."""


class CtcWordAligner:
    """Finds the times of words and of their output units with CTC log-probabilities.

    Args:
      units: the network's output units.
      frame_shift: seconds between rows of log-probabilities.
      offset: start time of the first row, in seconds.
    """

    def __init__(self, units: Units, frame_shift: float, offset: float) -> None:
        self._units, self._shift, self._offset = units, frame_shift, offset
        self._space = space_label(units)

    def __call__(self, words: Sequence[str], log_probs: LogProbs) -> CtcAlignment:
        """Align words with CTC log-probabilities.

        Args:
          words: words that the units can write.
          log_probs: [T, C].

        Raises:
          CtcDecodeError: there are fewer frames than labels.
          UnitsError: the units cannot write a word.
        """
        labels, spans = self._labels(words)
        if not labels:
            return CtcAlignment((), (), 0.0, 0.0)
        array = as_array(log_probs, self._units.size)
        times = align_labels(array, labels, self._units.blank)
        symbols = self._units.symbols
        units = tuple(
            self._spoken(symbols[label], times, i, i + 1)
            for i, label in enumerate(labels)
            if label != self._space
        )
        return CtcAlignment(
            tuple(self._spoken(w, times, *span) for w, span in zip(words, spans, strict=True)),
            units,
            times.score / len(array),
            _confidence(times, 0, len(labels)),
        )

    def uniform_times(self, words: Sequence[str], frames: int) -> tuple[TimedToken, ...]:
        """Return words of equal length with confidence 0, for text with too few frames to align."""
        bounds = [self._seconds(frames * n / len(words)) for n in range(len(words) + 1)]
        spans = zip(words, bounds[:-1], bounds[1:], strict=True)
        return tuple(TimedToken(word, start, end, 0.0) for word, start, end in spans)

    def _labels(self, words: Sequence[str]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return a text's labels, and where each word begins and ends in them."""
        labels: list[int] = []
        spans = []
        for word in words:
            if labels and self._space >= 0:
                labels.append(self._space)
            begin = len(labels)
            labels += self._units.encode(word)
            spans.append((begin, len(labels)))
        return labels, spans

    def _spoken(self, name: str, times: LabelTimes, begin: int, end: int) -> TimedToken:
        """Make the token `name` from the labels from `begin` to `end` (exclusive)."""
        start, stop = map(self._seconds, (times.starts[begin], times.ends[end - 1]))
        return TimedToken(name, start, stop, _confidence(times, begin, end))

    def _seconds(self, frame: float) -> float:
        """Convert a frame number to seconds."""
        return round(self._offset + float(frame) * self._shift, 3)


def _confidence(times: LabelTimes, begin: int, end: int) -> float:
    """Return the geometric mean of the labels' posteriors in their frames."""
    frames = np.sum(times.ends[begin:end] - times.starts[begin:end])
    return float(np.exp(np.sum(times.log_posteriors[begin:end]) / frames))
