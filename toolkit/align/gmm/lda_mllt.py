"""LDA + MLLT systems: triphones on spliced frames, projected to suit diagonal covariances."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from toolkit.align.gmm.em import (
    AlignedUtterances,
    TrainingData,
    aligned_frames,
    partition_utterances,
)
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.gmm.training import EmConfig, train_em, training_data
from toolkit.align.gmm.triphone import TriphoneConfig, align_with_previous, initial_system
from toolkit.features.gmm_features import GmmFeatures, GmmFrontend
from toolkit.hmm.lda import LdaStatistics, estimate_lda
from toolkit.hmm.mllt import MlltStatistics, estimate_mllt
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LdaMlltConfig(TriphoneConfig):
    """Kaldi's train_lda_mllt.sh; splicing and dimension as in C4."""

    em: EmConfig = EmConfig(gaussians=15_000)
    """The EM schedule."""
    splice: int = 3
    """Frames on either side that LDA sees (Kaldi: 4 of 13 cepstra; here of 39 with deltas, C4)."""
    dimension: int = 40
    """Dimensions that LDA keeps (C4)."""
    mllt: tuple[int, ...] = (2, 4, 6, 12)
    """Iterations that begin with a new MLLT matrix (Kaldi's list)."""

    def __post_init__(self) -> None:
        if self.splice < 0 or self.dimension < 1:
            raise ValueError("splice must not be negative, and dimension needs to be 1 or more")


def train_lda_mllt(
    cepstra: Path,
    transcripts: Mapping[str, Sequence[str]],
    lang: Path,
    previous: Path,
    config: LdaMlltConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Train triphone GMMs on LDA + MLLT features; mirrors Kaldi's steps/train_lda_mllt.sh.

    As there, LDA and MLLT are estimated without silence frames. See `train_triphone` for arguments
    and errors.
    """
    with training_data(partition_utterances(transcripts, out), lang, config.em, jobs) as data:

        def start() -> tuple[GmmSystem, Tensor]:
            old = align_with_previous(data, previous, cepstra, config)
            return initial_system(
                data, old.senones, _lda(data, old.senones, cepstra, config), config
            )

        def update(iteration: int, system: GmmSystem) -> GmmSystem:
            return _with_mllt(data, system) if iteration in config.mllt else system

        return train_em("LDA + MLLT", start, cepstra, data, config.em, out, progress, update)


def _lda(data: TrainingData, senones: Senones, cepstra: Path, config: LdaMlltConfig) -> GmmFeatures:
    """Features projected by LDA, whose classes are the pdfs of the aligning system."""
    spliced = GmmFeatures(cepstra, GmmFrontend(config.splice))
    statistics = data.accumulate(accumulate_lda, features=spliced, senones=senones)
    return spliced.projected(estimate_lda(statistics, config.dimension).float())


def _with_mllt(data: TrainingData, system: GmmSystem) -> GmmSystem:
    """Rotate the features so that the Gaussians' covariances become more diagonal."""
    matrix, gain = estimate_mllt(data.accumulate(accumulate_mllt, system=system))
    logger.info("MLLT: %.3f nats per frame gained", gain)
    projection = matrix @ system.features.frontend.projection.double()
    features = system.features.projected(projection.float())
    return GmmSystem(features, system.senones, system.gmm.transform_means(matrix))


def accumulate_lda(
    partition: AlignedUtterances, features: GmmFeatures, senones: Senones
) -> LdaStatistics:
    """Accumulate LDA statistics over the frames of speech."""
    statistics = LdaStatistics.zeros(senones.num_pdfs, features.dimension)
    for x, batch, counted in aligned_frames(partition.load(), features):
        statistics.accumulate(*speech_frames(x, batch, counted, senones))
    return statistics


def accumulate_mllt(partition: AlignedUtterances, system: GmmSystem) -> MlltStatistics:
    """Accumulate MLLT statistics over the frames of speech."""
    statistics = MlltStatistics.zeros(system.features.dimension)
    for x, batch, counted in aligned_frames(partition.load(), system.features):
        statistics.accumulate(system.gmm, *speech_frames(x, batch, counted, system.senones))
    return statistics


def speech_frames(
    x: Tensor, batch: Sequence[Tensor], counted: Tensor, senones: Senones
) -> tuple[Tensor, Tensor]:
    """Select the frames of speech of a batch from `aligned_frames`: features [S, D], pdfs [S]."""
    speech = speech_mask(torch.cat(list(batch)), senones.topology) & counted
    return x[speech], torch.cat([senones.pdfs(states) for states in batch])[speech]


def speech_mask(states: Tensor, topology: Topology) -> Tensor:
    """Which frames are speech: state ids [T] -> bool [T]."""
    silence = torch.tensor([topology.is_silence(p) for p in topology.phone_of_state_id])
    return ~silence[states]
