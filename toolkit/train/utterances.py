"""Whole utterances in batches of similar length, in a fixed order: what validation runs on."""

from collections.abc import Iterator, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from toolkit.features.lfr import centre, stack
from toolkit.models.lstm import with_lookahead
from toolkit.train.batch import Batch
from toolkit.train.corpus import Corpus, Utterance

FRAMES_PER_BATCH = 16_384
"""Low-rate frames with padding, about 8 minutes; an utterance that is longer is a batch alone."""


class WholeUtterances:
    """Batches from the longest utterance to the shortest, stacked at offset 0."""

    def __init__(self, corpus: Corpus, lookahead: int) -> None:
        self._corpus = corpus
        self._lookahead = lookahead
        self._groups = _grouped([u for u in corpus.utterances if u.frames])

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


def _grouped(utterances: list[Utterance]) -> list[list[Utterance]]:
    groups: list[list[Utterance]] = []
    room = 0
    for utterance in sorted(utterances, key=lambda u: (-u.frames, u.source, u.name)):
        if room == 0:
            groups.append([])
            room = max(1, FRAMES_PER_BATCH * 3 // utterance.frames)
        groups[-1].append(utterance)
        room -= 1
    return groups
