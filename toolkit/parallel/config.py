"""Configuration of data-parallel training: the method and its parameters."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from toolkit.config.settings import NO_EFFECT_ON_RESULTS
from toolkit.errors import ToolkitError

Method = Literal["single", "ssgd", "asgd", "gtc", "bmuf", "adpsgd", "hadpsgd", "scpsgd"]
LONGEST = 1e9
"""Longest timeout in seconds, three decades; torch counts it in nanoseconds of 64 bits."""


class ParallelError(ToolkitError):
    """The method does not fit the way in which the processes were started."""


@dataclass(frozen=True)
class GtcConfig:
    """Gradient threshold compression (C28; Strom 2015)."""

    threshold: float = 8.0
    """tau: elements beyond +-tau are sent, as +-tau. 8 (C28), which holds for gradients summed over
    a minibatch's frames; 0 sends everything as it is, as `ssgd` does."""
    grad_scale: Literal["sum", "mean"] = "sum"
    """Gradients that the threshold is compared with: of the loss summed over a worker's minibatch
    (the paper's), or of its mean, where a threshold of 8 / frames is equivalent."""
    density: float = 0.0
    """Share of the elements to be sent; the threshold is adapted to it step by step. 0: a fixed
    threshold (the paper)."""
    dense_fallback: bool = True
    """Send 2 bits for every element where that is shorter than 32 bits for each element sent, which
    is when more than a 16th is; the result is the same."""

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise ValueError(f"threshold is {self.threshold}, needs to be 0 or more")
        if self.grad_scale not in ("sum", "mean"):
            raise ValueError(f"grad_scale is {self.grad_scale!r}, needs to be sum or mean")
        if not 0 <= self.density < 1:
            raise ValueError(f"density is {self.density}, needs to be in [0, 1)")
        if self.density and not self.threshold:
            raise ValueError("density adapts a threshold, which needs to be above 0")


@dataclass(frozen=True)
class BmufConfig:
    """Blockwise model update filtering (C29; Chen and Huo 2016)."""

    block: int = 100
    """Minibatches of each worker between two exchanges; 100 (C29)."""
    momentum: float | None = None
    """Block momentum eta; None: 1 - 1/N for N workers."""
    rate: float = 1.0
    """C of equation 6; the block learning rate is zeta = C * N * (1 - eta). The paper has at
    least 1, with its momentum (C29). Without momentum it is 1/N for averaging; 1 would go N times
    as far as the mean of the workers."""
    nbm: Literal["seed", "nesterov"] = "nesterov"
    """Nesterov's step: `seed`, as equation 5 has it, keeps the model that was moved ahead, and goes
    (1 + eta) * N * C times as far as a worker would alone; `nesterov` keeps the two apart and goes
    N * C times as far."""
    warmup: int = 0
    """Number of first blocks in which models are only averaged, without block momentum."""
    optimizer: Literal["keep", "reset", "average"] = "keep"
    """The workers' optimizer states at the end of a block: each worker keeps its own, they are
    reset (CNTK), or they are averaged, which sends as many bytes again as the model for every
    moment that the optimizer has."""

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"block is {self.block}, needs to be at least 1")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}, needs to be in [0, 1)")
        if not self.rate > 0:
            raise ValueError(f"rate is {self.rate}, needs to be above 0")
        if self.nbm not in ("seed", "nesterov"):
            raise ValueError(f"nbm is {self.nbm!r}, needs to be seed or nesterov")
        if self.warmup < 0:
            raise ValueError(f"warmup is {self.warmup}, needs to be 0 or more")
        if self.optimizer not in ("keep", "reset", "average"):
            raise ValueError(f"optimizer is {self.optimizer!r}, needs to be keep, reset or average")


