"""Training of the LSTM language model: text, batches, sampled softmax."""

import logging
import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from toolkit.lang.tables import END, START
from toolkit.models.lstm import WordLstm
from toolkit.models.neural_lm import SPECIAL, NeuralLm, Shortlist
from toolkit.train.batches import Batch
from toolkit.train.checkpoints import finish_training, finished_headline, training_identity
from toolkit.train.config import NeuralLmConfig
from toolkit.train.errors import TrainingDataError
from toolkit.train.monitor import Progress
from toolkit.train.trainer import fit

logger = logging.getLogger(__name__)
FIRST, LAST = SPECIAL.index(START), SPECIAL.index(END)
SMOOTHING = 0.75
"""Exponent of the counts with which words are drawn. Below 1, rare words are drawn more often than
they occur."""


@dataclass(frozen=True)
class Sentences:
    """Sentences one after another in one array, without <s> and </s>."""

    words: np.ndarray
    """int32, the ids of all words."""
    ends: np.ndarray
    """int64, by sentence: the position after its last word."""

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int]]) -> "Sentences":
        """Join sentences of word ids."""
        joined = Joined()
        for words in sentences:
            joined.add(words)
        return joined.sentences()

    @property
    def lengths(self) -> np.ndarray:
        """Number of words of each sentence."""
        return np.diff(self.ends, prepend=0)

    def __getitem__(self, number: int) -> np.ndarray:
        """Return the words of a sentence."""
        start = self.ends[number - 1] if number else 0
        return self.words[start : self.ends[number]]

    def __len__(self) -> int:
        return len(self.ends)


class Joined:
    """Collects sentences compactly: 8 bytes for each sentence and 4 for each word.

    A list of arrays would take 250 bytes more per sentence.
    """

    def __init__(self) -> None:
        self._words, self._ends = array("i"), array("q")

    def add(self, words: Iterable[int]) -> None:
        """Append a sentence, as word ids."""
        self._words.extend(words)
        self._ends.append(len(self._words))

    def sentences(self) -> Sentences:
        """Return all collected sentences."""
        words = np.asarray(self._words, dtype=np.int32)
        return Sentences(words, np.asarray(self._ends, dtype=np.int64))


@dataclass(frozen=True)
class LmText:
    """The text that a neural language model is trained on."""

    shortlist: Shortlist
    """The words that the network tells apart."""
    train: Sentences
    """Sentences to train on."""
    valid: Sentences
    """Sentences that are held out for validation."""
    counts: np.ndarray
    """int64 [V], how often each word of the shortlist is to be predicted in `train`."""


def prepare_text(
    sentences: Callable[[], Iterable[Sequence[str]]],
    vocabulary: Collection[str],
    size: int | None,
    held_out: int,
) -> LmText:
    """Choose the shortlist, hold out sentences, and number the words.

    Sentences are held out by a checksum of their words: the same in every training, and all copies
    of a sentence together.

    Args:
      sentences: yields the normalised words of every sentence; called twice.
      vocabulary: the recogniser's words.
      size: largest number of words in the shortlist; None takes all that occur.
      held_out: one sentence in this many is held out.

    Raises:
      TrainingDataError: there is too little text to train or to validate on.
    """
    # 1. Count the words of the training sentences alone.
    counts: Counter[str] = Counter()
    for words in sentences():
        if crc32(" ".join(words).encode()) % held_out:
            counts.update(words)
    shortlist = Shortlist.of(counts, vocabulary, size)
    # 2. Number the words of all sentences; `parts` are the training and the held-out ones.
    parts = Joined(), Joined()
    for words in sentences():
        is_held_out = not crc32(" ".join(words).encode()) % held_out
        parts[is_held_out].add(shortlist.ids(words))
    train, valid = (part.sentences() for part in parts)
    if not len(train) or not len(valid):
        raise TrainingDataError(
            f"too little text for a language model: {len(train)} training sentences and "
            f"{len(valid)} held-out sentences. Set `lm.text` to more text, or `lstm_lm.held_out` "
            "to a smaller number"
        )
    # 3. Every word is predicted as often as it occurs, and </s> once per sentence.
    predicted = np.bincount(train.words, minlength=len(shortlist.words))
    predicted[shortlist.ids(["</s>"])] = len(train)
    return LmText(shortlist, train, valid, predicted)


