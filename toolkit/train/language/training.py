"""Training of a neural language model."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from toolkit.models.neural_lm import NeuralLm
from toolkit.models.word_lstm import WordLstm, WordLstmConfig
from toolkit.parallel.strategy import make_strategy
from toolkit.processes.threads import torch_threads
from toolkit.train.config import TrainerConfig
from toolkit.train.headline import finished, settings_of, write_headline
from toolkit.train.language.batches import SentenceBatches
from toolkit.train.language.objective import NextWord
from toolkit.train.language.text import prepare_text
from toolkit.train.loop import Trainer
from toolkit.train.monitor import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NeuralLmConfig(TrainerConfig):
    """The network, its text and its training."""

    epochs: int = 4
    """Passes over the text; the epoch with the lowest perplexity of held-out text is kept."""
    initial_rate: float | None = 3e-3
    """Learning rate of the first step; it decays exponentially."""
    final_rate: float | None = 3e-4
    """Learning rate of the last step."""
    max_gradient_norm: float = 1.0
    """Gradient clipping: larger norms (of the mean loss per word) are scaled down to this."""
    model: WordLstmConfig = field(default_factory=WordLstmConfig)
    """The network; its vocabulary is taken from the text."""
    vocabulary_size: int | None = 20_000
    """Most frequent words of the text that the network tells apart; the recogniser's others share
    the probability of <UNK>. None: all that occur."""
    batch: int = 1000
    """Words per step."""
    samples: int = 2000
    """Words drawn for a step as competitors of the right ones; a vocabulary that is not larger is
    computed whole."""
    held_out: int = 50
    """One sentence in this many is held out for validation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        if self.held_out < 2:
            raise ValueError(f"held_out is {self.held_out}, needs to be at least 2")
        if self.vocabulary_size is not None and self.vocabulary_size < 1:
            raise ValueError(f"vocabulary_size is {self.vocabulary_size}, needs to be at least 1")


def train_neural_lm(
    sentences: Callable[[], Iterable[Sequence[str]]],
    vocabulary: Collection[str],
    config: NeuralLmConfig,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train a language model, or resume an interrupted training in `out`.

    Writes into `out`: the model (`config.json`, `model.safetensors`, `shortlist.json`),
    `history.json`, `headline.json` and TensorBoard events.

    Args:
      sentences: yields the normalised words of every sentence; called twice.
      vocabulary: the recogniser's words.
      config: sizes, rates, seed.
      out: folder of this training alone.
      device: device to train on.
      progress: called from time to time as progress(steps done, total steps).

    Returns:
      `perplexity` of the kept weights on held-out sentences, with words outside the shortlist
      scored as <UNK>; `words` per epoch, `words_per_second` of the last epoch.

    Raises:
      TrainingDataError: too little text.
      TrainingError: the training failed, or `out` holds another training.
    """
    out = Path(out)
    settings = settings_of(config)
    earlier = finished(out, settings)
    if earlier is not None:
        return earlier
    text = prepare_text(sentences, vocabulary, config.vocabulary_size, config.held_out)
    torch.manual_seed(config.seed)
    model = WordLstm(replace(config.model, vocabulary=len(text.shortlist.words)))
    logger.info(
        "%d sentences, %d held out, %d words, %.1f M parameters",
        *(len(text.train), len(text.valid), len(text.shortlist.words)),
        sum(parameter.numel() for parameter in model.parameters()) / 1e6,
    )
    trainer = Trainer(
        model,
        NextWord(torch.from_numpy(text.counts), config.samples),
        SentenceBatches(text.train, config.batch, config.seed),
        config,
        out,
        device=device,
        valid=SentenceBatches(text.valid, config.batch, config.seed),
        strategy=make_strategy(config.parallel, device),
        progress=progress,
    )
    with torch_threads(config.threads):
        record = trainer.run()
    NeuralLm(model, text.shortlist).save(out)
    headline = {
        "perplexity": math.exp(-record["score"]),
        "words": len(text.train.words),
        "words_per_second": record["frames_per_second"],
    }
    write_headline(out, settings, headline)
    trainer.clean()
    return headline
