"""Forward-backward over a batch of lattices packed into one: total scores, expected sums.

Recursions run over the steps of all lattices together, in float64. On a CPU a compiled loop (numba)
takes one step at a time; on a GPU torch takes all steps of a frame (all utterances, both
directions) at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from toolkit.fsa.fst import Lattice
from toolkit.kernels import njit
from toolkit.processes.devices import to_device


@dataclass(frozen=True, eq=False)
class PackedLattices:
    """N lattices with A arcs and S states in total, utterance by utterance, on one device.

    A recursion takes 2A steps, two for each arc: from its source to its target, and from a copy of
    its target to a copy of its source. The copy of state s is s + S. So forward and backward sums
    are computed together.
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
    """[2A] int64, the steps, ordered so that steps into a state precede steps out of it: a for arc
    a, and A + a for arc a taken backward."""
    sizes: tuple[int, ...]
    """Number of steps in each group of independent steps: one group for each frame of the longest
    utterance and one for its end. They add up to 2A."""
    starts: Tensor
    """[N] int64, the first state of each lattice."""
    ends: Tensor
    """[N] int64, the final state of each lattice."""
    emitting: Tensor
    """[E] int64, the arcs that read a frame."""
    frame: Tensor
    """[E] int64, the row of the scores that each of these reads."""
    pdf: Tensor
    """[E] int64, the column of the scores that it reads."""
    frames: Tensor
    """[N] int64, T of each lattice."""
    num_states: int
    """S."""


def pack(lattices: Sequence[Lattice], device: torch.device) -> PackedLattices:
    """Pack the lattices of a batch, and move them to a device in one transfer.

    Args:
      lattices: at least one, each with an arc to its final state.
      device: where to put the result.
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


@dataclass(frozen=True, eq=False)
class Steps:
    """The 2A steps of packed lattices in order of frames, between 2S states."""

    source: Tensor
    """[2A] int64, the state that each step leaves."""
    target: Tensor
    """[2A] int64, the state that it enters."""
    begin: Tensor
    """[2N] int64, the states where paths begin."""
    sizes: tuple[int, ...]
    """See `PackedLattices`."""
    num_states: int
    """2S."""

    @classmethod
    def of(cls, lattices: PackedLattices) -> "Steps":
        """Return the steps of packed lattices."""
        source, target, s = lattices.source, lattices.target, lattices.num_states
        return cls(
            torch.cat([source, target + s])[lattices.order],
            torch.cat([target, source + s])[lattices.order],
            torch.cat([lattices.starts, lattices.ends + s]),
            lattices.sizes,
            2 * s,
        )

    def groups(self, *of_steps: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield slices of source, target and `of_steps` [2A], one group of `sizes` at a time."""
        parts = (x.split(self.sizes) for x in (self.source, self.target, *of_steps))
        return zip(*parts, strict=True)


def runs_compiled(tensor: Tensor) -> bool:
    """Whether a recursion over this tensor runs as a compiled loop, i.e. on the CPU."""
    return tensor.device.type == "cpu"


def log_sums(steps: Steps, scores: Tensor) -> Tensor:
    """Return the log-sum-exp of the path scores into each state: [2S].

    Args:
      steps: 2A of them.
      scores: [2A] float64.

    Returns:
      float64; -inf where no path leads.
    """
    # For each state: its best path's score, and the sum over all paths as a multiple of the best.
    best = scores.new_full((steps.num_states,), -torch.inf)
    multiple = torch.zeros_like(best)
    best.index_fill_(0, steps.begin, 0.0)
    multiple.index_fill_(0, steps.begin, 1.0)
    if runs_compiled(scores):
        tensors = (steps.source, steps.target, scores, best, multiple)
        _log_sums(*(x.numpy() for x in tensors))
    else:
        _log_sums_by_frame(steps, scores, best, multiple)
    return best + multiple.log()


def _log_sums_by_frame(steps: Steps, scores: Tensor, best: Tensor, multiple: Tensor) -> None:
    """Compute `log_sums` frame by frame with torch operations; updates in place."""
    lowest = torch.finfo(best.dtype).min  # in place of -inf, which cannot be subtracted
    for source, target, score in steps.groups(scores):
        # All steps into a state belong to one group, so that `best` is final after it.
        into = best[source] + multiple[source].log() + score
        best.scatter_reduce_(0, target, into, "amax")
        multiple.index_add_(0, target, (into - best[target].clamp(min=lowest)).exp())


def mean_sums(steps: Steps, shares: Tensor, values: Tensor) -> Tensor:
    """Return the expected sum of the values on the paths into each state: [2S].

    Args:
      steps: 2A of them.
      shares: [2A] float64, each step's share of the paths into the state that it enters.
      values: [2A] float64.
    """
    means = shares.new_zeros(steps.num_states)
    if runs_compiled(shares):
        _mean_sums(*(x.numpy() for x in (steps.source, steps.target, shares, values, means)))
    else:
        _mean_sums_by_frame(steps, shares, values, means)
    return means


