"""Builders of fake stores: features and alignments held in memory."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor


class MemoryFeatures:
    """Raw features by id; `loads` counts how often each was read."""

    def __init__(self, features: dict[str, Tensor], shard_size: int = 4):
        self.features = features
        names = list(features)
        self.shards = [names[i : i + shard_size] for i in range(0, len(names), shard_size)]
        self.loads = dict.fromkeys(names, 0)

    def num_frames(self, name):
        return len(self.features[name])

    def load(self, name):
        self.loads[name] += 1
        return self.features[name]

    def state(self, name):
        return 0.0


class MemoryAlignments:
    def __init__(self, targets: dict[str, Tensor]):
        self.targets = targets

    @property
    def ids(self):
        return list(self.targets)

    def load(self, name):
        return self.targets[name]


class AddState:
    """A normaliser that adds the state, so that tests see whether it arrives."""

    def apply(self, features, state):
        return features + state


@dataclass
class Stores:
    features: MemoryFeatures
    alignments: MemoryAlignments
    normaliser: AddState


@pytest.fixture
def make_stores():
    """Build stores of utterances with given raw lengths.

    By default features are noise and targets random. With `delay` given, the target of low-rate
    frame n (at offset 0) is the class shown in low-rate frame n + delay.
    """

    def make(lengths, num_targets=5, dimension=4, seed=0, delay=None, shard_size=4):
        generator = torch.Generator().manual_seed(seed)
        features, targets = {}, {}
        for i, length in enumerate(lengths):
            name = f"utt{i:03d}"
            shown = torch.randint(num_targets, (length // 3 + 8,), generator=generator)
            x = 0.1 * torch.randn(length, dimension, generator=generator)
            raw = torch.arange(length) // 3
            if delay is not None:
                x[:, :num_targets] += torch.nn.functional.one_hot(shown[raw], num_targets)
                raw = (raw + delay).clamp(max=(length - 1) // 3)
            features[name] = x
            targets[name] = shown[raw].int()
        return Stores(MemoryFeatures(features, shard_size), MemoryAlignments(targets), AddState())

    return make


class Trellises:
    """Lattices in which every pdf may stand in every frame, at the same graph score.

    Args:
      lengths: frames by utterance.
      pdfs: number of pdfs.
    """

    def __init__(self, lengths, pdfs):
        self.lengths, self.pdfs = lengths, pdfs

    @property
    def ids(self):
        return list(self.lengths)

    def load(self, name):
        import k2

        frames = self.lengths[name]
        if not frames:  # no path
            fsa = k2.connect(k2.Fsa.from_str("0 1 1 0.0\n2 3 -1 0.0\n3"))
            fsa.frame = torch.zeros(0, dtype=torch.int32)
            return fsa
        label = torch.arange(1, self.pdfs + 1).repeat(frames)
        start = torch.arange(frames).repeat_interleave(self.pdfs)
        arcs = torch.stack([start, start + 1, label, torch.zeros_like(label)], dim=1)
        end = torch.tensor([[frames, frames + 1, -1, 0]])
        fsa = k2.Fsa(torch.cat([arcs, end]).int())
        fsa.frame = torch.cat([start, torch.tensor([-1])]).int()
        return fsa


@pytest.fixture
def make_trellises():
    """Build lattices of the low-rate frames of features in memory."""

    def make(features, pdfs=5):
        lengths = {name: -(-len(x) // 3) for name, x in features.features.items()}
        return Trellises(lengths, pdfs)

    return make
