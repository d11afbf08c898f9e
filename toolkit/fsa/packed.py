"""The lattices of a batch packed into one, so that a recursion goes through all of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolkit.fsa.fst import Lattice
from toolkit.processes.devices import to_device


@dataclass(frozen=True, eq=False)
class PackedLattices:
    """N lattices, A arcs and S states in all, utterance after utterance, on one device.

    A recursion takes 2A steps: every arc from its source to its target, and from a copy of its
    target to a copy of its source, where the copy of state s is s + S. So what is before each
    state and what is behind it are computed together.
    """

    scores: Tensor
    """[A] float64, the lattices' own scores."""
    utterance: Tensor
    """[A] int64, 0 ... N - 1."""
    source: Tensor
    """[A] int64, 0 ... S - 1."""
    target: Tensor
    """[A] int64, 0 ... S - 1."""
    order: Tensor
    """[2A] int64, the steps in an order in which those into a state precede those out of it: arcs,
    and A + arcs taken backward."""
    sizes: tuple[int, ...]
    """Steps of which none depends on another, for each frame of the longest utterance and its end;
    they add up to 2A."""
    starts: Tensor
    """[N] int64, the first state of each lattice."""
    ends: Tensor
    """[N] int64, the final state of each lattice."""
    emitting: Tensor
    """[E] int64, the arcs that read a frame."""
    frame: Tensor
    """[E] int64, the row of the scores that each of these reads."""
    pdf: Tensor
    """[E] int64, the column."""
    frames: Tensor
    """[N] int64, T of each lattice."""
    num_states: int
    """S."""


def pack(lattices: Sequence[Lattice], device: torch.device) -> PackedLattices:
    """Pack the lattices of a batch and move them to a device, all in one transfer.

    Args:
      lattices: at least one, each with an arc to its final state.
      device: of the result.
    """
    states = np.cumsum([0, *(x.num_states for x in lattices)])
    arcs = np.array([x.num_arcs for x in lattices])
    frames = np.array([x.frame.max() for x in lattices])
    utterance = np.repeat(np.arange(len(lattices)), arcs)
    frame = np.concatenate([x.frame for x in lattices])
    labels = np.concatenate([x.labels for x in lattices])
    offset = states[utterance]
    emitting = np.flatnonzero(labels > 0)
    # An arc of frame t is the t-th step from the start, and the (T - t)-th from the end.
    distance = np.concatenate([frame, frames[utterance] - frame])
    host = {
        "scores": np.concatenate([x.scores for x in lattices]).astype(np.float64).view(np.int64),
        "utterance": utterance,
        "source": np.concatenate([x.source for x in lattices]) + offset,
        "target": np.concatenate([x.target for x in lattices]) + offset,
        "order": np.argsort(distance, kind="stable"),
        "starts": states[:-1],
        "ends": states[1:] - 1,
        "emitting": emitting,
        "frame": frame[emitting],
        "pdf": labels[emitting] - 1,
        "frames": frames,
    }
    parts = to_device(torch.from_numpy(np.concatenate(list(host.values()))), device).split(
        [len(part) for part in host.values()]
    )
    tensors = dict(zip(host, parts, strict=True))
    return PackedLattices(
        **{**tensors, "scores": tensors["scores"].view(torch.float64)},
        sizes=tuple(np.bincount(distance).tolist()),
        num_states=int(states[-1]),
    )
