"""What the benchmarks should reach: ratios to limits of the machine and to other engines."""

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.bench import align, compression, decode, features, lattice, train
from toolkit.bench.ctc import train as train_ctc
from toolkit.bench.growth import command as growth
from toolkit.bench.instruments.harness import Table

Value = Callable[[Table], float]
"""Takes a number from a table; raises a `KeyError` where it was not measured."""


@dataclass(frozen=True)
class Target:
    """A bound on a number of a benchmark."""

    benchmark: str
    what: str
    """Of at most 62 letters, so that the table of all fits into the lines of a log file."""
    bound: float
    value: Value
    at_most: bool = False
    """Whether the number should not exceed the bound; otherwise not fall short of it."""

    def met(self, value: float) -> bool:
        """Whether a value is on the right side of the bound."""
        return value <= self.bound if self.at_most else value >= self.bound


def missed(benchmark: str, table: Table) -> bool:
    """Whether a table of a benchmark misses one of its targets; what was not measured does not."""
    for target in TARGETS:
        if target.benchmark == benchmark:
            try:
                value = target.value(table)
            except KeyError:
                continue
            if not target.met(value):
                return True
    return False


def _ratio(name: str, other: str) -> Value:
    """Return the rate of a case relative to another's."""
    return lambda table: table.row(name).rate / table.row(other).rate


def _figure(name: str) -> Value:
    return lambda table: table.figures[name]


TARGETS = (
    Target(
        "train",
        "LSTM on chunks, float32: share of the GEMM limit",
        0.9,
        _ratio(train.CHUNKS, train.LIMIT),
    ),
    Target(
        "train",
        "LSTM on chunks, bfloat16: share of its own GEMM limit",
        0.9,
        _ratio(train.CHUNKS16, train.LIMIT16),
    ),
    Target(
        "train-ctc",
        "CTC network, float32: share of the GEMM limit",
        0.8,
        _ratio(train_ctc.STEP, train_ctc.LIMIT),
    ),
    Target(
        "features",
        "FLAC to shard, relative to bare kaldifeat on samples",
        0.9,
        _ratio(features.TO_SHARD, features.KALDIFEAT),
    ),
    Target(
        "decode",
        "best path at equal WER, time relative to FasterDecoder's",
        1.0,
        _figure(decode.LARGEST),
        at_most=True,
    ),
    Target(
        "decode",
        "lattices at equal WER, time relative to k2's",
        1.0,
        _figure(decode.LARGEST_K2),
        at_most=True,
    ),
    Target(
        "compression",
        "GTC encoding at a density of 0.001, relative to copying memory",
        0.9,
        _ratio("encode 0.001", compression.COPY),
    ),
    Target("lattice", f"lattices, {lattice.SIZE}", 0.4, _figure(lattice.SIZE), at_most=True),
    Target(
        "align",
        "statistics of EM, relative to kaldi-hmm-gmm",
        3.0,
        _ratio(align.SUMS, align.KALDI_SUMS),
    ),
    Target(
        "align",
        "alignment, real-time factor on one core",
        0.001,
        lambda table: 1 / table.row(align.OURS).rate,
        at_most=True,
    ),
    Target("growth", growth.TIME, growth.MOST_OF_TIME, _figure(growth.TIME), at_most=True),
    Target("growth", growth.MEMORY, growth.MOST_OF_MEMORY, _figure(growth.MEMORY), at_most=True),
)
