"""Training an acoustic model with cross entropy on the frames of an alignment."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_high

import torch

from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.models.store import make_model
from toolkit.parallel.strategy import make_strategy
from toolkit.train.batches import ChunkSampler, CorpusBatches, ShardGroups, UtteranceSampler
from toolkit.train.corpus import (
    Alignments,
    Corpus,
    FeatureNormaliser,
    Features,
    as_list,
    open_corpora,
)
from toolkit.train.frame_training import FrameTrainingConfig, train_in_phases
from toolkit.train.headline import finished, settings_of, write_headline
from toolkit.train.monitor import Progress
from toolkit.train.objectives import CrossEntropy
from toolkit.train.phases import Phase

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CrossEntropyConfig(FrameTrainingConfig):
    """Cross entropy training; in the paper 10 epochs on chunks, then 2 on whole utterances (C7)."""


def train_cross_entropy(
    features: Features | Sequence[Features],
    alignments: Alignments | Sequence[Alignments],
    normaliser: FeatureNormaliser,
    config: CrossEntropyConfig,
    num_targets: int,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    valid: tuple[Features, Alignments] | None = None,
) -> dict[str, float]:
    """Train an LSTM on aligned utterances (C7), or continue what a killed run left in `out`.

    Chunks first; then, with `config.whole.epochs`, whole utterances, if these do better on the
    held-out data. Writes into `out`: the model (`config.json`, `model.safetensors`), `priors.json`
    (counts of the training targets, for `load_log_priors`), `history.json`, `excluded.tsv`,
    `headline.json` and TensorBoard events. Checkpoints are removed at the end.

    Args:
      features: one store or several, such as one of augmented copies beside that of the originals.
      alignments: as many, with targets of the raw frames of `features`.
      normaliser: of the raw features.
      config: sizes, schedule, seed.
      num_targets: C, number of senones.
      out: folder of this training alone.
      device: where to train.
      progress: called from time to time with (steps done, steps in all).
      valid: held-out stores; without them training speakers, or utterances, are held out.

    Returns:
      `frame_accuracy` (0 to 1) of the model on held-out data at low rate (without any, that of the
      last epoch on the training data), `loss` per frame of the last epoch on the training data,
      `frames_per_second` (low-rate, median over the epochs on chunks), `utterances`,
      `held_out_speakers` (0: the held-out data are utterances of training speakers, or given);
      with whole utterances also `frame_accuracy_chunks`, before them.

    Raises:
      TrainingDataError: stores do not belong together, or too little is left of them.
      TrainingError: the loss is not finite, or `out` holds a training with other settings.
    """
    out = Path(out)
    settings = settings_of(config, num_targets=num_targets)
    earlier = finished(out, settings)
    if earlier is not None:
        return earlier
    sources = list(zip(as_list(features), as_list(alignments), strict=True))
    corpora = open_corpora(sources, normaliser, num_targets, config, out, valid)
    strategy = make_strategy(config.parallel, device)
    corpus, held_out = corpora.train.utterances, corpora.valid.utterances
    input_dim = LOW_RATE_FACTOR * corpora.train.load(corpus[0])[0].shape[1]
    torch.manual_seed(config.seed)
    model = make_model(replace(config.model, input_dim=input_dim, output_dim=num_targets))
    logger.info(
        "%d utterances, %d held out, %d targets, %.1f M parameters",
        *(len(corpus), len(held_out), num_targets),
        sum(parameter.numel() for parameter in model.parameters()) / 1e6,
    )
    phases = _phases(corpora.train, config, out)
    training, records = train_in_phases(
        model, CrossEntropy(), phases, corpora, config, out, device, strategy, progress
    )
    accuracies = [r["score"] if held_out else r["accuracy"] for r in records]
    speeds = [epoch["frames_per_second"] for epoch in training.history[: config.epochs]]
    headline = {
        "frame_accuracy": max(accuracies) if held_out else accuracies[-1],
        "loss": records[-1]["loss"],
        "frames_per_second": median_high(speeds),
        "utterances": len(corpus),
        "held_out_speakers": corpora.held_out_speakers,
    }
    if config.whole.epochs:
        headline["frame_accuracy_chunks"] = accuracies[0]
    write_headline(out, settings, headline)
    training.clean()
    return headline


def _phases(corpus: Corpus, config: CrossEntropyConfig, out: Path) -> list[Phase]:
    """Chunks, and whole utterances where there are epochs for them (C7)."""
    lookahead, seed, whole = config.model.lookahead, config.seed, config.whole
    groups = ShardGroups(corpus, config.chunks.window, seed)
    chunks = CorpusBatches(groups, ChunkSampler(config.chunks, lookahead), seed)
    phases = [Phase(chunks, config, out)]
    if whole.epochs:
        sampler = UtteranceSampler(whole, lookahead)
        utterances = CorpusBatches(groups, sampler, seed, config.epochs)
        phases.append(Phase(utterances, whole.trainer(config), out / "whole"))
    return phases
