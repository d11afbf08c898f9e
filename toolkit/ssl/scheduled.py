"""Scheduled learning: a student learns from a teacher's targets and labelled data in turn (C12)."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median_high
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.features.config import LOW_RATE_FACTOR
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import FeatureStore
from toolkit.models.scorer import save_priors
from toolkit.models.store import WEIGHTS, ModelError, load_model, make_model, save_model
from toolkit.parallel.strategy import BatchSource, make_strategy
from toolkit.processes.ranks import on_rank_zero
from toolkit.ssl.config import ScheduledConfig, SelectionConfig
from toolkit.ssl.unlabelled import (
    Selection,
    ShardFiles,
    Source,
    SubEpochs,
    TeacherBatches,
    TeacherShards,
    select,
)
from toolkit.train.batches import (
    Batch,
    ChunkSampler,
    CorpusBatches,
    ShardGroups,
    UtteranceSampler,
    ValidationBatches,
)
from toolkit.train.checkpoints import finish_training, finished_headline, training_identity
from toolkit.train.config import TrainerConfig
from toolkit.train.corpus import Alignments, as_list, open_corpora
from toolkit.train.cross_entropy import KBestBatch, cross_entropy, distillation
from toolkit.train.errors import TrainingDataError
from toolkit.train.monitor import Progress, phase_progress
from toolkit.train.optimizer import Schedule, scheduled_rate
from toolkit.train.specaugment import masked
from toolkit.train.trainer import fit, joined_history, write_history

logger = logging.getLogger(__name__)


def train_student(
    unlabelled: Path | Sequence[Path | ShardFiles],
    features: FeatureStore | Sequence[FeatureStore],
    alignments: Alignments | Sequence[Alignments],
    normaliser: Cmvn,
    config: ScheduledConfig,
    num_targets: int,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    valid: tuple[FeatureStore, Alignments] | None = None,
    start: Path | None = None,
) -> dict[str, float]:
    """Train a student by scheduled learning (C10-C12), or continue what a killed run left in `out`.

    The unlabelled data are read shard by shard. In every sub-epoch the student learns from the
    teacher's targets of some shards, at the offset at which the targets were computed. Then it
    learns from the labelled data, at an offset that rotates from sub-epoch to sub-epoch.

    Like `train_cross_entropy`, this leaves in `out` a model with priors (of the labelled data), for
    decoding and training on lattices. Its weights are those after the pass with the highest
    held-out accuracy. `history.json` has a record per pass, unlabelled and labelled in turn:
    `agreement` with the teacher and `divergence` from it, or frame `accuracy`. Values whose names
    begin with `valid_` were measured on the held-out data after the pass.

    Args:
      unlabelled: a folder of features with targets, as the data pipeline's repartition writes it;
        or several such sets of the same utterances with targets at different offsets, which the
        passes over the data use in turn. Each is a folder, or the files of shards stored elsewhere.
      features: labelled data, as in `train_cross_entropy`.
      alignments: a store for each of `features`, with targets of the raw frames.
      normaliser: normaliser of the student's raw features, labelled or not.
      config: sizes, schedule, seed.
      num_targets: C, number of senones; the teacher must have the same number.
      out: output folder, for this training only.
      device: where to train.
      progress: called from time to time with (steps done, steps in all).
      valid: held-out labelled stores; None: `config.valid_utterances` of the labelled training data
        are held out.
      start: folder of a model to start from, with the sizes of `config.model`; None: start from
        random weights.

    Returns:
      `frame_accuracy` (0 to 1) on held-out data, if there are any; `loss`, `divergence` (both per
      frame) and `agreement` of the last pass over unlabelled data; `frames_per_second` of these
      passes (median, low-rate frames); `hours` of unlabelled audio in all sub-epochs; `utterances`,
      the number of labelled ones.

    Raises:
      TrainingDataError: stores do not belong together, or too little data is left.
      TargetError: `unlabelled` holds no targets, or damaged ones.
      TrainingError: the loss is not finite, or `out` holds a training with other settings.
    """
    out = Path(out)
    # 1. A finished training run is not repeated; an unfinished one continues with the same settings
    # and initial weights only.
    digest = None if start is None else hashlib.sha256((start / WEIGHTS).read_bytes()).hexdigest()
    identity = training_identity(config, num_targets=num_targets, **{"initial weights": digest})
    headline = finished_headline(out, identity)
    if headline is not None:
        return headline
    # 2. Open the data and make the student.
    sources = list(zip(as_list(features), as_list(alignments), strict=True))
    corpora = open_corpora(sources, normaliser, num_targets, config, out, valid)
    strategy = make_strategy(config.parallel, device)
    data = _unlabelled(unlabelled, normaliser, config, num_targets, out)
    model = _student(config, LOW_RATE_FACTOR * data.dimension, num_targets, start)
    logger.info(
        "training on %d labelled utterances (%d more are held out) and %.4g h of unlabelled audio "
        "in %d sub-epochs",
        len(corpora.train.utterances),
        len(corpora.valid.utterances),
        data.hours,
        data.count,
    )

    # 3. Plan the phases: sub-epochs on chunks, then on whole utterances if configured (C12).
    lookahead, seed, whole = config.model.lookahead, config.seed, config.whole_utterances
    groups = ShardGroups(corpora.train, config.chunks.shuffle_frames, seed)
    chunks = ChunkSampler(config.chunks, lookahead)
    phases: list[tuple[Path, TrainerConfig, ChunkSampler | UtteranceSampler, int]]
    phases = [(out, config, chunks, 0)]
    if whole.epochs:
        utterances = UtteranceSampler(whole, lookahead)
        phases.append((out / "whole", config.whole_phase(), utterances, config.epochs))
    sources_of_phases = [
        AlternatingBatches(
            TeacherBatches(data, sampler, seed, first), CorpusBatches(groups, sampler, seed, first)
        )
        for _, _, sampler, first in phases
    ]
    num_steps = [
        sum(source.num_steps(epoch, strategy.world_size) for epoch in range(2 * settings.epochs))
        for source, (_, settings, _, _) in zip(sources_of_phases, phases, strict=True)
    ]
    # 4. Train; each phase continues with the model of the previous one.
    results = []
    for number, (folder, settings, _, _) in enumerate(phases):
        # A sub-epoch is two of `fit`'s epochs. The average over the last A sub-epochs begins with
        # the labelled pass of the first of them, so it has 2A - 1 passes.
        passes = replace(
            settings, epochs=2 * settings.epochs, average_epochs=2 * settings.average_epochs - 1
        )
        results.append(
            fit(
                model,
                student_loss,
                masked(sources_of_phases[number], config.specaugment, seed + number),
                passes,
                folder,
                device=device,
                valid=ValidationBatches(corpora.valid, lookahead),
                strategy=strategy,
                schedule=alternating_schedule(settings, config.labelled_rate_factor),
                identity=identity,
                keep_initial=number > 0,
                progress=phase_progress(progress, num_steps, number),
            )
        )
    history = joined_history(results)
    write_history(out, history)
    save_model(out, model)
    save_priors(out, corpora.train.counts)

    # 5. Sum up; even epochs are passes over unlabelled data, see `AlternatingBatches`.
    unlabelled_passes = history[::2]
    headline = {
        **({"frame_accuracy": results[-1].score} if corpora.valid.utterances else {}),
        **{name: unlabelled_passes[-1][name] for name in ("loss", "divergence", "agreement")},
        "frames_per_second": median_high(r["frames_per_second"] for r in unlabelled_passes),
        "hours": data.hours,
        "utterances": len(corpora.train.utterances),
    }
    return finish_training(out, identity, headline)


class AlternatingBatches:
    """Batches of alternating passes: epoch 2s is unlabelled sub-epoch s, 2s + 1 the labelled pass.

    Args:
      unlabelled: source whose epoch s is sub-epoch s.
      labelled: source whose epoch s follows sub-epoch s.
    """

    def __init__(self, unlabelled: BatchSource, labelled: BatchSource) -> None:
        self._sources = unlabelled, labelled

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        """Implement `BatchSource.num_steps`."""
        number, kind = divmod(epoch, 2)
        return self._sources[kind].num_steps(number, world_size)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Implement `BatchSource.batches`."""
        number, kind = divmod(epoch, 2)
        return self._sources[kind].batches(number, start, rank, world_size)


