"""Training an acoustic model with cross entropy on the frames of an alignment."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_high

import torch

from toolkit.models.blstm import BlstmConfig
from toolkit.models.lstm import LstmConfig
from toolkit.models.priors import save_priors
from toolkit.models.store import make_model, save_model
from toolkit.parallel.config import make_strategy
from toolkit.processes.threads import torch_threads
from toolkit.train.chunks import ChunkConfig, Chunks
from toolkit.train.config import CorpusTrainerConfig
from toolkit.train.corpus import (
    Alignments,
    Corpus,
    Features,
    Normalises,
    listed,
    without_copies,
    write_excluded,
)
from toolkit.train.headline import finished, settings_of, write_headline
from toolkit.train.monitor import Progress
from toolkit.train.objectives import CrossEntropy
from toolkit.train.phases import Phase, Phases
from toolkit.train.specaugment import SpecAugmentConfig, SpecAugmented
from toolkit.train.utterances import WholeUtterances
from toolkit.train.whole_utterances import ShuffledUtterances, WholeUtteranceConfig
from toolkit.train.windows import OFFSETS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CrossEntropyConfig(CorpusTrainerConfig):
    """Cross entropy training on shuffled chunks, then on whole utterances."""

    model: LstmConfig | BlstmConfig = field(default_factory=LstmConfig)
    """The network; its input and output sizes are taken from the data."""
    chunks: ChunkConfig = field(default_factory=ChunkConfig)
    """How the data are cut and shuffled."""
    whole: WholeUtteranceConfig = field(default_factory=WholeUtteranceConfig)
    """Epochs on whole utterances after the others; none by default, 2 in the paper (C7)."""
    specaugment: SpecAugmentConfig = field(default_factory=SpecAugmentConfig)
    """Masks on the training batches; none by default, nor in the paper."""


def train_cross_entropy(
    features: Features | Sequence[Features],
    alignments: Alignments | Sequence[Alignments],
    normaliser: Normalises,
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
      progress: told from time to time (steps done, steps in all).
      valid: held-out stores; without them `config.valid_utterances` are held out.

    Returns:
      `frame_accuracy` (0 to 1) of the model on held-out data at low rate (without any, that of the
      last epoch on the training data), `loss` per frame of the last epoch on the training data,
      `frames_per_second` (low-rate, median over the epochs on chunks), `utterances`; with whole
      utterances also `frame_accuracy_chunks`, before them.

    Raises:
      TrainingDataError: stores do not belong together, or too little is left of them.
      TrainingError: the loss is not finite, or `out` holds a training with other settings.
    """
    out = Path(out)
    settings = settings_of(config, num_targets=num_targets)
    earlier = finished(out, settings)
    if earlier is not None:
        return earlier
    sources = list(zip(listed(features), listed(alignments), strict=True))
    names = [name for store, _ in sources for shard in store.shards for name in shard]
    used, aside = set(names), set()
    if not valid:
        used, aside = without_copies(names, config.valid_utterances)
    corpus = Corpus(sources, normaliser, num_targets, used)
    held = Corpus([valid] if valid else sources, normaliser, num_targets, None if valid else aside)
    write_excluded(out / "excluded.tsv", {**corpus.excluded, **held.excluded})
    corpus.require(config.max_excluded)
    strategy = make_strategy(config.parallel, device)
    input_dim = OFFSETS * corpus.load(corpus.utterances[0])[0].shape[1]
    torch.manual_seed(config.seed)
    model = make_model(replace(config.model, input_dim=input_dim, output_dim=num_targets))
    logger.info(
        "%d utterances, %d held out, %d targets, %.1f M parameters",
        *(len(corpus.utterances), len(held.utterances), num_targets),
        sum(parameter.numel() for parameter in model.parameters()) / 1e6,
    )
    phases = Phases(
        model,
        CrossEntropy(),
        _phases(corpus, config, out),
        WholeUtterances(held, config.model.lookahead) if held.utterances else None,
        device,
        progress,
        strategy,
    )
    with torch_threads(config.threads):
        records = phases.run()
    save_model(out, model)
    save_priors(out, corpus.counts)
    accuracies = [r["score"] if held.utterances else r["accuracy"] for r in records]
    speeds = [epoch["frames_per_second"] for epoch in phases.history[: config.epochs]]
    headline = {
        "frame_accuracy": max(accuracies) if held.utterances else accuracies[-1],
        "loss": records[-1]["loss"],
        "frames_per_second": median_high(speeds),
        "utterances": len(corpus.utterances),
    }
    if config.whole.epochs:
        headline["frame_accuracy_chunks"] = accuracies[0]
    write_headline(out, settings, headline)
    phases.clean()
    return headline


def _phases(corpus: Corpus, config: CrossEntropyConfig, out: Path) -> list[Phase]:
    """Chunks, and whole utterances where there are epochs for them (C7)."""
    lookahead, seed, whole = config.model.lookahead, config.seed, config.whole
    chunks = Chunks(corpus, config.chunks, lookahead, seed)
    phases = [Phase(chunks, config, out)]
    if whole.epochs:
        utterances = ShuffledUtterances(chunks.windows, whole, lookahead, seed, config.epochs)
        phases.append(Phase(utterances, whole.trainer(config), out / "whole"))
    if not config.specaugment.active:
        return phases
    return [
        replace(phase, data=SpecAugmented(phase.data, config.specaugment, seed + number))
        for number, phase in enumerate(phases)
    ]
