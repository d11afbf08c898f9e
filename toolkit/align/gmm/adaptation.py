"""fMLLR: each speaker's features moved to where an acoustic model expects them."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from toolkit.align.gmm.em import Aligned, TrainingData, aligned_frames, deal
from toolkit.align.gmm.lda_mllt import spoken
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.gmm.training import EmConfig, training_data
from toolkit.features.cepstra import save_transforms
from toolkit.hmm.fmllr import FmllrStatistics, estimate_fmllr

logger = logging.getLogger(__name__)


class SpeakerSums:
    """fMLLR statistics by speaker."""

    def __init__(self, by_speaker: dict[str, FmllrStatistics]) -> None:
        self.by_speaker = by_speaker

    def add(self, other: "SpeakerSums") -> None:
        """Add the statistics of other frames."""
        for speaker, statistics in other.by_speaker.items():
            if speaker in self.by_speaker:
                self.by_speaker[speaker].add(statistics)
            else:
                self.by_speaker[speaker] = statistics


def fmllr_sums(partition: Aligned, system: GmmSystem) -> SpeakerSums:
    """The sums of fMLLR over the frames of speech, as Kaldi's with silence weight 0."""
    found: dict[str, FmllrStatistics] = {}
    aligned = partition.load()
    speakers: dict[str, list[str]] = {}
    for utterance in aligned:
        speakers.setdefault(system.features.speaker(utterance), []).append(utterance)
    for speaker, utterances in speakers.items():
        mine = {u: aligned[u] for u in utterances}
        found[speaker] = FmllrStatistics.zeros(system.features.dimension)
        for x, batch in aligned_frames(mine, system.features):
            found[speaker].accumulate(system.gmm, *spoken(x, batch, system.senones))
    return SpeakerSums(found)


def adapt(data: TrainingData, system: GmmSystem) -> GmmSystem:
    """Estimate a transform for every speaker from the current alignments.

    A speaker who has a transform gets a better one: the new one is estimated behind it.
    """
    sums = data.sum(fmllr_sums, system=system).by_speaker
    transforms, gains, frames = {}, 0.0, 0.0
    for speaker, statistics in sorted(sums.items()):
        found, gain = estimate_fmllr(statistics)
        old = system.features.transforms.get(speaker)
        transforms[speaker] = (found if old is None else compose(found, old.double())).float()
        gains, frames = gains + gain * statistics.beta, frames + statistics.beta
    logger.info("fMLLR: %d speakers, %.3f nats per frame", len(sums), gains / max(frames, 1))
    return system.adapted(transforms)


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """The transform [D, D+1] that applies `inner` first, then `outer`."""
    square, offset = outer[:, :-1], outer[:, -1:]
    linear = square @ inner[:, :-1]
    return torch.cat([linear, square @ inner[:, -1:] + offset], dim=1)


def adapt_speakers(
    adapted: Path,
    independent: Path,
    cepstra: Path,
    hypotheses: Mapping[str, Sequence[str]],
    lang: Path,
    config: EmConfig,
    out: Path,
    jobs: int,
) -> None:
    """Estimate the transforms of speakers from what a first pass has recognised.

    The first estimate uses alignments of the speaker-independent system, a second one those of the
    adapted system with the first.

    Args:
      adapted: the folder of a system trained with fMLLR.
      independent: the folder of the system of the first pass.
      cepstra: a feature store.
      hypotheses: the recognised words of every utterance, in the store's order.
      lang: the folder of the lexicon.
      config: its search is used.
      out: the file of the transforms.
      jobs: worker processes.
    """
    folder = out.parent
    with training_data(deal(hypotheses, folder), lang, config, jobs) as data:
        system = GmmSystem.load(adapted, cepstra)
        data.realign(GmmSystem.load(independent, cepstra))
        system = adapt(data, system)
        data.realign(system)
        system = adapt(data, system)
    save_transforms(out, system.features.transforms)
    for partition in data.partitions:
        partition.alignments.unlink(missing_ok=True)
