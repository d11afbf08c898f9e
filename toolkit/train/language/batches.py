"""Batches of sentences of similar length."""

from collections.abc import Iterator

import numpy as np
import torch

from toolkit.lang.shortlist import SPECIAL
from toolkit.lang.tables import END, START
from toolkit.train.batches import Batch
from toolkit.train.language.text import Sentences

FIRST, LAST = SPECIAL.index(START), SPECIAL.index(END)


class SentenceBatches:
    """A `BatchSource` of sentences: `inputs` [N, T] begin with <s>, `targets` end with </s>.

    Sentences are sorted by length, those of one length anew in every epoch, and cut into batches
    that are read in another order in every epoch.

    Args:
      sentences: the text.
      words: words per batch, with sentence ends and padding; a longer sentence is a batch.
      seed: of the order.
    """

    def __init__(self, sentences: Sentences, words: int, seed: int) -> None:
        self._sentences = sentences
        self._seed = seed
        self._lengths = sentences.lengths
        self._cuts = _cuts(np.sort(self._lengths) + 1, words)

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """See `BatchSource`; all epochs have as many."""
        return (len(self._cuts) - 1) // world_size

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """See `BatchSource`."""
        random = np.random.default_rng([self._seed, epoch])
        order = np.lexsort((random.random(len(self._lengths)), self._lengths))
        turns = random.permutation(len(self._cuts) - 1)
        for step in range(start, self.num_steps(epoch, world_size)):
            number = turns[step * world_size + rank]
            yield self._batch(order[self._cuts[number] : self._cuts[number + 1]])

    def __iter__(self) -> Iterator[Batch]:
        """Every batch once, in order of length, to validate on."""
        order = np.argsort(self._lengths, kind="stable")
        for start, end in zip(self._cuts, self._cuts[1:], strict=False):
            yield self._batch(order[start:end])

    def _batch(self, numbers: np.ndarray) -> Batch:
        lengths = self._lengths[numbers] + 1
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
    """Positions where ascending lengths are cut, so that rows times the longest are `words`."""
    cuts = [0]
    for end in range(1, len(lengths) + 1):
        if (end - cuts[-1]) * lengths[end - 1] > words and end - 1 > cuts[-1]:
            cuts.append(end - 1)
    return [*cuts, len(lengths)]
