"""A cost model of pipeline runs on a given cluster, and the paper's figures (C24, C25, C34).

A worker's time for a partition is its computation, a fixed latency per call and the transfer of its
bytes; workers process partitions in waves. As files are of nearly equal length (C22), so are waves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolkit.config.fields import NonNegativeInt, PositiveInt, Settings
from toolkit.errors import ToolkitError
from toolkit.pipeline.rates import FEATURES, FUSED, FUSIBLE, Rates, StepRate

TASK_SECONDS = 0.1
"""Time to schedule one task: measured with Spark and empty tasks; the local executor needs less."""
SPAN_BYTES = 32e6
"""Audio in aggregated objects is fetched in spans of about this size."""


class PlanError(ToolkitError):
    """A step has no rate, or no cluster is large enough."""


@dataclass(frozen=True)
class Cluster(Settings):
    """A cluster of equal nodes, by default as in the paper (C25)."""

    nodes: PositiveInt = 50
    """Number of nodes. The paper does not say how many it used."""
    cores: PositiveInt = 16
    """Cores per node (c4.4xlarge, C25: 16)."""
    devices: NonNegativeInt = 0
    """GPUs per node (p3.16xlarge: 8)."""
    price: float = 0.0
    """Price per node and hour, in any currency; 0: costs are left out."""
    network: float = 1.25e9
    """Bytes per second between a node and the object store; 10 Gbit/s (p3.16xlarge: 3.1e9)."""
    latency: float = 0.2
    """Seconds per call of the object store (C24)."""
    bandwidth: float = 50e6
    """Bytes per second of one connection to the object store (C24)."""


@dataclass(frozen=True)
class StepPlan:
    """The plan of one step."""

    name: str
    partitions: int
    objects: int
    """Objects written."""
    calls: float
    """GET, PUT and HEAD calls, those for markers included."""
    read: float
    """Bytes read."""
    written: float
    """Bytes written."""
    workers: int
    """Workers that run at the same time: cores or devices of the whole cluster."""
    seconds: float
    """Wall time in seconds."""
    least: float
    """Wall time at the upper end of the speed's interval; `seconds` if that end is unknown."""
    most: float
    """Wall time at the lower end of that interval; `seconds` if that end is unknown."""
    measured_on: str
    """Data on which the speed was measured, in words."""
    bound: str
    """The bottleneck: computing, calls, connection, network or scheduling."""
    cost: float
    """Cost in the currency of the cluster's price."""


@dataclass(frozen=True)
class Plan:
    """The plan of a whole run."""

    hours: float
    cluster: Cluster
    steps: tuple[StepPlan, ...]
    fused: tuple[str, ...]
    """Names of the steps that are fused into one; empty: none."""
    saved: float | None
    """Bytes that need not be moved thanks to fusion; None without fusion, or if the fused step
    itself was measured."""
    hours_per_file: float
    hours_per_shard: float
    aggregated: bool
    """This, `hours_per_file` and `hours_per_shard` are the arguments of `plan` with these names."""

    @property
    def seconds(self) -> float:
        """Wall time of all steps, one after the other."""
        return sum(step.seconds for step in self.steps)

    @property
    def interval(self) -> tuple[float, float]:
        """Wall times with every speed at the upper end, and at the lower end, of its interval."""
        return sum(step.least for step in self.steps), sum(step.most for step in self.steps)

    @property
    def features_seconds(self) -> float:
        """Wall time until the features are there, before targets and training shards."""
        return sum(step.seconds for step in self.steps if step.name in FEATURES)

    @property
    def cost(self) -> float:
        """Cost of all steps."""
        return sum(step.cost for step in self.steps)


