"""What trainings on the frames of stored utterances share: settings, corpora, phases, results."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.models.blstm import BlstmConfig
from toolkit.models.lstm import LstmConfig
from toolkit.models.priors import save_priors
from toolkit.models.store import save_model
from toolkit.models.tdnnf import TdnnfConfig
from toolkit.parallel.strategy import Strategy
from toolkit.processes.threads import torch_threads
from toolkit.train.batches import ValidationBatches
from toolkit.train.config import ChunkConfig, CorpusTrainerConfig, WholeUtteranceConfig
from toolkit.train.corpus import (
    Alignments,
    Corpus,
    FeatureNormaliser,
    Features,
    as_list,
    split_stores,
    write_excluded,
)
from toolkit.train.monitor import Progress
from toolkit.train.objectives import Objective
from toolkit.train.phases import Phase, Phases
from toolkit.train.specaugment import SpecAugmentConfig, SpecAugmented

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FrameTrainingConfig(CorpusTrainerConfig):
    """Training of a network on shuffled chunks, then on whole utterances."""

    model: LstmConfig | BlstmConfig | TdnnfConfig = field(default_factory=LstmConfig)
    """The network; its input and output sizes are taken from the data."""
    chunks: ChunkConfig = field(default_factory=ChunkConfig)
    """How utterances are cut into chunks and shuffled."""
    whole: WholeUtteranceConfig = field(default_factory=WholeUtteranceConfig)
    """Epochs on whole utterances after those on chunks."""
    specaugment: SpecAugmentConfig = field(default_factory=SpecAugmentConfig)
    """SpecAugment's masks on the training batches; none by default, nor in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = getattr(self.model, "context", 0)
        given = min(self.chunks.left_context, self.chunks.right_context)
        if given < needed:
            raise ValueError(
                f"chunks have {given} frames of context on a side, and the network's outputs depend"
                f" on {needed}: raise chunks.left_context and chunks.right_context"
            )


@dataclass(frozen=True)
class FrameCorpora:
    """Aligned utterances to train on, and others to validate on."""

    train: Corpus
    held_out: Corpus
    """May be empty."""
    held_out_speakers: int
    """Number of speakers set aside of the training data; 0 if only utterances are, or none."""


def open_corpora(
    features: Features | Sequence[Features],
    alignments: Alignments | Sequence[Alignments],
    normaliser: FeatureNormaliser,
    config: FrameTrainingConfig,
    num_targets: int,
    out: Path,
    valid: tuple[Features, Alignments] | None = None,
) -> FrameCorpora:
    """Open stores of features and alignments, and write `excluded.tsv`.

    Args:
      features: one store or several.
      alignments: as many, with targets of the raw frames of `features`.
      normaliser: of the raw features.
      config: how many utterances to hold out, and how many may be excluded.
      num_targets: C, number of senones.
      out: folder of the training.
      valid: held-out stores; without them `config.valid_utterances` are held out.

    Raises:
      TrainingDataError: stores do not belong together, or too little is left of them.
    """
    sources = list(zip(as_list(features), as_list(alignments), strict=True))
    stores = [store for store, _ in sources]
    number = 0 if valid else config.valid_utterances
    division = split_stores(stores, number, config.valid_seed)
    held_sources, aside = ([valid], None) if valid else (sources, division.held_out)
    corpora = FrameCorpora(
        Corpus(sources, normaliser, num_targets, division.train),
        Corpus(held_sources, normaliser, num_targets, aside),
        len(division.speakers),
    )
    if not valid:
        logger.info("%s", division.describe())
    write_excluded(out / "excluded.tsv", {**corpora.train.excluded, **corpora.held_out.excluded})
    corpora.train.require(config.max_excluded)
    if valid:
        corpora.held_out.require_held_out()
    return corpora


def train_in_phases(
    model: nn.Module,
    objective: Objective,
    phases: Sequence[Phase],
    corpora: FrameCorpora,
    config: FrameTrainingConfig,
    out: Path,
    device: torch.device | str,
    strategy: Strategy,
    progress: Progress | None,
    given: dict[str, Any] | None = None,
) -> tuple[Phases, list[dict[str, float]]]:
    """Train a network phase by phase, and write it and the priors of its targets into `out`.

    What else the training depends on is `given`; a run with other values is not resumed.

    Returns:
      The finished phases, whose checkpoints are still there, and the last record of each.
    """
    held_out, masks = corpora.held_out, config.specaugment
    if masks.active:
        phases = [
            replace(phase, data=SpecAugmented(phase.data, masks, config.seed + number))
            for number, phase in enumerate(phases)
        ]
    training = Phases(
        model,
        objective,
        phases,
        ValidationBatches(held_out, config.model.lookahead) if held_out.utterances else None,
        device,
        progress,
        strategy,
        given,
    )
    with torch_threads(config.threads):
        records = training.run()
    save_model(out, model)
    save_priors(out, corpora.train.counts)
    return training, records
