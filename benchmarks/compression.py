"""Threshold compression of gradients: speed against copying memory, size against the entropy."""

import math
from statistics import NormalDist
from time import process_time

import torch

from benchmarks.run import Case, Table, Target, compare, rate_ratio
from toolkit.parallel.compression import PER_WORD, SPARSE, decode, encode, encode_fixed
from toolkit.processes.devices import one_thread

ELEMENTS = 24_300_000  # of the 5 x 768 LSTM (C6)
DENSITIES = (1e-4, 1e-3, 1e-2)
REPEATS = 5
COPY = "copying memory"
SMOKE = {"elements": 200_000, "repeats": 2}
TARGETS = (
    Target(
        "GTC encoding at a density of 0.001, relative to copying memory",
        0.9,
        rate_ratio("encode 0.001", COPY),
    ),
)


def benchmark(elements: int = ELEMENTS, repeats: int = REPEATS) -> Table:
    """Measure GB of float32 gradient per second of processor time, for several densities."""
    with one_thread():
        task = _Task(elements)
        cases = [Case(COPY, task.copy)]
        for density in DENSITIES:
            cases.append(Case(f"encode {density:g}", lambda d=density: task.encode(d)))
            cases.append(Case(f"decode {density:g}", lambda d=density: task.decode(d)))
        cases.append(Case("encode 0.001, fixed size, by torch's operators", task.encode_fixed))
        return compare(
            cases,
            unit="GB of gradient",
            baseline=COPY,
            repeats=repeats,
            title=f"Threshold compression of {elements / 1e6:.1f} M elements on one core",
            notes=task.notes(),
            clock=lambda: process_time() - task.preparing,
        )


def bits_per_element(density: float) -> float:
    """Return the entropy of each element sent, in bits: of its index and of its sign.

    Args:
      density: share of the elements that are sent, all equally likely.
    """
    density_below = 1 - density
    index_bits = -(density * math.log2(density) + density_below * math.log2(density_below))
    return index_bits / density + 1


class _Task:
    """A normally distributed gradient, and the threshold for each density."""

    def __init__(self, elements: int) -> None:
        self.preparing = 0.0  # seconds, which the clock excludes
        self._gradient = torch.randn(elements, generator=torch.Generator().manual_seed(0))
        self._residual = torch.zeros(elements)
        self._amount = elements * 4 / 1e9
        self._thresholds = {d: NormalDist().inv_cdf(1 - d / 2) for d in DENSITIES}
        self._messages = {d: self._message(d) for d in DENSITIES}

    def copy(self) -> float:
        """Copy as many bytes as the gradient has."""
        self._residual.copy_(self._gradient)
        return self._amount

    def encode(self, density: float) -> float:
        """Encode the gradient: add to the residual, compare, emit and subtract."""
        self._clear()
        encode(self._gradient, self._residual, self._thresholds[density])
        return self._amount

    def encode_fixed(self) -> float:
        """Encode as on a GPU, with torch's operators."""
        self._clear()
        room = len(self._gradient) // PER_WORD
        threshold = torch.tensor(self._thresholds[1e-3])
        encode_fixed(self._gradient, self._residual, threshold, room)
        return self._amount

    def decode(self, density: float) -> float:
        """Decode a message and add it to the sum over the workers."""
        decode(self._messages[density], self._thresholds[density], self._residual)
        return self._amount

    def notes(self) -> list[str]:
        """Report the sizes of the messages."""
        lines = []
        for density, message in self._messages.items():
            elements = len(message) - 1
            lines.append(
                f"Density {elements / len(self._gradient):.2e}: {elements} elements in"
                f" {4 * len(message) / 1e3:.1f} kB,"
                f" {4 * len(self._gradient) / (4 * len(message)):.0f} x smaller than dense;"
                f" {32 * len(message) / elements:.1f} bits per element; the entropy is"
                f" {bits_per_element(density):.1f}."
            )
        return [
            "Copying reads 4 and writes 4 bytes per element; encoding reads 8 and writes 4."
            " Decoding touches only the elements sent. Times are processor time.",
            *lines,
        ]

    def _message(self, density: float) -> torch.Tensor:
        """Encode the gradient with an empty residual."""
        self._residual.zero_()
        message = encode(self._gradient, self._residual, self._thresholds[density])
        assert int(message[0]) == SPARSE
        return message

    def _clear(self) -> None:
        """Set the residual to zero, and note how long that takes."""
        begin = process_time()
        self._residual.zero_()
        self.preparing += process_time() - begin
