"""Logits of trained models on stored features, for the choice of k and for calibration."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from toolkit.features.low_frame_rate import low_rate_length, stack
from toolkit.features.normalise import Normaliser
from toolkit.features.store import FeatureStore
from toolkit.models.lstm import batch_logits
from toolkit.models.store import load_model
from toolkit.train.batches import slices_within

FRAMES_PER_BATCH = 4096
"""Low-rate frames including padding."""


@dataclass(frozen=True)
class TrainedModel:
    """A trained model and the normaliser of its features."""

    model: Path
    """Folder of the model."""
    normaliser: Path
    """File of the normaliser."""
    device: str = "cpu"
    """Where the model computes."""

    def load(self) -> tuple[nn.Module, Normaliser]:
        """Load model and normaliser."""
        return load_model(self.model).to(self.device), Normaliser.load(self.normaliser)


def compute_logits(
    models: Sequence[tuple[nn.Module, Normaliser]], store: FeatureStore, names: Iterable[str]
) -> Iterator[tuple[str, list[Tensor]]]:
    """Compute the logits of several models on the same utterances, at offset 0.

    Args:
      models: each with the normaliser of its features.
      store: raw features.
      names: ids of utterances that have frames.

    Yields:
      Utterance id and each model's logits, [T, C] float32, on the CPU; from the longest utterance
      to the shortest, for little padding.
    """
    ordered = sorted(names, key=lambda name: (-store.num_frames(name), name))
    lengths = [low_rate_length(store.num_frames(name)) for name in ordered]
    for group in slices_within(lengths, FRAMES_PER_BATCH):
        batch = ordered[group]
        raw = [(store.load(name), store.state(name)) for name in batch]
        found = [
            batch_logits(model, [stack(normaliser.apply(x, state)) for x, state in raw])
            for model, normaliser in models
        ]
        for number, name in enumerate(batch):
            yield name, [logits[number].float().cpu() for logits in found]


def sample_utterances(names: Iterable[str], number: int) -> list[str]:
    """Sample utterances by a checksum of their ids."""
    ranked = sorted(names, key=lambda name: (zlib.crc32(name.encode()), name))
    return ranked[:number]
