from itertools import product

import numpy as np
import pytest

from benchmarks import compression
from benchmarks.compression import benchmark, bits_per_element


def test_the_table_compares_with_copying(ticking_clock):
    ticking_clock(compression)
    table = benchmark(elements=200_000)
    assert table.row("copying memory").ratio == 1
    assert len(table.rows) == 8
    assert {row.rate for row in table.rows} == {200_000 * 4 / 1e9}  # GB of gradient
    assert "bits per element" in table.notes[1]


def test_the_entropy_bound_is_that_of_ternary_messages():
    """Count the bits of the likely messages by their probabilities, all of them."""
    for density in (0.1, 0.5):
        p = {0: 1 - density, 1: density / 2, -1: density / 2}
        probabilities = [np.prod([p[v] for v in message]) for message in product(p, repeat=5)]
        bits = -sum(q * np.log2(q) for q in probabilities)
        assert bits_per_element(density) == pytest.approx(bits / (5 * density))
    assert bits_per_element(1e-3) == pytest.approx(12.4, abs=0.05)