class SentenceBatches:
    """A `BatchSource` of sentences: `inputs` [N, T] begin with <s>, `targets` end with </s>.

    Sentences are sorted by length, with those of equal length in random order, and cut into
    batches, which are read in random order. Both orders change with every epoch.

    Args:
      sentences: the sentences of the text.
      words: words per batch, with sentence ends and padding; a longer sentence is its own batch.
      seed: seed of the order.
    """

    def __init__(self, sentences: Sentences, words: int, seed: int) -> None:
        self._sentences = sentences
        self._seed = seed
        self._lengths = sentences.lengths
        self._cuts = _cuts(np.sort(self._lengths) + 1, words)  # with the sentence end

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """Implement `BatchSource.num_steps`; the number is the same in all epochs."""
        return (len(self._cuts) - 1) // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Implement `BatchSource.batches`."""
        random = np.random.default_rng([self._seed, epoch])
        # By length, the last key; sentences of equal length in random order. Thus the lengths in a
        # batch are those for which `_cuts` was computed.
        order = np.lexsort((random.random(len(self._lengths)), self._lengths))
        turns = random.permutation(len(self._cuts) - 1)
        for step in range(start, self.num_steps(epoch, world_size)):
            number = turns[step * world_size + rank]
            yield self._batch(order[self._cuts[number] : self._cuts[number + 1]])

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch once, in order of length, for validation."""
        order = np.argsort(self._lengths, kind="stable")
        for start, end in zip(self._cuts, self._cuts[1:], strict=False):
            yield self._batch(order[start:end])

    def _batch(self, numbers: np.ndarray) -> Batch:
        """Make a batch of the sentences with these numbers."""
        lengths = self._lengths[numbers] + 1  # with <s> before, or </s> after the words
        inputs = np.full((len(numbers), lengths.max()), LAST)
        targets = np.full_like(inputs, LAST)
        inputs[:, 0] = FIRST
        for row, number in enumerate(numbers):
            words = self._sentences[number]
            inputs[row, 1 : len(words) + 1] = words
            targets[row, : len(words)] = words
        weights = np.arange(lengths.max()) < lengths[:, None]
        return Batch(
            ids=[f"sentence {number + 1}" for number in numbers],
            inputs=torch.from_numpy(inputs),
            targets=torch.from_numpy(targets),
            weights=torch.from_numpy(weights).float(),
            lengths=torch.from_numpy(lengths),
            frames=int(lengths.sum()),
        )


def _cuts(lengths: np.ndarray, words: int) -> list[int]:
    """Return where to cut ascending lengths into batches of at most `words`, including padding."""
    cuts = [0]
    for end in range(1, len(lengths) + 1):
        if (end - cuts[-1]) * lengths[end - 1] > words and end - 1 > cuts[-1]:
            cuts.append(end - 1)
    return [*cuts, len(lengths)]


class SampledSoftmaxLoss:
    """Minus the log-probability of the words, summed; `stats` holds `weight`, their number.

    If the vocabulary has more than `samples` words, the softmax is estimated in training. Its
    denominator is the target's own exponential plus an unbiased estimate of the sum over all other
    words, from words that are drawn once for the batch. The exponential of a drawn word is divided
    by the number of times that it is expected to be drawn. Held-out text is always scored exactly.

    Args:
      counts: [V], how often each word is to be predicted in the text.
      samples: words drawn for a batch.
    """

    def __init__(self, counts: Tensor, samples: int) -> None:
        self._samples = samples
        # Words are drawn by q(w) proportional to (count + 1)^SMOOTHING: rare ones more often.
        noise = (counts.double() + 1) ** SMOOTHING
        self._noise = (noise / noise.sum()).float()

    def __call__(self, model: WordLstm, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Implement `Objective.__call__`."""
        hidden, _ = model(batch.inputs)  # [N, T, H]
        hidden, targets = hidden.flatten(0, 1), batch.targets.flatten()
        weights = batch.weights.flatten()
        if model.training and self._samples < len(self._noise):
            self._noise = self._noise.to(hidden.device)
            drawn = torch.multinomial(self._noise, self._samples, replacement=True)
            losses = sampled_losses(model, hidden, targets, drawn, self._noise)
        else:
            logits = model.output(hidden).float()
            losses = functional.cross_entropy(logits, targets, reduction="none")
        return (losses * weights).sum(), {"weight": weights.sum()}


