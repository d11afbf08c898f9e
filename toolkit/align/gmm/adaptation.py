"""fMLLR adaptation: transforms of each speaker's features to fit an acoustic model."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from toolkit.align.gmm.em import (
    AlignedUtterances,
    TrainingData,
    aligned_frames,
    partition_utterances,
)
from toolkit.align.gmm.lda_mllt import speech_frames
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.gmm.training import EmConfig, training_data
from toolkit.features.gmm_features import GmmFeatures, save_transforms
from toolkit.hmm.fmllr import FmllrStatistics, estimate_fmllr

logger = logging.getLogger(__name__)


class SpeakerStatistics:
    """fMLLR statistics by speaker."""

    def __init__(self, by_speaker: dict[str, FmllrStatistics]) -> None:
        self.by_speaker = by_speaker

    def add(self, other: "SpeakerStatistics") -> None:
        """Add the statistics of other frames."""
        for speaker, statistics in other.by_speaker.items():
            if speaker in self.by_speaker:
                self.by_speaker[speaker].add(statistics)
            else:
                self.by_speaker[speaker] = statistics


def accumulate_fmllr(partition: AlignedUtterances, system: GmmSystem) -> SpeakerStatistics:
    """Accumulate fMLLR statistics over the frames of speech (in Kaldi: silence weight 0)."""
    found: dict[str, FmllrStatistics] = {}
    aligned = partition.load()
    speakers: dict[str, list[str]] = {}
    for utterance in aligned:
        speakers.setdefault(system.features.speaker(utterance), []).append(utterance)
    for speaker, utterances in speakers.items():
        mine = {u: aligned[u] for u in utterances}
        found[speaker] = FmllrStatistics.zeros(system.features.dimension)
        for x, batch, counted in aligned_frames(mine, system.features):
            speech = speech_frames(x, batch, counted, system.senones)
            found[speaker].accumulate(system.gmm, *speech)
    return SpeakerStatistics(found)


def adapt(data: TrainingData, system: GmmSystem) -> GmmSystem:
    """Estimate a transform for every speaker from the current alignments.

    A speaker's earlier transform is refined: the new one is estimated on features transformed by
    it, and composed with it.
    """
    parts = data.pool.map(partial(accumulate_fmllr, system=system), data.partitions)
    utterances = [[u for u, _ in partition.transcripts] for partition in data.partitions]
    return system.adapted(refined(parts, utterances, system.features))


def refined(
    parts: Iterable[SpeakerStatistics],
    utterances: Sequence[Sequence[str]],
    features: GmmFeatures,
) -> dict[str, Tensor]:
    """The transform [D, D+1] of every speaker with statistics or an earlier transform, which stays.

    A speaker's statistics, which take half a megabyte, are let go after his last part: where parts
    follow the speakers' order, there are few at a time.

    Args:
      parts: statistics of frames that the speakers' earlier transforms have been applied to.
      utterances: of each part.
      features: with these transforms, which the new ones are composed with.
    """
    last = {features.speaker(u): n for n, names in enumerate(utterances) for u in names}
    done: dict[int, list[str]] = {}
    for speaker, number in last.items():
        done.setdefault(number, []).append(speaker)
    sums, estimates = SpeakerStatistics({}), {}
    for number, part in enumerate(parts):
        sums.add(part)
        for speaker in done.get(number, []):
            statistics = sums.by_speaker.pop(speaker, None)
            if statistics is not None:
                estimates[speaker] = (*estimate_fmllr(statistics), statistics.beta)
    transforms, gains, frames = dict(features.transforms), 0.0, 0.0
    for speaker, (found, gain, beta) in sorted(estimates.items()):
        old = features.transforms.get(speaker)
        transforms[speaker] = (found if old is None else compose(found, old.double())).float()
        gains, frames = gains + gain * beta, frames + beta
    mean = gains / max(frames, 1)
    logger.info("fMLLR: %d speakers, %.3f nats per frame gained", len(estimates), mean)
    return transforms


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """The transform [D, D+1] that applies `inner` first, then `outer`."""
    square, offset = outer[:, :-1], outer[:, -1:]
    linear = square @ inner[:, :-1]
    return torch.cat([linear, square @ inner[:, -1:] + offset], dim=1)


def adapt_speakers(
    adapted: GmmSystem,
    independent: GmmSystem,
    hypotheses: Mapping[str, Sequence[str]],
    lang: Path,
    config: EmConfig,
    out: Path,
    jobs: int,
) -> None:
    """Estimate the transforms of speakers from the hypotheses of a first pass.

    A first estimate uses alignments of the speaker-independent system, a second one alignments of
    the adapted system with the first transforms.

    Args:
      adapted: a system trained with fMLLR, over the utterances' cepstra, without transforms.
      independent: the system of the first pass, over the same cepstra.
      hypotheses: the recognised words of every utterance, in the store's order.
      lang: the folder of the lexicon.
      config: the search of its alignments.
      out: the file of the transforms.
      jobs: worker processes.
    """
    folder = out.parent
    with training_data(partition_utterances(hypotheses, folder), lang, config, jobs) as data:
        data.realign(independent)
        system = adapt(data, adapted)
        data.realign(system)
        system = adapt(data, system)
    save_transforms(out, system.features.transforms)
    for partition in data.partitions:
        partition.alignments.unlink(missing_ok=True)
