"""Alignments of augmented copies, derived from those of their originals."""

from functools import cached_property

import torch
from torch import Tensor

from toolkit.align.store import AlignmentStore, LowRateAlignments, OffsetAlignments
from toolkit.features.augment import original_and_speed
from toolkit.features.store import FeatureStore


class AugmentedAlignments:
    """Targets of the 10 ms frames of augmented copies.

    Changing the speed scales time, and nothing else moves a frame: frame t of a copy, centred at
    (t + 1/2) of its frames, has the target of the original's frame that contains the time
    (t + 1/2) * speed. So copies need no alignment of their own.

    Args:
      alignments: of the originals.
      features: of the copies.
    """

    def __init__(
        self,
        alignments: AlignmentStore | LowRateAlignments | OffsetAlignments,
        features: FeatureStore,
    ) -> None:
        self._alignments = alignments
        self._features = features

    @cached_property
    def ids(self) -> list[str]:
        """The copies whose originals are aligned."""
        aligned = set(self._alignments.ids)
        names = (name for shard in self._features.shards for name in shard)
        return [name for name in names if original_and_speed(name)[0] in aligned]

    def load(self, utterance: str) -> Tensor:
        """The target of every 10 ms frame, [T] int64.

        Where the original's alignment does not fit the copy's features, T is what fits the former.
        """
        name, speed = original_and_speed(utterance)
        targets = self._alignments.load(name)
        frames = self._features.num_frames(utterance)
        # Both lengths are rounded, each by half a frame of its own at most.
        if abs(frames * speed - len(targets)) > (1 + speed) / 2 + 0.05:
            frames = round(len(targets) / speed)
        doubled = (2 * torch.arange(frames) + 1) * speed.numerator
        index = torch.div(doubled, 2 * speed.denominator, rounding_mode="floor")
        return targets[index.clamp(max=len(targets) - 1)].long()
