"""Configuration of data-parallel training: the method and its parameters."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from toolkit.config.fields import (
    NonNegative,
    NonNegativeInt,
    Positive,
    Range,
    Settings,
    ShareBelowOne,
)
from toolkit.config.settings import NO_EFFECT_ON_RESULTS
from toolkit.errors import ToolkitError

Method = Literal["single", "ssgd", "asgd", "gtc", "bmuf", "adpsgd", "hadpsgd", "scpsgd"]
LONGEST = 1e9
"""Longest timeout in seconds, three decades; torch counts nanoseconds in 64 bits."""


class ParallelError(ToolkitError):
    """The method does not fit how the processes were started, or its models diverged."""


@dataclass(frozen=True)
class GtcConfig(Settings):
    """Gradient threshold compression (C28; Strom 2015)."""

    threshold: NonNegative = 8.0
    """tau: elements of the gradient beyond +-tau are sent, as +tau or -tau. 8 (C28) is for
    gradients summed over a minibatch's frames; 0 sends all elements unchanged, as `ssgd` does."""
    grad_scale: Literal["sum", "mean"] = "sum"
    """Which gradients are compared with the threshold. `sum` (the paper): gradients of the loss
    summed over a worker's minibatch. `mean`: gradients of the mean loss over the minibatch, for
    which tau = 8 / frames is equivalent to 8 with `sum`."""
    density: ShareBelowOne = 0.0
    """Share of the elements to be sent; the threshold is adapted step by step to reach it. 0: a
    fixed threshold (the paper)."""
    dense_fallback: bool = True
    """If more than a 16th of the elements is beyond the threshold, send 2 bits for every element
    instead of 32 bits for each of these. This is shorter, and the result is the same."""

    def check(self) -> None:
        """Check that there is a threshold to adapt."""
        if self.density and not self.threshold:
            raise ValueError("`density` adapts `threshold`, so `threshold` must be above 0")


@dataclass(frozen=True)
class BmufConfig(Settings):
    """Blockwise model update filtering (C29; Chen and Huo 2016)."""

    block: Annotated[int, Range(1, 1 << 24)] = 100
    """Minibatches of each worker between two exchanges; 100 (C29)."""
    momentum: ShareBelowOne | None = None
    """Block momentum eta; None: 1 - 1/N for N workers."""
    rate: Positive = 1.0
    """C of equation 6; the block learning rate is zeta = C * N * (1 - eta). The paper uses block
    momentum and a C of at least 1 (C29). Without momentum, C = 1/N is plain averaging, and C = 1
    moves the global model N times as far as the mean of the workers' models."""
    nbm: Literal["seed", "nesterov"] = "nesterov"
    """Variant of Nesterov's momentum, in which a block begins with the global model moved ahead.
    `seed`, as in equation 5: the moved model becomes the global model, which thus moves
    (1 + eta) * N * C times as far as a single worker would. `nesterov`: the two models are
    separate, and the global model moves N * C times as far."""
    warmup: NonNegativeInt = 0
    """Number of first blocks in which models are only averaged, without block momentum."""
    optimizer: Literal["keep", "reset", "average"] = "keep"
    """What happens to the workers' optimizer states at the end of a block. `keep`: each worker
    keeps its own. `reset` (CNTK): they are reset. `average`: they are averaged; for each moment of
    the optimizer, this sends as many additional bytes as the model has."""


@dataclass(frozen=True)
class AdpsgdConfig(Settings):
    """Asynchronous decentralised SGD, between workers or between nodes (B1, B3)."""

    pattern: Literal["fixed", "random", "shuffled", "delayed"] = "fixed"
    """Which learners average with each other. `fixed`: neighbours on a ring in turn. `random`:
    every second learner draws a partner independently each time, so two may draw the same one.
    `shuffled`: neighbours on a ring that is shuffled for every averaging. `delayed` (delay by one):
    all with all, while they compute the next gradient. `delayed` keeps the workers in step with
    each other. It suits equally fast workers, and is best for large batches."""
    workers_per_node: NonNegativeInt = 0
    """Workers per node, which average their gradients (`hadpsgd` only). 0: all workers of a host.
    The paper has 8 (B4)."""


@dataclass(frozen=True)
class AsgdConfig(Settings):
    """Asynchronous SGD (A19)."""

    gradients_per_update: NonNegativeInt = 0
    """Number of gradients, from any workers, that are averaged for an update. 0: the number of
    workers, so that updates are as large as those of `ssgd`. 1 applies every gradient on
    arrival."""
    max_gradient_norm: Positive = 5.0
    """Largest norm of the mean gradient; a larger one is scaled down to this. (The trainer's
    setting `max_gradient_norm` has no effect, as the trainer's optimizer gets no gradients.)"""


@dataclass(frozen=True)
class ParallelConfig(Settings):
    """How the processes that torchrun starts train one model; ignored by a single process."""

    method: Method = "single"
    """What workers average, and when. `ssgd`: gradients at every step. `gtc`: compressed gradients
    at every step. `bmuf`: models at the end of every block. `scpsgd`: models at every step.
    `adpsgd`, `hadpsgd`: models of neighbours in the background, between single workers or between
    nodes. `asgd`: gradients asynchronously, through a parameter server."""
    gtc: GtcConfig = GtcConfig()
    """Parameters of `gtc`."""
    bmuf: BmufConfig = BmufConfig()
    """Parameters of `bmuf`."""
    adpsgd: AdpsgdConfig = AdpsgdConfig()
    """Parameters of `adpsgd` and `hadpsgd`."""
    asgd: AsgdConfig = AsgdConfig()
    """Parameters of `asgd`."""
    rate_scaling: Literal["none", "linear", "root"] = "none"
    """Learning rates of N workers, whose joint batch is N times as large (C30). `none`: as
    configured. `linear`: N times as high, so that N workers go as far in one step as one worker in
    N steps. `root`: the square root of N times as high, often better with Adam. High rates need
    `warmup_steps`. Not for `bmuf`, whose workers train independently within a block."""
    timeout: Annotated[float, Range(above=0, most=LONGEST)] = field(
        default=45.0, metadata=NO_EFFECT_ON_RESULTS
    )
    """Seconds that a worker waits for the others in a collective operation. After that time, the
    others are assumed to hang, and the training stops. The timeout must exceed the lag of the
    slowest worker. If workers do not wait for each other (`asgd`, `adpsgd`, `hadpsgd`), it limits a
    single step, and a worker may lag behind by any amount."""

    def check(self) -> None:
        """Refuse to scale the learning rates of `bmuf`."""
        if self.method == "bmuf" and self.rate_scaling != "none":
            raise ValueError(
                "`rate_scaling` must be none for `bmuf`, whose workers train independently within "
                "a block"
            )

    def rate_factor(self, workers: int) -> float:
        """Return the factor by which learning rates are multiplied for this many workers."""
        return {"none": 1.0, "linear": float(workers), "root": workers**0.5}[self.rate_scaling]
