"""Synthetic data: features that show a class with noise, and shards with a teacher's targets."""

import json
from dataclasses import dataclass, field

import torch

from tests.dummies import dummy_recording
from toolkit.corpus.manifest import make_cut
from toolkit.features.config import FrontendConfig
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR, stack
from toolkit.features.shards import FeatureStore, TarWriter, write_manifest, write_shard
from toolkit.models.scorer import batch_logits
from toolkit.ssl.targets import k_best

CLASSES = 6


@dataclass
class SyntheticData:
    """Utterances of a Markov chain of classes, each shown by a noisy place, and their targets.

    A class follows the one before with certainty in most frames, so that who hears the whole
    utterance knows more than who hears a frame.
    """

    folder: object
    targets: dict = field(default_factory=dict)

    @property
    def store(self):
        return FeatureStore(self.folder)

    @property
    def ids(self):
        return list(self.targets)

    def load(self, name):
        return self.targets[name]

    def label(self, model, normaliser, k=CLASSES, offset=0):
        """Write a teacher's targets next to the features, as the pipeline does."""
        store = self.store
        frames = 0
        for index, shard in enumerate(store.shards):
            with open(self.folder / "shards" / f"targets.{index:06d}.tar", "wb") as file:
                tar = TarWriter(file)
                for name in shard:
                    x = stack(normaliser.apply(store.load(name), store.cmn_state(name)), offset)
                    best = k_best(batch_logits(model, [x])[0], k)
                    tar.add_array(name, best.pack(), {})
                    frames += len(best)
                tar.close()
        manifest = {"senones": model.config.output_dim, "k": k, "offset": offset, "frames": frames}
        (self.folder / "targets.json").write_text(json.dumps(manifest))
        return self.folder


def write_synthetic(folder, count, seed=0, noise=1.0, shards=2, prefix="u", shortest=45):
    generator = torch.Generator().manual_seed(seed)
    places = 2 * torch.eye(CLASSES, 5)
    config = FrontendConfig(num_mel_bins=5)
    synthetic, rows = SyntheticData(folder), []
    for number in range(count):
        length = int(torch.randint(shortest, 2 * shortest, (1,), generator=generator))
        states = [0]
        for chance in torch.rand(length // LOW_RATE_FACTOR + 2, generator=generator).tolist():
            step = 0 if chance < 0.6 else 1 if chance < 0.95 else 2
            states.append((states[-1] + step) % CLASSES)
        senones = torch.tensor(states)[torch.arange(length) // LOW_RATE_FACTOR]
        x = 10 + places[senones] + noise * torch.randn(length, 5, generator=generator)
        name, speaker = f"{prefix}{number:03d}", f"{prefix}s{number % 4}"
        rows.append((make_cut(name, dummy_recording(0), "", speaker), speaker, x))
        synthetic.targets[name] = senones.int()
    counts = []
    for index in range(shards):
        written = write_shard(folder / "shards", index, rows[index::shards], config)
        counts.append(dict(zip(("utterances", "frames"), written, strict=True)))
    write_manifest(folder, config, counts)
    return synthetic
