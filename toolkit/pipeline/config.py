"""Settings of the data pipeline: stores, executors, steps and whole runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from toolkit.config.fields import (
    ListLength,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Range,
    Settings,
)
from toolkit.features.config import LOW_RATE_FACTOR, FrontendConfig

ComputeThreads = Annotated[int, Range(1, 100_000)]
"""A number of threads or cores, at least 1."""
LowRateOffset = Annotated[int, Range(0, LOW_RATE_FACTOR - 1)]
"""Raw frame at which the first low-rate frame begins."""
SECRETS = ("key", "secret", "token", "password", "credential")


@dataclass(frozen=True)
class StoreConfig(Settings):
    """How the objects of a store are read and written."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of fsspec's file system, such as `{"endpoint_url": "http://localhost:5000"}`; never
    credentials."""
    tries: PositiveInt = 8
    """Number of tries of a call to the store, including the first, before it counts as failed."""
    first_wait: NonNegative = 0.2
    """Longest wait in seconds before the second try; it doubles with each further try. The actual
    wait is drawn uniformly between 0 and this limit, so that workers do not retry together."""
    longest_wait: NonNegative = 20.0
    """Upper limit in seconds of the wait between two tries."""
    timeout: NonNegative = 60.0
    """Seconds without an answer after which a call is given up and repeated."""
    part_bytes: Annotated[int, Range(5 << 20)] = 64 << 20
    """Objects of at least twice this size in bytes are uploaded to S3 in parts of this size; S3
    requires at least 5 MiB."""

    def check(self) -> None:
        """Refuse credentials among the options."""
        # Settings are shared in files and stored with runs, so they must not contain secrets.
        for name in self.options:
            if any(secret in name.lower() for secret in SECRETS):
                raise ValueError(
                    f"the option {name!r} is a credential, which must not be a setting. Set it in "
                    "the environment or in the profile of the object store's own tools"
                )


@dataclass(frozen=True)
class ExecutorConfig(Settings):
    """Settings of all executors."""

    store: StoreConfig = field(default_factory=StoreConfig)
    """How objects are read and written."""
    tries: PositiveInt = 3
    """Attempts at a partition before it is set aside."""
    timeout: Positive | None = None
    """Seconds that one attempt may take before it is given up and tried elsewhere; files are of
    nearly the same length (C22), so a few times the usual time is enough. None: no limit."""
    threads: ComputeThreads = 1
    """Threads per worker for computing; their number may change the last bits of results."""
    scratch: Path | None = None
    """Local folder for temporary files; None: the system's temporary folder."""


@dataclass(frozen=True)
class SparkConfig(Settings):
    """The cluster and the resources of each executor (C23)."""

    master: str = "local-cluster[2,1,1024]"
    """URL of the cluster; `local-cluster[workers,cores,MB]` starts real executors on this
    machine."""
    executor_cores: ComputeThreads | None = None
    """Cores per executor; None: all cores of its node."""
    executor_memory: str = "1g"
    """Heap size of an executor's JVM, which only passes on lists. The Python workers need
    additional memory."""
    task_cpus: ComputeThreads = 1
    """Cores per task: the number of threads with which a step computes."""
    gpus_per_executor: NonNegativeInt = 0
    """GPUs that an executor requests from its node."""
    gpus_per_task: NonNegative = 1.0
    """GPUs per task, if executors have GPUs (C20); with 0.5, two tasks share a GPU."""
    gpu_discovery: str | None = None
    """Spark's GPU discovery script, which prints a node's GPUs; see Spark's documentation."""
    python: str | None = None
    """Python interpreter of the executors; None: the path of this process's interpreter."""
    packages: tuple[str, ...] = ()
    """Archives with the executors' environment (conda-pack, venv-pack), as `path#folder`, or
    further Python files to ship."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further properties of Spark."""


@dataclass(frozen=True)
class ExecutorSection(Settings):
    """The executor of the pipeline's steps; both kinds produce the same results, byte for byte."""

    kind: Literal["local", "spark"] = "local"
    """`local`: processes of this machine, one per job; `spark`: a Spark cluster."""
    settings: ExecutorConfig = field(default_factory=ExecutorConfig)
    """Settings of both kinds."""
    spark: SparkConfig = field(default_factory=SparkConfig)
    """The cluster, for `spark`."""


