"""Validation data: whole utterances in batches of similar length, in a fixed order."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, centre, stack
from toolkit.models.lstm import with_lookahead
from toolkit.train.batches import Batch
from toolkit.train.corpus import Corpus, Utterance

FRAMES_PER_BATCH = 16_384
"""Low-rate frames including padding, about 8 minutes; a longer utterance is a batch of its own."""


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
    """Make a batch of whole utterances, stacked at offset 0 and padded on the right."""
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
    """Sort from the longest to the shortest, independently of the order given."""
    return sorted(utterances, key=lambda u: (-u.frames, u.source, u.name))


def grouped(lengths: Iterable[int], frames: int) -> list[slice]:
    """Divide rows into batches of at most `frames` frames including padding.

    A batch ends where it is full or where a row longer than its first follows, so that runs of rows
    sorted from long to short fill their batches within the limit. A row of more than `frames`
    frames is a batch of its own.

    Args:
      lengths: of each row, above 0.
      frames: the limit.

    Returns:
      The slice of rows of each batch, in order.
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