def _mean_sums_by_frame(steps: Steps, shares: Tensor, values: Tensor, means: Tensor) -> None:
    """Compute `mean_sums` frame by frame with torch operations; updates `means`."""
    means.index_add_(0, steps.target, shares * values)
    for source, target, share in steps.groups(shares):
        means.index_add_(0, target, share * means[source])


@njit(cache=True, nogil=True)
def _log_sums(
    source: np.ndarray,
    target: np.ndarray,
    scores: np.ndarray,
    best: np.ndarray,
    multiple: np.ndarray,
) -> None:
    """Compute `log_sums` on the CPU; updates `best` and `multiple` [2S] in place.

    The log-sum-exp of a state is best + log(multiple), where `best` is its largest summand so far.
    """
    total = 0.0
    for a in range(len(source)):
        # Steps out of a state often follow each other: its sum is computed once for them.
        if a == 0 or source[a] != source[a - 1]:
            total = best[source[a]] + np.log(multiple[source[a]])
        into, state = total + scores[a], target[a]
        if into == -np.inf:
            continue
        if into <= best[state]:
            multiple[state] += np.exp(into - best[state])
        else:  # a new largest summand: rescale
            multiple[state] = 1.0 + multiple[state] * np.exp(best[state] - into)
            best[state] = into


@njit(cache=True, nogil=True)
def _mean_sums(
    source: np.ndarray,
    target: np.ndarray,
    shares: np.ndarray,
    values: np.ndarray,
    means: np.ndarray,
) -> None:
    """Compute `mean_sums` on the CPU; updates `means` [2S] in place."""
    for a in range(len(source)):
        means[target[a]] += shares[a] * (means[source[a]] + values[a])


def total_scores(lattices: PackedLattices, scores: Tensor) -> Tensor:
    """Return the log-sum-exp of the path scores of each lattice: [N] float64.

    Args:
      lattices: N lattices of A arcs.
      scores: [A] float64, of the arcs. Their gradient is the arc's posterior.
    """
    return _PathSums.apply(scores, None, lattices)


def expected_sums(lattices: PackedLattices, scores: Tensor, values: Tensor) -> Tensor:
    """Return the expected sum of the values on a path of each lattice: [N] float64.

    Args:
      lattices: N lattices of A arcs.
      scores: [A] float64, of the arcs. Their gradient is gamma (c - c_hat), where gamma is the
        arc's posterior, c the sum expected on paths through the arc, and c_hat the sum expected on
        all paths.
      values: [A] float64, constants.
    """
    return _PathSums.apply(scores, values, lattices)


def pdf_posteriors(lattice: Lattice) -> tuple[Tensor, Tensor, Tensor]:
    """Return the posteriors of pdfs in each frame, from a lattice's own scores.

    Returns:
      Frames [K] int64 ascending, pdfs [K] int64, and their posteriors [K] float64, above 0; those
      of a frame sum to one.
    """
    packed = pack([lattice], torch.device("cpu"))
    scores = packed.scores.requires_grad_()
    (arc_posteriors,) = torch.autograd.grad(total_scores(packed, scores).sum(), scores)
    keys = (packed.frame * (1 + int(packed.pdf.max())) + packed.pdf).numpy()
    unique_keys, key_index = np.unique(keys, return_inverse=True)
    posteriors = torch.from_numpy(np.bincount(key_index, arc_posteriors[packed.emitting].numpy()))
    frames, pdfs = np.divmod(unique_keys, 1 + int(packed.pdf.max()))
    positive = posteriors > 0
    return (
        torch.from_numpy(frames)[positive],
        torch.from_numpy(pdfs)[positive],
        posteriors[positive],
    )


class _PathSums(torch.autograd.Function):
    """Differentiable total scores (if `values` is None) or expected sums.

    The gradient is computed in closed form along with the result, not through the recursion.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, values: Tensor | None, lattices: PackedLattices
    ) -> Tensor:
        packed = lattices
        steps = Steps.of(packed)
        step_scores = scores.repeat(2)[packed.order]
        logs = log_sums(steps, step_scores)  # [2S]: forward sums, then backward sums
        forward, backward = logs.split(packed.num_states)
        result = forward[packed.ends]
        # Posterior of arc a from s to d: gamma = exp(alpha(s) + score + beta(d) - total).
        gradient = forward[packed.source] + scores + backward[packed.target]
        gradient = (gradient - result[packed.utterance]).exp()
        if values is not None:
            # Each step's share of the paths into the state that it enters.
            target_logs = logs[steps.target]
            share = (logs[steps.source] + step_scores - target_logs).exp()
            share.masked_fill_(target_logs.isneginf(), 0.0)
            means = mean_sums(steps, share, values.repeat(2)[packed.order])
            forward, backward = means.split(packed.num_states)
            result = forward[packed.ends]
            # gamma (c - c_hat), c the sum expected on paths through the arc.
            through = forward[packed.source] + values + backward[packed.target]
            gradient *= through - result[packed.utterance]
        ctx.save_for_backward(gradient, packed.utterance)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        slope, utterance = ctx.saved_tensors
        return slope * gradient[utterance], None, None
