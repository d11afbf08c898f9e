"""Speech detection: whether anybody speaks in an utterance, so that noise does not become words.

A recogniser finds words in any sound, even with high confidence, since its training data contains
nothing but speech. Therefore a small network compares windows of up to a second with speech and
with synthetic sounds (`toolkit.features.nonspeech`). It is trained when a bundle is written. An
utterance with no window of speech has no words. Windows do not depend on later frames, so that a
stream gives the same result as the whole utterance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from scipy.signal import fftconvolve
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from toolkit.decode.bundle import ADVICE
from toolkit.errors import ToolkitError
from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend
from toolkit.features.nonspeech import Rng, synthetic_sound
from toolkit.features.silence import counted_frames
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading

DETECTOR = "speech.safetensors"
"""Name of the detector's file in a bundle."""

# Windows, in frames that are not digital silence.
FIRST_WINDOW, STEP, WINDOW = 50, 25, 100
"""The first windows hold the first 50, 75 and 100 frames of the utterance. Later windows have 100
frames, too, and end 25 frames after the one before. One more window ends with the utterance."""
LEAST_FRAMES = 20
"""Frames in which a word can be heard; an utterance with fewer has no speech."""

CHANNELS, KERNEL, STRIDE = 48, 5, 2
"""Outputs, width and stride of the two convolutions."""
LARGEST_DEVIATION = 5.0
"""Limit of the inputs, in standard deviations of speech."""

# Training.
SOUNDS = 500
"""Number of synthetic sounds."""
SOUND_SECONDS = (2.0, 6.0)
COPIES = 1
"""Number of degraded copies of each utterance of the training speech."""
STEPS, BATCH, RATE, WEIGHT_DECAY = 1000, 32, 3e-3, 1e-3
"""Steps of AdamW; windows of speech, and as many of sounds, in a step; initial learning rate, which
falls like a cosine; weight decay."""
FASTEST = 1.25
"""Highest speed of the degraded copies; the lowest is its inverse."""
LOUD_SHARE = 0.4
"""Share of a window's frames that must be louder than the median of its utterance, so that the
window has speech and not a pause."""
HELD_OUT = 0.2
"""Share of the speech and of the sounds that the training does not use; it sets the threshold."""
MISSED, MARGIN, HIGHEST_THRESHOLD = 0.01, 1.0, 2.0
"""The threshold is `MARGIN` below the score that this share of the held-out speech, degraded or
not, does not reach, and at most `HIGHEST_THRESHOLD`, in log-odds."""


class SpeechDetectorError(ToolkitError):
    """Raised when a speech detector cannot be trained or read."""


class SpeechDetector(nn.Module):
    """Tells speech from other sounds.

    The mean of a window is subtracted from its frames, so that level, channel and steady noise do
    not matter. Two convolutions, mean and maximum over time, and a linear layer follow.

    Args:
      frontend: the front end of the features.
    """

    def __init__(self, frontend: FrontendConfig) -> None:
        super().__init__()
        self.kind = frontend.kind
        self.convolutions = nn.Sequential(
            nn.Conv1d(frontend.dimension, CHANNELS, KERNEL, STRIDE),
            nn.ReLU(),
            nn.Conv1d(CHANNELS, CHANNELS, KERNEL, STRIDE),
            nn.ReLU(),
        )
        self.output = nn.Linear(2 * CHANNELS, 1)
        self.register_buffer("scale", torch.ones(frontend.dimension))
        """[F] standard deviations of speech around the mean of its utterance."""
        self.register_buffer("threshold", torch.zeros(1))
        """[1] score above which a window is speech."""

    def forward(self, windows: Tensor) -> Tensor:
        """Map windows [N, T, F] to scores [N]: log-odds of speech."""
        deviations = (windows - windows.mean(dim=1, keepdim=True)) / self.scale
        limited = deviations.clamp(-LARGEST_DEVIATION, LARGEST_DEVIATION)
        hidden = self.convolutions(limited.transpose(1, 2))  # [N, C, T']
        pooled = torch.cat([hidden.mean(dim=2), hidden.amax(dim=2)], dim=1)  # [N, 2 C]
        return self.output(pooled).squeeze(1)

    def score(self, features: Tensor) -> float:
        """Return the highest score of an utterance's windows, in log-odds; -inf if it is too short.

        Args:
          features: [T, F] before normalisation.
        """
        stream = SpeechStream(self, math.inf)
        stream.push(features)
        stream.finish()
        return stream.score

    def has_speech(self, features: Tensor) -> bool:
        """Return whether anybody speaks in an utterance of features [T, F] before normalisation."""
        stream = SpeechStream(self)
        for block in features.split(WINDOW):  # speech is usually found in the first
            stream.push(block)
        return stream.finish()

    def save(self, path: Path) -> None:
        """Write weights and threshold."""
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        write_atomically(path, save(tensors))

    @classmethod
    def load(cls, path: Path, frontend: FrontendConfig) -> "SpeechDetector":
        """Read the detector that `save` wrote.

        Args:
          path: its file.
          frontend: the front end of the features.

        Raises:
          SpeechDetectorError: the file is damaged, or was made for another front end.
        """
        detector = cls(frontend)
        with reading(path, SpeechDetectorError, ADVICE, "not a speech detector for this front end"):
            tensors, _ = read_tensors(path, {})
            detector.load_state_dict(tensors)
            if not bool((detector.scale > 0).all()):
                raise ValueError("a scale is not positive")
        return detector.eval()


