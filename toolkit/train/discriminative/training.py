"""Sequence-discriminative training of a network that cross entropy trained (C7, C8)."""

import hashlib
import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high

import torch

from toolkit.fsa.discriminative import Criterion, PdfClasses
from toolkit.models.priors import PRIORS, load_log_priors
from toolkit.models.store import WEIGHTS, load_model, save_model
from toolkit.parallel.strategy import make_strategy
from toolkit.processes.threads import torch_threads
from toolkit.storage.files import write_atomically
from toolkit.train.config import CorpusTrainerConfig
from toolkit.train.corpus import FeatureNormaliser, Features, as_list, open_corpora
from toolkit.train.discriminative.data import (
    LatticeBatches,
    Lattices,
    References,
    SequenceDataConfig,
    UpsampledReferences,
    unusable_lattices,
)
from toolkit.train.discriminative.objective import SequenceObjective
from toolkit.train.headline import finished, settings_of, write_headline
from toolkit.train.loop import Trainer
from toolkit.train.monitor import Progress
from toolkit.train.selection import score_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SequenceConfig(CorpusTrainerConfig):
    """Training on lattices, from a network that cross entropy trained."""

    epochs: int = 3
    """Passes over the data; 3 (C7, C8). Kaldi: 4."""
    initial_rate: float = 5e-5
    """Learning rate at the start, for `adam` and means per frame (Kaldi's 1e-5 of train_mpe.sh is
    for plain SGD and sums over an utterance). On AN4 2e-4 without smoothing raised the criterion
    further, and insertions with it."""
    final_rate: float = 2e-5
    """Learning rate of the last step."""
    criterion: Criterion = Criterion()
    """The criterion that is maximised."""
    smoothing: float = 0.1
    """Weight h of the cross entropy with the references: the loss is (1 - h) times minus the
    criterion plus h times the cross entropy, both per frame (f-smoothing; Su et al. 2013). 0.1
    kept the held-out cross entropy from rising at these rates (Kaldi's xent_regularize: 0.1)."""
    data: SequenceDataConfig = SequenceDataConfig()
    """Utterances per step and their longest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smoothing <= 1:
            raise ValueError(f"smoothing is {self.smoothing}, needs to be in [0, 1]")


def train_sequence(
    model: Path,
    features: Features | Sequence[Features],
    lattices: Lattices | Sequence[Lattices],
    references: References | Sequence[References],
    classes: PdfClasses,
    normaliser: FeatureNormaliser,
    config: SequenceConfig,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    valid: tuple[Features, Lattices, References] | None = None,
) -> dict[str, float]:
    """Train a network on lattices, or continue what a killed run left in `out`.

    Writes into `out` what `train_cross_entropy` does; `priors.json` is the given model's. The
    weights kept are those that do best on the held-out utterances: after an epoch, averaged, or
    the given ones (epoch 0 of `history.json`) if no epoch improved the criterion.

    Args:
      model: the folder of the network and its priors.
      features: one store or several.
      lattices: as many, of the same utterances at offset 0.
      references: as many, with the right pdf of every raw frame or of every low-rate frame.
      classes: silence and phones of the pdfs.
      normaliser: of the raw features.
      config: criterion, rates, seed.
      out: folder of this training alone.
      device: where the network is trained, and the criterion computed.
      progress: called from time to time with (steps done, steps in all).
      valid: held-out features, lattices and references; by default training utterances are set
        aside.

    Returns:
      Headline numbers: `before` and `after`, the held-out criterion per frame of the given and of
      the kept weights; `frames_per_second`, `utterances`, `missing`, `held_out_speakers` (0: the
      held-out utterances are of training speakers, or given).

    Raises:
      TrainingDataError: too few utterances can be used.
      TrainingError: training went wrong, or `out` holds another one.
    """
    out = Path(out)
    weights = hashlib.sha256((Path(model) / WEIGHTS).read_bytes()).hexdigest()
    settings = settings_of(config, weights=weights)
    earlier = finished(out, settings)
    if earlier is not None:
        return earlier
    network = load_model(model)
    stores, lattice_stores = as_list(features), as_list(lattices)
    max_frames = config.data.max_frames
    excluded: dict[str, str] = {}
    for store, of_store in zip(stores, lattice_stores, strict=True):
        excluded |= unusable_lattices(store, of_store, max_frames)
    corpora = open_corpora(
        [(x, UpsampledReferences(x, y)) for x, y in zip(stores, as_list(references), strict=True)],
        normaliser,
        len(classes.phones),
        config,
        out,
        (valid[0], UpsampledReferences(valid[0], valid[2])) if valid else None,
        excluded=excluded,
        valid_excluded=unusable_lattices(*valid[:2], max_frames) if valid else None,
        count_targets=False,
    )
    common = config.data, network.config.lookahead, config.seed
    data = LatticeBatches(corpora.train, lattice_stores, *common)
    held = LatticeBatches(corpora.valid, [valid[1]] if valid else lattice_stores, *common)
    counts = len(corpora.train.utterances), len(corpora.valid.utterances)
    logger.info("%d utterances, %d held out, %s", *counts, config.criterion)
    trainer = Trainer(
        network,
        SequenceObjective(
            config.criterion,
            classes.to(device),
            load_log_priors(model).to(device),
            config.smoothing,
        ),
        data,
        config,
        out,
        device=device,
        valid=held,
        strategy=make_strategy(config.parallel, device),
        progress=progress,
        given={"initial weights": weights},
    )
    with torch_threads(config.threads):
        before = trainer.evaluate()
        logger.info("held-out criterion before the first epoch: %.5f", score_of(before))
        record = trainer.run()
    history = [{"epoch": 0, **{f"valid_{k}": v for k, v in before.items()}}, *trainer.history]
    write_atomically(out / "history.json", json.dumps(history, indent=1) + "\n")
    started, after = score_of(before), record["score"]
    if before:
        _report(history)
        if started > after:
            logger.warning("no epoch did better than the model given: its weights are kept")
            network.load_state_dict(load_model(model).state_dict())
            after = started
    save_model(out, network)
    write_atomically(out / PRIORS, (Path(model) / PRIORS).read_text(encoding="utf-8"))
    speeds = [epoch["frames_per_second"] for epoch in trainer.history]
    headline = {
        "before": started,
        "after": after,
        "frames_per_second": median_high(speeds),
        "utterances": counts[0],
        "missing": record["missing"],
        "held_out_speakers": corpora.held_out_speakers,
    }
    write_headline(out, settings, headline)
    trainer.clean()
    return headline


def _report(history: list[dict[str, float]]) -> None:
    """Log the held-out criterion of every epoch, and warn of epochs that lowered it."""
    scores = [score_of(record, "valid_") for record in history]
    logger.info("held-out criterion by epoch: %s", ", ".join(f"{s:.5f}" for s in scores))
    for epoch, (previous, score) in enumerate(itertools.pairwise(scores), 1):
        if score < previous:
            logger.warning(
                "epoch %d lowered the held-out criterion: %.5f -> %.5f", epoch, previous, score
            )