@dataclass(frozen=True)
class AdpsgdConfig:
    """Asynchronous decentralised SGD, between workers or between nodes (B1, B3)."""

    pattern: Literal["fixed", "random", "shuffled", "delayed"] = "fixed"
    """Which learners average with each other: `fixed`, neighbours on a ring in turn; `random`,
    every second learner draws a partner on its own each time, so that two may draw the same one;
    `shuffled`, neighbours on a ring that is shuffled for every averaging; `delayed` (delay by one),
    all with all while they compute the next gradient, which keeps equally fast workers in step with
    each other and is best for large batches."""
    node: int = 0
    """For `hadpsgd`: workers per node, which average gradients; 0: those of a host. 8 (B4)."""

    def __post_init__(self) -> None:
        if self.pattern not in ("fixed", "random", "shuffled", "delayed"):
            raise ValueError(
                f"pattern is {self.pattern!r}, needs to be fixed, random, shuffled or delayed"
            )
        if self.node < 0:
            raise ValueError(f"node is {self.node}, needs to be 0 or more")


@dataclass(frozen=True)
class AsgdConfig:
    """Asynchronous SGD (A19)."""

    parts: int = 0
    """Number of gradients, from any workers, whose mean makes an update; 0: as many as workers, so
    that an update is as large as that of `ssgd`. 1 applies every gradient on arrival."""
    max_gradient_norm: float = 5.0
    """Clipping: larger norms of the mean gradient are scaled down to this. (The trainer's own
    `max_gradient_norm` has no effect, as its optimizer sees no gradients.)"""

    def __post_init__(self) -> None:
        if self.parts < 0:
            raise ValueError(f"parts is {self.parts}, needs to be 0 or more")
        if not self.max_gradient_norm > 0:
            raise ValueError(f"max_gradient_norm is {self.max_gradient_norm}, needs to be above 0")


@dataclass(frozen=True)
class ParallelConfig:
    """How the processes that torchrun starts train one model; ignored by a single process."""

    method: Method = "single"
    """`ssgd`: averages gradients at every step; `gtc`: compressed gradients at every step; `bmuf`:
    models at the end of every block; `scpsgd`: models at every step; `adpsgd`, `hadpsgd`: models of
    neighbours in the background, between single workers or between nodes; `asgd`: gradients
    asynchronously, through a parameter server."""
    gtc: GtcConfig = GtcConfig()
    """Parameters of `gtc`."""
    bmuf: BmufConfig = BmufConfig()
    """Parameters of `bmuf`."""
    adpsgd: AdpsgdConfig = AdpsgdConfig()
    """Parameters of `adpsgd` and `hadpsgd`."""
    asgd: AsgdConfig = AsgdConfig()
    """Parameters of `asgd`."""
    rate_scaling: Literal["none", "linear", "root"] = "none"
    """Learning rates of N workers, whose joint batch is N times as large (C30): as configured; N
    times as high (`linear`: N workers then go as far in one step as one worker in N); or the
    square root of N times (`root`, often better with Adam). High rates need `warmup_steps`. Not for
    `bmuf`, whose workers train on their own."""
    timeout: float = field(default=45.0, metadata=NO_EFFECT_ON_RESULTS)
    """Seconds that a worker waits for the others in a collective operation before it assumes that
    they hang and the training stops; must exceed the lag of the slowest worker. Where workers do
    not wait for each other (`asgd`, `adpsgd`, `hadpsgd`) it limits a single step; there a worker
    may lag behind by any amount."""

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            known = ", ".join(get_args(Method))
            raise ValueError(f"method is {self.method!r}, needs to be one of {known}")
        if self.rate_scaling not in ("none", "linear", "root"):
            raise ValueError(
                f"rate_scaling is {self.rate_scaling!r}, needs to be none, linear or root"
            )
        if self.method == "bmuf" and self.rate_scaling != "none":
            raise ValueError("rate_scaling is not for bmuf, whose workers train on their own")
        if not 0 < self.timeout <= LONGEST:
            raise ValueError(
                f"timeout is {self.timeout}, needs to be above 0 and at most {LONGEST:g} seconds"
            )

    def rate_factor(self, workers: int) -> float:
        """Return how many times as high the learning rates of so many workers are."""
        return {"none": 1.0, "linear": float(workers), "root": workers**0.5}[self.rate_scaling]
