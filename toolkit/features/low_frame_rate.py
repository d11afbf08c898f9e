"""Low frame rate: stacks raw frames, as views of features stored at 100 Hz (C5)."""

import torch
from torch import Tensor

from toolkit.features.config import LOW_RATE_FACTOR


def stack(features: Tensor, offset: int = 0, factor: int = LOW_RATE_FACTOR) -> Tensor:
    """Stack each run of `factor` frames into one, e.g. 10 ms frames into 30 ms frames (C5).

    Low-rate frame n holds the raw frames factor * n + offset ... factor * (n + 1) + offset - 1,
    oldest first. If the utterance ends inside a stack, its last frame is repeated.

    Args:
      features: [T, F].
      offset: 0 ... factor - 1; training rotates it over epochs (C7).
      factor: frames per stack.

    Returns:
      [ceil((T - offset) / factor), factor * F]; no frames if T <= offset.
    """
    num_frames, dimension = features.shape
    length = low_rate_length(num_frames, offset, factor)
    if length == 0:
        return features.new_empty(0, factor * dimension)
    # Frames that the last stack lacks: repeat the utterance's last frame.
    missing = offset + length * factor - num_frames
    if missing:
        features = torch.cat([features, features[-1:].expand(missing, -1)])
    return features[offset : offset + length * factor].reshape(length, factor * dimension)


def centre(num_frames: int, offset: int = 0, factor: int = LOW_RATE_FACTOR) -> Tensor:
    """Return the index of the raw frame in the middle of every stack.

    `targets[centre(T, offset)]` are the targets of `stack(features, offset)`.

    Args:
      num_frames: T, raw frames of the utterance.
      offset, factor: as in `stack`.

    Returns:
      [ceil((T - offset) / factor)] int64: factor * n + offset + factor // 2, at most T - 1.
    """
    length = low_rate_length(num_frames, offset, factor)
    indices = torch.arange(length) * factor + offset + factor // 2
    return indices.clamp(max=max(num_frames - 1, 0))


def low_rate_length(num_frames: int, offset: int = 0, factor: int = LOW_RATE_FACTOR) -> int:
    """Return the number of stacks: ceil((T - offset) / factor), or 0 if T <= offset."""
    if not 0 <= offset < factor:
        raise ValueError(f"offset is {offset} but must be from 0 to {factor - 1}")
    # Ceiling division: -(-a // b) with a = T - offset.
    return max(0, -((offset - num_frames) // factor))
