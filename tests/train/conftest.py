"""Builders of fake stores: features and alignments held in memory."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from toolkit.decode.ctc.search import GreedyDecoder
from toolkit.lang.units import Characters
from toolkit.models.config import CtcConfig
from toolkit.models.store import load_model
from toolkit.score.wer import error_rates
from toolkit.train.config import CtcTrainingConfig, StatesConfig
from toolkit.train.ctc.evaluation import HeldOutEvaluation, Recognition
from toolkit.train.ctc.objective import CtcLoss
from toolkit.train.ctc.readers import CtcBatch
from toolkit.train.ctc.training import train_ctc
from toolkit.train.runlog import Started, read_run_log


class MemoryFeatures:
    """Raw features by id, of one speaker; `loads` counts how often each was read."""

    kind = "fbank"

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

    def cmn_state(self, name):
        return 0.0

    def speaker(self, name):
        return "speaker"


class MemoryAlignments:
    def __init__(self, targets: dict[str, Tensor]):
        self.targets = targets

    @property
    def ids(self):
        return list(self.targets)

    def num_frames(self, name):
        return len(self.targets[name])

    def load(self, name):
        return self.targets[name]


class AddState:
    """A normaliser that adds the state, so tests can check that it arrives."""

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
            class_ids = torch.randint(num_targets, (length // 3 + 8,), generator=generator)
            x = 0.1 * torch.randn(length, dimension, generator=generator)
            raw = torch.arange(length) // 3
            if delay is not None:
                x[:, :num_targets] += torch.nn.functional.one_hot(class_ids[raw], num_targets)
                raw = (raw + delay).clamp(max=(length - 1) // 3)
            features[name] = x
            targets[name] = class_ids[raw].int()
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

    def num_frames(self, name):
        return self.lengths[name]

    def load(self, name):
        from toolkit.fsa.fst import FINAL, Lattice

        frames = self.lengths[name]
        frame = np.repeat(np.arange(frames + 1, dtype=np.int32), self.pdfs)
        labels = np.tile(np.arange(1, self.pdfs + 1, dtype=np.int32), frames + 1)
        # One arc to the final state; without frames there is no path.
        arcs = frames * self.pdfs + 1 if frames else 0
        labels[frames * self.pdfs :] = FINAL
        return Lattice(
            source=frame[:arcs],
            target=frame[:arcs] + 1,
            labels=labels[:arcs],
            scores=np.zeros(arcs, np.float32),
            splits=np.zeros(arcs + 1, np.int32),
            words=np.zeros(0, np.int32),
            frame=frame[:arcs],
            graph_arc=np.arange(arcs, dtype=np.int32),
        )


@pytest.fixture
def make_trellises():
    """Build lattices of the low-rate frames of features in memory."""

    def make(features, pdfs=5):
        lengths = {name: -(-len(x) // 3) for name, x in features.features.items()}
        return Trellises(lengths, pdfs)

    return make


@pytest.fixture
def write_store(tmp_path):
    """Write a feature store: write_store(lengths, dimension=3) -> its folder.

    Utterances u0, u1, ... of two speakers in two shards; features are noise.
    """
    from tests.dummies import dummy_recording
    from toolkit.corpus.manifest import make_cut
    from toolkit.features.config import FrontendConfig
    from toolkit.features.shards import write_manifest, write_shard

    def write(lengths, dimension=3, name="features"):
        generator = torch.Generator().manual_seed(0)
        config = FrontendConfig(num_mel_bins=dimension)
        rows = []
        for i, length in enumerate(lengths):
            x = 12 + 3 * torch.randn(length, dimension, generator=generator)
            rows.append((make_cut(f"u{i}", dummy_recording(0), "", f"s{i % 2}"), f"s{i % 2}", x))
        shards = [
            dict(
                zip(
                    ("utterances", "frames"),
                    write_shard(tmp_path / name / "shards", number, rows[number::2], config),
                    strict=True,
                )
            )
            for number in range(2)
        ]
        write_manifest(tmp_path / name, config, shards)
        return tmp_path / name

    return write


class Spelling:
    """Batches of synthetic utterances: each label is a few one-hot frames with noise.

    Args:
      utterances: how many.
      batch: utterances per batch.
      seed: of the texts and the noise.
    """

    def __init__(self, utterances: int = 24, batch: int = 4, seed: int = 0):
        chance = np.random.default_rng(seed)
        self.batch, self.units, self.items = batch, Characters(), []
        for number in range(utterances):
            words = ["".join(chance.choice(list("ABC"), chance.integers(1, 4))) for _ in range(2)]
            labels = self.units.encode(" ".join(words))
            frames = np.repeat(
                [min(label, 4) for label in labels], chance.integers(3, 6, len(labels))
            )
            inputs = torch.from_numpy(np.eye(5, dtype=np.float32)[frames])
            noise = torch.from_numpy(chance.standard_normal(inputs.shape).astype(np.float32))
            self.items.append((f"utterance{number:03d}", inputs + 0.1 * noise, labels))

    def num_steps(self, epoch, world_size=1):
        return len(self.items) // self.batch // world_size

    def batches(self, epoch, start=0, rank=0, world_size=1):
        order = np.random.default_rng([1, epoch]).permutation(len(self.items))
        for step in range(start, self.num_steps(epoch, world_size)):
            place = step * world_size + rank
            yield self.make_batch(order[place * self.batch : (place + 1) * self.batch])

    def make_batch(self, numbers):
        ids, inputs, labels = zip(*(self.items[i] for i in numbers), strict=True)
        rows = [torch.tensor(row) for row in labels]
        return CtcBatch(
            ids=list(ids),
            inputs=torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True),
            input_lengths=torch.tensor([len(x) for x in inputs]),
            labels=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            label_lengths=torch.tensor([len(row) for row in rows]),
            frames=sum(map(len, inputs)),
        )

    def in_order(self):
        """Return all utterances in batches, as held-out data."""
        return [
            self.make_batch(range(i, min(i + self.batch, len(self.items))))
            for i in range(0, len(self.items), self.batch)
        ]


class CtcToy:
    """A training on `Spelling` of about a second, and readers of its output folder."""

    decoder = GreedyDecoder(Characters())
    recognition = Recognition(Characters(), decoder, decoder, error_rates)
    config = CtcTrainingConfig(
        epochs=3,
        optimizer="adam",
        initial_rate=1e-2,
        final_rate=1e-2,
        model=CtcConfig(channels=(12,), kernels=(3,), strides=(1,), lstm_layers=1, hidden=16),
        states=StatesConfig(sentences_every=4, checkpoint_every=5, evaluator="in_place"),
        log_every=3,
    )
    data = Spelling()
    valid = Spelling(10, seed=1).in_order()
    evaluation = HeldOutEvaluation(valid, recognition, CtcLoss(Characters().blank))

    def train(self, out, config=None, evaluator="in_place", **options):
        """Train, 6 iterations per epoch."""
        config = config or self.config
        config = replace(config, states=replace(config.states, evaluator=evaluator))
        return train_ctc(self.data, self.valid, self.recognition, config, out, **options)

    def weights(self, out):
        return {name: x.clone() for name, x in load_model(out).state_dict().items()}

    def history(self, out):
        """Return the history without fields that depend on time."""
        timed = ("seconds", "frames_per_second", "data_wait")
        records = json.loads((out / "history.json").read_text())
        return [{k: v for k, v in record.items() if k not in timed} for record in records]

    def same(self, a, b):
        """Whether two trainings ended with the same bits."""
        first, second = self.weights(a), self.weights(b)
        alike = all(torch.equal(first[name], second[name]) for name in first)
        return alike and self.history(a) == self.history(b)

    def events(self, out):
        """Return the log's events without starts and without fields that depend on time."""
        timed = ("seconds", "duration", "waited", "trained", "seconds_in_step")
        events = [event for event in read_run_log(out).events if type(event) is not Started]
        return [replace(e, **{k: 0.0 for k in timed if hasattr(e, k)}) for e in events]


@pytest.fixture
def ctc_toy():
    return CtcToy()


class Interrupter:
    """A progress callback that interrupts a training after given steps, as if it were killed.

    Steps are counted from 1 over all trainings that report to it. A training reports once more at
    its end.
    """

    def __init__(self, *steps):
        self.steps, self.reports = set(steps), 0

    def __call__(self, done, total):
        self.reports += 1
        if self.reports in self.steps:
            raise KeyboardInterrupt


@pytest.fixture
def interrupt_after(monkeypatch):
    """Make an `Interrupter`; trainings report after every step."""
    monkeypatch.setattr("toolkit.train.monitor.SECONDS_BETWEEN_REPORTS", 0.0)
    return Interrupter