def plan(
    hours: float,
    cluster: Cluster,
    rates: Rates,
    hours_per_file: float = 5.0,
    hours_per_shard: float = 2.0,
    fuse: bool = True,
    aggregated: bool = True,
) -> Plan:
    """Predict time, calls, bytes and cost of a run.

    Args:
      hours: hours of audio.
      cluster: the cluster to run on.
      rates: measured rates of the steps.
      hours_per_file: hours of audio per file of grouped records (C16: 5).
      hours_per_shard: hours of audio per training shard (C21: 2).
      fuse: run extraction, shuffling and statistics as one step (C22).
      aggregated: whether the lake's audio is in large objects, not one per utterance (C15).

    Raises:
      PlanError: a step of the pipeline has no rate.
    """
    # 1. The rates of the steps. The fused step's rate is measured, or computed from its parts.
    steps = dict(rates.steps)
    measured_fused = steps.pop(FUSED, None)
    needed = {"select", "targets", "repartition"}
    if not fuse or measured_fused is None:
        needed |= set(FUSIBLE)
    if missing := needed - set(steps):
        raise PlanError(
            f"there are no rates for {', '.join(sorted(missing))}: measure them with `toolkit "
            "pipeline measure`"
        )
    fused: tuple[str, ...] = ()
    saved: float | None = None
    if fuse:
        parts = [steps.pop(name) for name in FUSIBLE if name in steps]
        fused, joined = FUSIBLE, measured_fused or _fuse(parts)
        if measured_fused is None:
            saved = hours * (sum(p.read + p.written for p in parts) - joined.read - joined.written)
        steps = {"select": steps.pop("select"), FUSED: joined, **steps}
    # 2. Each step: hours per partition, and how many objects a partition reads and writes.
    rows = []
    for name, rate in steps.items():
        per_partition = 1000.0 if name == "select" else hours_per_file
        gets = 1.0  # the file of records, or the first field of a shard
        if name.startswith("extract"):
            utterances = 3600 * hours_per_file / rates.seconds_per_utterance
            spans = max(1.0, hours_per_file * rates.audio_bytes / SPAN_BYTES)
            gets += spans if aggregated else utterances
        elif name in ("stats", "targets", "shuffle", "repartition"):
            gets += 1 + (name == "repartition")  # cuts and features (and targets)
        outputs = _outputs(name, hours_per_file, hours_per_shard)
        rows.append(_row(name, hours, cluster, rate, per_partition, gets, outputs))
    return Plan(
        hours,
        cluster,
        tuple(rows),
        fused,
        saved,
        hours_per_file=hours_per_file,
        hours_per_shard=hours_per_shard,
        aggregated=aggregated,
    )


def _fuse(parts: Sequence[StepRate]) -> StepRate:
    """Return the rate of extraction, shuffling and statistics as one step.

    Times add up. The step reads the first step's input and writes the shuffled shards and the
    statistics.
    """

    def speed(end: str) -> float:
        # The steps run one after the other on the same audio, so their seconds per hour of audio,
        # 1 / speed, add up.
        return 1 / sum(1 / (getattr(part, end) or part.speed) for part in parts)

    written = parts[1].written + parts[2].written
    has_intervals = any(part.low is not None for part in parts)
    low, high = (speed("low"), speed("high")) if has_intervals else (None, None)
    measured = dict.fromkeys(part.measured_on for part in parts)
    return StepRate(
        speed("speed"),
        parts[0].read,
        written,
        low=low,
        high=high,
        measured_on=", ".join(filter(None, measured)),
    )


def _outputs(name: str, hours_per_file: float, hours_per_shard: float) -> float:
    """Return the number of objects that a partition of a step writes."""
    if name == "repartition":  # cuts, features and targets of each new shard
        return 3 * hours_per_file / hours_per_shard
    if name == "select":
        return 1000.0 / hours_per_file
    # Cuts and features; the fused step writes statistics too.
    return {"stats": 1.0, "targets": 1.0}.get(name, 3.0 if "+" in name else 2.0)


