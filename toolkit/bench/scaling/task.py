"""The task of the simulated workers, and the measured variation of training step times."""

from collections.abc import Iterable
from pathlib import Path
from time import process_time

import numpy as np
import torch

from toolkit.align.store import AlignmentStore, LowRateAlignments
from toolkit.features.low_frame_rate import centre, stack
from toolkit.features.normalise import Normaliser
from toolkit.features.store import FeatureStore
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.models.lstm import LstmConfig, LstmModel
from toolkit.parallel.simulator.tasks import (
    Frames,
    FrameTask,
    SequenceTask,
    SpeechLikeConfig,
    SyntheticConfig,
    speech_like_frames,
    synthetic_frames,
)
from toolkit.train.corpus import split_held_out

MOST_FRAMES = 500_000
VALID_UTTERANCES = 100


def make_task(run: Path | None, seed: int = 0) -> FrameTask:
    """Make the frame classification task, of a finished run directory or of synthetic frames.

    Args:
      run: see `frames_of`; None for frames drawn from Gaussians.
      seed: of weights, order, and the choice of utterances if there are too many.
    """
    if run is None:
        return FrameTask(*synthetic_frames(SyntheticConfig()), seed=seed)
    return FrameTask(*frames_of(run, seed), seed=seed)


def make_sequence_task(run: Path | None) -> SequenceTask:
    """Make the task with an LSTM, on frames of a run directory or on speech-like ones."""
    if run is None:
        return SequenceTask(*speech_like_frames(SpeechLikeConfig()))
    return SequenceTask(*frames_of(run), hidden=64)


def frames_of(run: Path, seed: int = 0) -> tuple[Frames, Frames]:
    """Load the low-rate frames of a finished run directory, utterance after utterance.

    Args:
      run: run directory with `fbank`, `ali`, `senones` and `sat`.
      seed: of the choice of utterances if there are too many.

    Returns:
      Frames to train on and to validate on. As in training, utterances are held out together with
      their augmented copies.
    """
    store = FeatureStore(run / "fbank" / "train")
    alignments = LowRateAlignments(
        AlignmentStore(run / "ali"),
        Topology.load(run / "sat" / "topology.json"),
        Senones.load(run / "senones"),
    )
    normaliser = Normaliser.load(run / "fbank" / "normaliser.json")
    aligned = set(alignments.ids)
    used, aside = split_held_out((n for n in store.ids if n in aligned), VALID_UTTERANCES)
    order = np.random.default_rng(seed).permutation(len(used))
    names = sorted(used)
    train = _frames(store, alignments, normaliser, (names[i] for i in order))
    return train, _frames(store, alignments, normaliser, sorted(aside))


def _frames(
    store: FeatureStore,
    alignments: LowRateAlignments,
    normaliser: Normaliser,
    names: Iterable[str],
) -> Frames:
    """Stack the frames of utterances (C5) until there are enough."""
    inputs, targets, total = [], [], 0
    for name in names:
        features = normaliser.apply(store.load(name), store.state(name))
        inputs.append(stack(features))
        targets.append(alignments.load(name)[centre(len(features))])
        total += len(inputs[-1])
        if total >= MOST_FRAMES:
            break
    return Frames(torch.cat(inputs).float(), torch.cat(targets))


def measured_shares(steps: int = 60) -> tuple[float, ...]:
    """Measure the variation of training step times on this machine: times divided by their mean.

    The times are processor times of a small LSTM on chunks of 32 frames, after some warm-up steps.
    """
    model = LstmModel(LstmConfig(input_dim=192, hidden=64, layers=2, output_dim=250))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(16, 32 + model.config.lookahead, 192)
    targets = torch.randint(250, (16 * 32,))
    times = []
    for _ in range(steps + 5):
        before = process_time()
        logits, _ = model(inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(process_time() - before)
    kept = sorted(times[5:])
    mean = sum(kept) / len(kept)
    return tuple(time / mean for time in kept)