@dataclass(frozen=True)
class SelectConfig(Settings):
    """How much audio is selected from the lake, and which records are eligible."""

    hours: Positive = 1_000_000.0
    """Hours of audio to select; 1,000,000 (C16)."""
    hours_per_file: Positive = 5.0
    """Hours of audio per file of grouped records; 5 (C16)."""
    oversampling: Annotated[float, Range(1)] = 1.02
    """The first sample is this many times as large as estimated from average lengths (C16)."""
    seed: int = 0
    """Random seed for the choice of records."""
    since: float | None = None
    """Earliest creation time in seconds since 1970; None for no limit."""
    until: float | None = None
    """Upper limit, exclusive, of the creation time in seconds since 1970; None for no limit."""
    locale: str | None = None
    """Only records of this locale; None for all."""
    min_duration: NonNegative = 0.1
    """Shortest utterance in seconds."""
    max_duration: float = 60.0
    """Longest utterance in seconds."""

    def check(self) -> None:
        """Refuse an empty range of durations."""
        if self.min_duration >= self.max_duration:
            raise ValueError(
                f"`min_duration` is {self.min_duration:g} but must be below `max_duration`, which "
                f"is {self.max_duration:g}"
            )


@dataclass(frozen=True)
class ShuffleConfig(Settings):
    """Settings of `Shuffle`."""

    seed: int = 0
    """Random seed for the order of the files and of the utterances in each."""


@dataclass(frozen=True)
class StatsConfig(Settings):
    """Settings of `Stats`."""

    prior_frames: NonNegativeInt = 200
    """Weight in frames of the causal mean's prior, as in the recipe's normaliser."""


@dataclass(frozen=True)
class PrepareConfig(Settings):
    """Settings of the steps from lake to features."""

    select: SelectConfig = field(default_factory=SelectConfig)
    """Selection of records from the lake (C16)."""
    frontend: FrontendConfig = field(default_factory=FrontendConfig)
    """The front end; by default that of the paper (C5)."""
    shuffle: ShuffleConfig = field(default_factory=ShuffleConfig)
    """Shuffling of files and utterances (C18)."""
    stats: StatsConfig = field(default_factory=StatsConfig)
    """Statistics for the normaliser (C19)."""


@dataclass(frozen=True)
class TargetsSection(Settings):
    """The part of a teacher's posteriors that is kept."""

    k: ListLength = 20
    """Number of the highest logits kept per frame; 20 in the paper (C11)."""
    offsets: tuple[LowRateOffset, ...] = (0,)
    """Frame offsets of the subsampling, 0, 1 or 2, used in turn by successive passes over the data.
    A single pass (C12) needs one."""

    def check(self) -> None:
        """Refuse offsets that are used twice, or none."""
        if not self.offsets or len(set(self.offsets)) < len(self.offsets):
            raise ValueError(
                f"`offsets` is {self.offsets}; give at least one offset, and none of them twice"
            )


@dataclass(frozen=True)
class RepartitionConfig(Settings):
    """Settings of `Repartition`."""

    hours: Positive = 2.0
    """Audio per shard in hours; 2 (C21)."""


@dataclass(frozen=True)
class CacheConfig(Settings):
    """Settings of the local cache of objects."""

    folder: Path | None = None
    """Folder of the copies, preferably on a fast disk; None: the user's cache folder."""
    gigabytes: Positive = 50.0
    """Disk space that the copies may take. Two groups of shards (`chunks.shuffle_frames`) should
    fit."""
    threads: ComputeThreads = 12
    """Number of objects that are fetched at the same time."""


DEVICE = re.compile(r"cpu|cuda(:\d+)?", re.ASCII)


@dataclass(frozen=True)
class RunPlan(Settings):
    """A run of the far-field pipeline; relative paths are relative to the plan's file."""

    lake: str = ""
    """Prefix of the lake: a folder, or a URL such as `s3://bucket/lake`."""
    out: str = ""
    """Prefix of all outputs: a folder or a URL."""
    steps: tuple[Literal["features", "targets"], ...] = ("features", "targets")
    """`features`: select, extract, shuffle and estimate statistics; `targets`: the teacher's
    targets and shards for training."""
    jobs: PositiveInt = 1
    """Processes of the local executor."""
    device: str = "cpu"
    """Device on which the local executor computes targets: `cpu`, `cuda` for every GPU, or one GPU,
    such as `cuda:1`."""
    executor: ExecutorSection = field(default_factory=ExecutorSection)
    """Local processes or a Spark cluster, and the store's settings."""
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    """Settings of `features`."""
    teacher: Path | None = None
    """Folder of the trained teacher, for `targets`."""
    normaliser: Path | None = None
    """Normaliser of the features that the teacher was trained on, for `targets`."""
    targets: TargetsSection = TargetsSection()
    """The part of the teacher's posteriors that is kept."""
    repartition: RepartitionConfig = RepartitionConfig()
    """Shards for training."""

    def check(self) -> None:
        """Refuse unknown devices, and targets without features."""
        if not DEVICE.fullmatch(self.device):
            raise ValueError(
                f"`device` is {self.device!r}; it must be cpu, cuda or one GPU, such as cuda:1"
            )
        if not self.steps or self.steps[0] != "features" or len(set(self.steps)) < len(self.steps):
            raise ValueError(
                f"`steps` is {list(self.steps)} but must be [features] or [features, targets]"
            )
