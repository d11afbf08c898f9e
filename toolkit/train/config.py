"""Settings of trainings: optimizer, learning rates, epochs, and how data are cut and batched."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from toolkit.config.settings import NO_EFFECT_ON_RESULTS
from toolkit.parallel.config import ParallelConfig

Amp = Literal["fp32", "bf16", "fp16", "auto"]
"""See `TrainerConfig.amp`."""
OptimizerName = Literal["adam", "adamw", "sgd", "adadelta", "adadelta_tensorflow"]
ScheduleName = Literal["exponential", "cosine", "noam"]
LIBRARY_RATE = {
    "adam": 1e-3,
    "adamw": 1e-3,
    "sgd": 1e-2,
    "adadelta": 1.0,
    "adadelta_tensorflow": 1e-3,
}
"""The libraries' default learning rates (for `sgd` that of Keras, as torch has none). With 1
AdaDelta is as published, without a learning rate (A18); TensorFlow's steps are a thousandth."""


@dataclass(frozen=True)
class TrainerConfig:
    """How a model is optimised, whatever the objective."""

    epochs: int = 10
    """Passes over the data; 10 for cross entropy on chunks (C7)."""
    optimizer: OptimizerName = "adam"
    """`adam` with torch's defaults, `adamw` with `weight_decay`, `sgd` with momentum, or AdaDelta
    (A18) with torch's defaults (`adadelta`) or TensorFlow's (`adadelta_tensorflow`)."""
    initial_rate: float | None = 1e-3
    """Learning rate after the warm-up, the highest one; C7 gives no values. None: the library's
    default for the optimizer, see `LIBRARY_RATE`."""
    final_rate: float | None = 1e-4
    """Learning rate of the last step; None: the same as the first, for a constant rate. Not used by
    the schedule `noam`."""
    schedule: ScheduleName = "exponential"
    """How the rate falls after the warm-up: `exponential` (C7), half a period of a `cosine`, or
    with the inverse square root of the step (`noam`, which needs `warmup_steps`)."""
    warmup_steps: int = 0
    """Steps of linear warm-up to `initial_rate`."""
    weight_decay: float = 0.0
    """Decoupled weight decay of `adamw`: a step takes the learning rate times this share off the
    weights. On matrices and filters alone, not on biases and normalisations."""
    accumulate: int = 1
    """Batches whose gradients are added up for one optimizer step, for larger batches than fit into
    memory. Rates, checkpoints and `warmup_steps` count steps."""
    momentum: float = 0.9
    """Momentum of `sgd`."""
    max_gradient_norm: float = 5.0
    """Gradient clipping: larger norms (of the mean loss per frame) are scaled down to this."""
    amp: Amp = "fp32"
    """Precision: float32; autocast to bfloat16 (`bf16`), up to twice as fast, while weights,
    optimizer and loss stay float32; to float16 with a scaled loss (`fp16`), for GPUs without
    bfloat16 (capability 7). `auto`: what the device is fastest in, which the log names."""
    tf32: bool | None = None
    """Whether a GPU's products of float32 have 10 bits (TF32), faster from capability 8 on. None:
    torch's own choice, TF32 in LSTMs and convolutions alone."""
    threads: int | None = None
    """CPU threads; None: one per core, see `toolkit.processes.devices`. Networks of a few million
    weights train fastest with one, especially beside other programs. The last bits of results
    depend on it."""
    average_epochs: int = 1
    """Number of last epochs whose weights are averaged; the average is kept if it scores
    better than the best epoch. 1: no averaging."""
    prefer_average: bool = False
    """Keep the average unless it scores less than each of its epochs, though some may score better:
    of many scores on few held-out speakers the best is so by chance, too."""
    seed: int = 0
    """Random seed of initial weights, data order and dropout."""
    checkpoint_seconds: float = field(default=300.0, metadata=NO_EFFECT_ON_RESULTS)
    """Seconds between two checkpoints, at most; there is one after every epoch as well."""
    parallel: ParallelConfig = ParallelConfig()
    """Data-parallel training, when torchrun starts several processes."""

    def __post_init__(self) -> None:
        for name in ("epochs", "average_epochs", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads is {self.threads}, needs to be at least 1")
        for name in ("initial_rate", "final_rate", "max_gradient_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, needs to be above 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}, needs to be in [0, 1)")
        for name in ("warmup_steps", "weight_decay", "seed", "checkpoint_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be 0 or more")
        if self.optimizer not in get_args(OptimizerName):
            known = ", ".join(get_args(OptimizerName))
            raise ValueError(f"optimizer is {self.optimizer!r}, needs to be one of {known}")
        if self.weight_decay and (self.optimizer != "adamw" or self.parallel.method == "asgd"):
            raise ValueError(
                f"weight_decay is {self.weight_decay}, needs optimizer=adamw, and a method other"
                " than asgd"
            )
        if self.schedule not in get_args(ScheduleName):
            known = ", ".join(get_args(ScheduleName))
            raise ValueError(f"schedule is {self.schedule!r}, needs to be one of {known}")
        if self.schedule == "noam" and not self.warmup_steps:
            raise ValueError("schedule is 'noam', needs warmup_steps above 0")
        if self.amp not in get_args(Amp):
            raise ValueError(f"amp is {self.amp!r}, needs to be one of {', '.join(get_args(Amp))}")

    def rates(self) -> tuple[float, float]:
        """The learning rates after the warm-up and at the end."""
        first = LIBRARY_RATE[self.optimizer] if self.initial_rate is None else self.initial_rate
        return first, first if self.final_rate is None else self.final_rate


@dataclass(frozen=True)
class CorpusTrainerConfig(TrainerConfig):
    """How a model is optimised on stored utterances, some of which are held out for validation."""

    valid_utterances: int = 100
    """Training utterances held out for validation: from eight speakers on all utterances of about
    ten speakers, of more if these have fewer, at most an eighth; with fewer speakers at most a
    tenth of the utterances. They are chosen by a checksum of their ids, so that every training
    holds out the same, and their augmented copies are left out. 0: none. Not used when validation
    data is given."""
    valid_seed: int = 0
    """Seed of the choice of what is held out, to be the same in all trainings of a run."""
    max_excluded: float = 0.2
    """Largest share of unusable utterances; with more, training fails."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("valid_utterances", "valid_seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be 0 or more")
        if not 0 <= self.max_excluded <= 1:
            raise ValueError(f"max_excluded is {self.max_excluded}, needs to be in [0, 1]")


@dataclass(frozen=True)
class ChunkConfig:
    """How utterances are cut and shuffled."""

    frames: int = 32
    """Scored low-rate frames (30 ms) per chunk; 32 (C7). The state is zero at its start."""
    left_context: int = 0
    """Low-rate frames before the chunk that are computed but not scored; none in the paper."""
    right_context: int = 0
    """Low-rate frames after the chunk that are computed but not scored, beyond the look-ahead;
    for bidirectional models."""
    batch: int = 64
    """Chunks per batch."""
    window: int = 4_000_000
    """Raw frames (10 ms) of the shards that are loaded and shuffled together; with 64 values per
    frame 4 million are 11 hours in 0.5 GB, and up to twice as many are in memory. A corpus with
    fewer frames is loaded once and shuffled as a whole."""

    def __post_init__(self) -> None:
        for name in ("frames", "batch", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        for name in ("left_context", "right_context"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be 0 or more")


@dataclass(frozen=True)
class WholeUtteranceConfig:
    """The epochs on whole utterances, after those on chunks."""

    epochs: int = 0
    """Passes over the data; 2 in the paper (C7)."""
    initial_rate: float = 1e-4
    """Learning rate of the first step. It falls as `schedule` says, or exponentially where that is
    `noam`."""
    final_rate: float = 5e-5
    """Learning rate of the last step."""
    batch_frames: int = 4096
    """Low-rate frames (30 ms) per batch, padding included: two minutes, twice those of 64 chunks.
    A longer utterance is a batch of its own."""
    max_frames: int = 1000
    """Low-rate frames above which an utterance is cut into pieces of about equal length, each of
    which starts with a zero state like an utterance: 30 s."""

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ValueError(f"epochs is {self.epochs}, needs to be 0 or more")
        for name in ("batch_frames", "max_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        for name in ("initial_rate", "final_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be above 0")


@dataclass(frozen=True)
class SpecAugmentConfig:
    """SpecAugment masks; none by default, as in the paper.

    Frequency masks are for spectra: in other features, such as those of speaker-adapted GMMs,
    neighbouring dimensions have nothing in common.
    """

    frequency_masks: int = 0
    """Number of frequency masks per row, the same for all its frames; 2 are common."""
    frequency_width: int = 12
    """Largest width of a frequency mask in mel bins; widths are drawn from 0 to this."""
    time_masks: float = 0.0
    """Mean number of time masks per second of a row; try 1 for chunks of a second."""
    time_width: int = 5
    """Largest width of a time mask in low-rate frames (30 ms); widths are drawn from 0 to this."""

    def __post_init__(self) -> None:
        for name in ("frequency_masks", "frequency_width", "time_masks", "time_width"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be 0 or more")

    @property
    def active(self) -> bool:
        """Whether anything is masked."""
        return self.frequency_masks * self.frequency_width > 0 or (
            self.time_masks * self.time_width > 0
        )
