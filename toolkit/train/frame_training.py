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
from toolkit.train.corpus import Corpora
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


def train_in_phases(
    model: nn.Module,
    objective: Objective,
    phases: Sequence[Phase],
    corpora: Corpora,
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
    valid, masks = corpora.valid, config.specaugment
    if masks.active:
        phases = [
            replace(phase, data=SpecAugmented(phase.data, masks, config.seed + number))
            for number, phase in enumerate(phases)
        ]
    training = Phases(
        model,
        objective,
        phases,
        ValidationBatches(valid, config.model.lookahead) if valid.utterances else None,
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