def load_detector(bundle: Path, frontend: FrontendConfig) -> SpeechDetector | None:
    """Load a bundle's speech detector; None if it has none.

    Raises:
      SpeechDetectorError: see `SpeechDetector.load`.
    """
    path = bundle / DETECTOR
    return SpeechDetector.load(path, frontend) if path.exists() else None


class SpeechStream:
    """Looks for speech in an utterance whose features arrive in blocks of any length.

    Args:
      detector: scores the windows.
      threshold: score above which a window is speech; None: that of the detector.
    """

    def __init__(self, detector: SpeechDetector, threshold: float | None = None) -> None:
        self._detector = detector
        self._threshold = float(detector.threshold) if threshold is None else threshold
        self._frames = torch.zeros(0, len(detector.scale))
        self._num_frames = 0  # all that have arrived; `_frames` holds the last of them
        self._next_end = FIRST_WINDOW
        self.score = -math.inf
        """The highest score of the windows so far."""

    @property
    def has_speech(self) -> bool:
        """Whether one of the windows so far is speech; later windows are then not scored."""
        return self.score > self._threshold

    def push(self, features: Tensor) -> None:
        """Take the next features [T, F] before normalisation."""
        if self.has_speech:
            return
        frames = features[counted_frames(features, self._detector.kind)]
        self._frames = torch.cat([self._frames, frames])
        self._num_frames += len(frames)
        ends = range(self._next_end, self._num_frames + 1, STEP)
        self._take([self._window(end) for end in ends])
        self._next_end += STEP * len(ends)
        self._frames = self._frames[-WINDOW - STEP :]

    def finish(self) -> bool:
        """Score the last window; return whether the utterance has speech."""
        if self._num_frames >= LEAST_FRAMES and not self.has_speech:
            self._take([self._window(self._num_frames)])
        return self.has_speech

    def _window(self, end: int) -> Tensor:
        """Return the window [T, F] that ends at a frame."""
        first = self._num_frames - len(self._frames)
        return self._frames[max(0, end - WINDOW - first) : end - first]

    def _take(self, windows: Sequence[Tensor]) -> None:
        """Score windows."""
        short = [window[None] for window in windows if len(window) < WINDOW]
        full = [window for window in windows if len(window) == WINDOW]
        with torch.inference_mode():
            for batch in [*short, *([torch.stack(full)] if full else [])]:
                self.score = max(self.score, float(self._detector(batch).max()))


@dataclass(frozen=True)
class _Recording:
    """Features of speech or of a sound, without digital silence."""

    features: Tensor
    """[T, F]"""
    loud_before: np.ndarray
    """[T + 1] number of loud frames before each frame; all frames of a sound count as loud."""