def alternating_schedule(config: TrainerConfig, labelled_factor: float) -> Schedule:
    """Return the schedule of alternating passes, which counts steps on unlabelled data only (C12).

    A pass over labelled data has a constant rate: `labelled_factor` times that of the last
    unlabelled step.

    Args:
      config: rates, and warm-up steps on unlabelled data.
      labelled_factor: factor of the learning rate on labelled data.
    """

    def rate(epoch: int, step: int, steps: Sequence[int]) -> float:
        # Steps on unlabelled data: all of them, and those before this sub-epoch
        number, is_labelled = divmod(epoch, 2)
        total = sum(steps[::2])
        done = sum(steps[: 2 * number : 2])
        if not is_labelled:
            return scheduled_rate(config, done + step, total)
        last = done + steps[2 * number] - 1
        return labelled_factor * scheduled_rate(config, last, total)

    return rate


def student_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the `distillation` loss of a `KBestBatch`, else `cross_entropy`; see `Objective`.

    The two return different sums, which tell the two kinds of passes apart in a history.
    """
    return (distillation if isinstance(batch, KBestBatch) else cross_entropy)(model, batch)


def _unlabelled(
    folders: Path | Sequence[Path | ShardFiles],
    normaliser: Cmvn,
    config: ScheduledConfig,
    num_targets: int,
    out: Path,
) -> SubEpochs:
    """Open the unlabelled data, one source per offset, and select their utterances."""
    sources = []
    for number, folder in enumerate(as_list(folders)):
        shards = TeacherShards(folder)
        if shards.num_senones != num_targets:
            raise TrainingDataError(
                f"the targets in {shards.name} have {shards.num_senones} senones, but the "
                f"alignments have {num_targets}: the teacher was trained with a different tree. "
                "Align the labelled data with the teacher's tree"
            )
        # Rank 0 reads all data to select utterances; the other ranks read its result.
        path = out / f"selection.{number}.json"
        if config.select.share < 1:
            on_rank_zero(
                lambda shards=shards, path=path: _save_selection(shards, config.select, path)
            )
            sources.append(Source(shards, Selection.load(path)))
        else:
            sources.append(Source(shards, select(shards, config.select)))
    count = config.epochs + config.whole_utterances.epochs
    max_frames = config.chunks.shuffle_frames
    return SubEpochs(
        sources, normaliser, config.hours_per_sub_epoch, count, max_frames, config.seed
    )


def _save_selection(shards: TeacherShards, config: SelectionConfig, path: Path) -> None:
    """Save a selection, unless `path` already has that of these settings and data."""
    if path.exists():
        stored = Selection.load(path)
        if stored.config == config and stored.data == shards.digest:
            return
    select(shards, config).save(path)


def _student(
    config: ScheduledConfig, input_dim: int, num_targets: int, start: Path | None
) -> nn.Module:
    """Make the student, with the weights of the model in `start`, if any."""
    model_config = replace(config.model, input_dim=input_dim, output_dim=num_targets)
    if start is not None:
        model = load_model(start)
        if _sizes(model.config) != _sizes(model_config):
            raise ModelError(
                f"the initial model {start} has the settings {model.config}, but the student has "
                f"{model_config}. Give both models the same sizes"
            )
    torch.manual_seed(config.seed)
    student = make_model(model_config)
    if start is not None:
        student.load_state_dict(model.state_dict())
    return student


def _sizes(config: Any) -> tuple[type, dict[str, Any]]:
    """Return the class and the settings that determine weight shapes: all but the dropout."""
    return type(config), {k: v for k, v in asdict(config).items() if k != "dropout"}
