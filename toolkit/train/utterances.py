"""Whole utterances in batches of similar length, in a fixed order: what validation runs on."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from toolkit.features.lfr import LOW_RATE_FACTOR, centre, stack
from toolkit.models.lstm import with_lookahead
from toolkit.parallel.batch import Batch
from toolkit.train.corpus import Corpus, Utterance

FRAMES_PER_BATCH = 16_384
"""Low-rate frames with padding, about 8 minutes; an utterance that is longer is a batch alone."""


class WholeUtterances:
    """Batches from the longest utterance to the shortest, stacked at offset 0."""

    def __init__(self, corpus: Corpus, lookahead: int) -> None:
        self._corpus = corpus
        self._lookahead = lookahead
        ordered = by_length(u for u in corpus.utterances if u.frames)
        room = FRAMES_PER_BATCH * LOW_RATE_FACTOR
        self._groups = [ordered[group] for group in grouped([u.frames for u in ordered], room)]

    def __iter__(self) -> Iterator[Batch]:
        return (padded(self._corpus, group, self._lookahead) for group in self._groups)


def padded(corpus: Corpus, group: Sequence[Utterance], lookahead: int) -> Batch:
    """Whole utterances, stacked at offset 0 and padded on the right, as one batch."""
    inputs, targets = [], []
    for utterance in group:
        features, raw_targets = corpus.load(utterance)
        inputs.append(with_lookahead(stack(features).float(), lookahead))
        targets.append(raw_targets[centre(len(features))].long())
    lengths = torch.tensor([len(row) for row in targets])
    return Batch(
        ids=[utterance.name for utterance in group],
        inputs=pad_sequence(inputs, batch_first=True),
        targets=pad_sequence(targets, batch_first=True),
        weights=(torch.arange(int(lengths.max())) < lengths[:, None]).float(),
        lengths=lengths,
        frames=int(lengths.sum()),
    )


def by_length(utterances: Iterable[Utterance]) -> list[Utterance]:
    """Sort from the longest to the shortest; the order does not depend on the one given."""
    return sorted(utterances, key=lambda u: (-u.frames, u.source, u.name))


def grouped(lengths: Iterable[int], frames: int) -> list[slice]:
    """Share rows out to batches of at most `frames` frames with padding.

    A batch ends where it is full or where a row longer than its first follows, so that rows that
    are sorted from long to short in stretches fill their batches within the limit. A row of more
    than `frames` is a batch alone.

    Args:
      lengths: above 0, of each row.
      frames: limit.

    Returns:
      The rows of each batch, one batch after the other.
    """
    groups: list[slice] = []
    longest = room = 0
    for row, length in enumerate(lengths):
        if room == 0 or length > longest:
            groups.append(slice(row, row))
            longest, room = length, max(1, frames // length)
        groups[-1] = slice(groups[-1].start, row + 1)
        room -= 1
    return groups