def train_speech_detector(
    speech: Sequence[np.ndarray], config: FrontendConfig
) -> tuple[SpeechDetector, dict[str, float]]:
    """Train a detector on speech and on synthetic sounds.

    The speech is also used with other speeds, levels, echoes and noise.

    Args:
      speech: utterances, [S] float32 at the front end's sampling rate.
      config: the front end of the features.

    Returns:
      The detector; and the percentages of the held-out speech, degraded or not, and of the held-out
      sounds that it takes for speech.

    Raises:
      SpeechDetectorError: fewer than five utterances are long enough.
    """
    rng, frontend = np.random.default_rng(0), Frontend(config)
    # 1. Features of the speech and its degraded copies, and of the sounds. An utterance must be
    # long enough at any speed.
    least_ms = LEAST_FRAMES * config.frame_shift_ms + config.frame_length_ms
    least = FASTEST * config.sampling_rate * least_ms / 1000
    spoken = []
    for samples in (samples for samples in speech if len(samples) >= least):
        copies = [_recording(samples, samples, frontend)]
        for _ in range(COPIES):
            faster = _other_speed(rng, samples)
            degraded = _degraded(rng, faster, config.sampling_rate)
            copies.append(_recording(degraded, faster, frontend))
        spoken.append([copy for copy in copies if len(copy.features) >= LEAST_FRAMES])
    spoken = [copies for copies in spoken if copies]
    if len(spoken) < 1 / HELD_OUT:
        raise SpeechDetectorError(
            f"cannot train a speech detector: this needs {round(1 / HELD_OUT)} utterances of at "
            f"least {LEAST_FRAMES * config.frame_shift_ms / 1000:g} s, but there are only "
            f"{len(spoken)}"
        )
    sounds = []
    for _ in range(SOUNDS):
        size = int(rng.uniform(*SOUND_SECONDS) * config.sampling_rate)
        samples = synthetic_sound(rng, size, config.sampling_rate)
        recording = _recording(samples, None, frontend)
        sounds += [recording] if len(recording.features) >= LEAST_FRAMES else []
    # 2. Train. The held-out speech is other utterances, not copies of the same ones.
    held_speech = [copy for copies in spoken[: _held_out(spoken)] for copy in copies]
    train_speech = [copy for copies in spoken[_held_out(spoken) :] for copy in copies]
    held_sounds, train_sounds = sounds[: _held_out(sounds)], sounds[_held_out(sounds) :]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        detector = SpeechDetector(config)
    deviations = [r.features - r.features.mean(dim=0) for r in train_speech]
    detector.scale.copy_(torch.cat(deviations).std(dim=0).clamp(min=1e-3))
    optimizer = torch.optim.AdamW(detector.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    targets = torch.arange(2 * BATCH).lt(BATCH).float()  # speech first
    # Both kinds have windows of up to this length.
    pools = (train_speech, train_sounds)
    longest = min(WINDOW, *(max(len(r.features) for r in pool) for pool in pools))
    for _ in range(STEPS):
        length = int(rng.integers(LEAST_FRAMES, longest + 1))
        windows = _draw(rng, train_speech, length) + _draw(rng, train_sounds, length)
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(detector(torch.stack(windows)), targets).backward()
        optimizer.step()
        schedule.step()
    # 3. Set the threshold.
    detector.eval()
    scores = np.array([detector.score(recording.features) for recording in held_speech])
    lowest = float(np.quantile(scores, MISSED))
    detector.threshold.fill_(min(HIGHEST_THRESHOLD, lowest - MARGIN))
    of_sounds = np.array([detector.score(recording.features) for recording in held_sounds])
    threshold = float(detector.threshold)
    return detector, {
        "percent of held-out speech detected": 100 * float((scores > threshold).mean()),
        "percent of held-out sounds detected": 100 * float((of_sounds > threshold).mean()),
    }


def _held_out(recordings: Sequence[object]) -> int:
    """Return how many of the recordings the training does not use."""
    return math.ceil(HELD_OUT * len(recordings))


def _recording(samples: np.ndarray, clean: np.ndarray | None, frontend: Frontend) -> _Recording:
    """Compute features, and find the loud frames in the clean samples; None: all frames."""
    features = frontend(torch.from_numpy(samples))
    counted = counted_frames(features, frontend.config.kind)
    if clean is None:
        return _Recording(features[counted], np.arange(int(counted.sum()) + 1))
    # Energy of each frame's first `shift` samples.
    shift = len(clean) // max(1, len(features))
    pieces = clean[: shift * len(features)].reshape(len(features), -1)
    energies = np.square(pieces, dtype=np.float64).mean(axis=1)
    loud = (energies >= np.median(energies))[counted.numpy()]
    return _Recording(features[counted], np.concatenate([[0], np.cumsum(loud)]))


def _other_speed(rng: Rng, samples: np.ndarray) -> np.ndarray:
    """Return half of the utterances at 0.8 to 1.25 times their speed, as voices of other size."""
    if rng.random() < 0.5:
        return samples
    places = np.arange(0, len(samples) - 1, rng.uniform(1 / FASTEST, FASTEST))
    return np.interp(places, np.arange(len(samples)), samples).astype(np.float32)


def _degraded(rng: Rng, samples: np.ndarray, rate: int) -> np.ndarray:
    """Add an echo to some utterances, noise of -3 to 30 dB SNR to most, and change the level."""
    degraded = samples.astype(np.float64)
    if rng.random() < 0.3:
        # An exponentially decaying echo: 60 dB in 0.1 to 0.5 s, 6 to 26 dB below the direct sound.
        size = int(rng.uniform(0.1, 0.5) * rate)
        echo = rng.standard_normal(size) * np.exp(-np.log(1000) * np.arange(size) / size)
        echo *= rng.uniform(0.05, 0.5) / np.sqrt(np.square(echo).sum())
        echo[0] = 1
        degraded = fftconvolve(degraded, echo)[: len(samples)]
    if rng.random() < 0.7:
        sound = synthetic_sound(rng, len(samples), rate).astype(np.float64)
        power = np.square(sound).mean()
        if power > 0:
            snr = 10 ** (rng.uniform(-3, 30) / 10)
            degraded = degraded + sound * np.sqrt(np.square(degraded).mean() / (power * snr))
    return (degraded * 10 ** (rng.uniform(-30, 6) / 20)).astype(np.float32)


def _draw(rng: Rng, recordings: Sequence[_Recording], length: int) -> list[Tensor]:
    """Return `BATCH` windows [length, F] of recordings drawn at random, loud ones if there are."""
    long_enough = [r for r in recordings if len(r.loud_before) > length]
    windows = []
    for number in rng.integers(len(long_enough), size=BATCH):
        recording = long_enough[number]
        in_window = recording.loud_before[length:] - recording.loud_before[:-length]
        begins = np.flatnonzero(in_window >= LOUD_SHARE * length)
        if not len(begins):
            begins = np.arange(len(in_window))
        begin = begins[rng.integers(len(begins))]
        windows.append(recording.features[begin : begin + length])
    return windows