def sampled_losses(
    model: WordLstm, hidden: Tensor, targets: Tensor, drawn: Tensor, noise: Tensor
) -> Tensor:
    """Estimate minus the log-probability of each target: [N].

    Args:
      model: the model whose output layer is used.
      hidden: [N, H] output of the LSTM before each target.
      targets: [N] word ids.
      drawn: [S] words drawn independently from `noise`.
      noise: [V] probabilities.
    """
    weight, bias = model.output.weight, model.output.bias
    # [N] logit of the word itself
    target_logits = (hidden * functional.embedding(targets, weight)).sum(dim=1) + bias[targets]
    # [S] log of a word's expected count among those drawn, by which its exponential is divided
    log_expected = noise[drawn].log() + math.log(len(drawn))
    # [N, S] logits of the drawn words, without the word itself
    weights = functional.embedding(drawn, weight)
    drawn_logits = torch.addmm(bias[drawn] - log_expected, hidden, weights.t())
    drawn_logits = drawn_logits.float().masked_fill(targets[:, None] == drawn, -math.inf)
    target_logits = target_logits.float()
    # log(exp(z_w) + sum_s exp(z_s) / (S q(s))) with logits z: the sum over draws s from q is an
    # unbiased estimate of that over all other words (importance sampling, Bengio and Senecal 2003).
    log_denominator = torch.logaddexp(target_logits, torch.logsumexp(drawn_logits, dim=1))
    return log_denominator - target_logits


def train_neural_lm(
    sentences: Callable[[], Iterable[Sequence[str]]],
    vocabulary: Collection[str],
    config: NeuralLmConfig,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train a language model, or resume an interrupted training in `out`.

    Writes into `out`: the model (`config.json`, `model.safetensors`, `shortlist.json`),
    `history.json`, `headline.json` and TensorBoard events.

    Args:
      sentences: yields the normalised words of every sentence; called twice.
      vocabulary: the recogniser's words.
      config: sizes, rates, seed.
      out: folder of this training alone.
      device: device to train on.
      progress: called from time to time as progress(steps done, total steps).

    Returns:
      `perplexity` of the kept weights on held-out sentences, with words outside the shortlist
      scored as <UNK>; `words` per epoch, `words_per_second` of the last epoch.

    Raises:
      TrainingDataError: too little text.
      TrainingError: the training failed, or `out` holds another training.
    """
    out = Path(out)
    identity = training_identity(config)
    headline = finished_headline(out, identity)
    if headline is not None:
        return headline
    text = prepare_text(sentences, vocabulary, config.vocabulary_size, config.held_out)
    torch.manual_seed(config.seed)
    model = WordLstm(replace(config.model, vocabulary=len(text.shortlist.words)))
    logger.info(
        "%d training sentences, %d held-out sentences, %d words, %.1f M parameters",
        len(text.train),
        len(text.valid),
        len(text.shortlist.words),
        sum(parameter.numel() for parameter in model.parameters()) / 1e6,
    )
    result = fit(
        model,
        SampledSoftmaxLoss(torch.from_numpy(text.counts), config.samples),
        SentenceBatches(text.train, config.words_per_batch, config.seed),
        config,
        out,
        device=device,
        valid=SentenceBatches(text.valid, config.words_per_batch, config.seed),
        identity=identity,
        progress=progress,
    )
    NeuralLm(model, text.shortlist).save(out)
    headline = {
        "perplexity": math.exp(-result.score),  # the score is minus the loss per word
        "words": len(text.train.words),
        "words_per_second": result.history[-1]["frames_per_second"],
    }
    return finish_training(out, identity, headline)