def _row(
    name: str,
    hours: float,
    cluster: Cluster,
    rate: StepRate,
    per_partition: float,
    gets: float,
    puts: float,
) -> StepPlan:
    """Plan one step: its partitions, calls, bytes, wall time and bottleneck.

    A partition has `per_partition` hours of audio, reads `gets` objects and writes `puts`.
    """
    slots = cluster.devices if rate.device and cluster.devices else cluster.cores
    workers = cluster.nodes * slots
    partitions = max(1, math.ceil(hours / per_partition))
    partition_hours = min(per_partition, hours)
    calls = gets + puts + 1  # and the marker
    # Seconds that a worker spends on one partition, by cause; the largest is the bottleneck.
    computing = 3600 * partition_hours / rate.speed
    waits = {
        "computing": computing,
        "calls": calls * cluster.latency,
        # Bytes of the partition over the bandwidth of one connection to the store (C24)
        "connection": partition_hours * (rate.read + rate.written) / cluster.bandwidth,
        "scheduling": TASK_SECONDS,
    }
    waves = math.ceil(partitions / workers)
    bound = max(waits, key=lambda reason: waits[reason])
    # Seconds that all bytes take through the nodes' network cards
    through = hours * (rate.read + rate.written) / (cluster.nodes * cluster.network)

    # Slots take partitions in waves; the network limits all of them together.
    def wall(speed: float | None) -> float:
        overhead = sum(waits.values()) - computing
        return max(through, waves * (overhead + 3600 * partition_hours / (speed or rate.speed)))

    seconds = wall(None)
    if through >= seconds:
        bound = "network"
    return StepPlan(
        name=name,
        partitions=partitions,
        objects=round(partitions * puts),
        calls=partitions * calls,
        read=hours * rate.read,
        written=hours * rate.written,
        workers=min(workers, partitions),
        seconds=seconds,
        least=wall(rate.high),
        most=wall(rate.low),
        measured_on=rate.measured_on,
        bound=bound,
        cost=cluster.nodes * cluster.price * seconds / 3600,
    )


PAPER_HOURS = 1_000_000.0
PAPER_PIPELINE_DAYS = 7.6
PAPER = (
    ("time of features and targets", f"{PAPER_PIPELINE_DAYS} d (Figure 3)"),
    ("of which features", ""),
    ("of which targets, shards", ""),
    ("speed of features, targets", f"{PAPER_HOURS / PAPER_PIPELINE_DAYS / 24:,.0f} hours per hour"),
    ("training afterwards", "4.5 d on 64 GPUs"),
    ("audio", "107 TB at 256 kbps, about 1e9 utterances"),
    ("files of 5 h", "200,000"),
    ("features", "135 TB"),
    ("training partitions of 2 h", "500,000"),
)
"""The paper's figures for a million hours, cluster size unknown (C16, C17, C21, C34, C35)."""


def planned_figures(plan: Plan, rates: Rates) -> dict[str, str]:
    """Return a plan's figures under the names of `PAPER`."""
    features = next(s for s in plan.steps if s.name.startswith("extract"))
    shards = next(s for s in plan.steps if s.name == "repartition")
    days, until_features = plan.seconds / 86400, plan.features_seconds / 86400
    return {
        "time of features and targets": f"{days:,.2f} d",
        "of which features": f"{until_features:,.2f} d",
        "of which targets, shards": f"{days - until_features:,.2f} d",
        "speed of features, targets": f"{plan.hours / (days * 24):,.0f} hours per hour",
        "training afterwards": "",
        "audio": f"{plan.hours * rates.audio_bytes / 1e12:,.1f} TB, "
        f"{plan.hours * 3600 / rates.seconds_per_utterance:,.3g} utterances",
        "files of 5 h": f"{features.partitions:,}",
        "features": f"{features.written / 1e12:,.1f} TB",
        "training partitions of 2 h": f"{shards.objects // 3:,}",
    }


def nodes_for(days: float, reference: Plan, rates: Rates) -> int:
    """Return the smallest number of nodes, up to 100,000, that finish the run in `days`.

    Args:
      days: the limit.
      reference: a plan of the run; its number of nodes does not matter.
      rates: the rates from which the plan was made.

    Raises:
      PlanError: not even 100,000 nodes are enough.
    """

    def seconds(nodes: int) -> float:
        changed = plan(
            reference.hours,
            replace(reference.cluster, nodes=nodes),
            rates,
            reference.hours_per_file,
            reference.hours_per_shard,
            bool(reference.fused),
            reference.aggregated,
        )
        return changed.seconds

    low, high = 1, 100_000
    if seconds(high) > days * 86400:
        raise PlanError(
            f"{days:g} days are not enough for {reference.hours:,.0f} h of audio, even with "
            f"{high:,} nodes"
        )
    while low < high:
        middle = (low + high) // 2
        if seconds(middle) <= days * 86400:
            high = middle
        else:
            low = middle + 1
    return low
