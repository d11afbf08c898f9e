"""A clock for benchmarks."""

from itertools import count

import pytest

from benchmarks.run import compare


@pytest.fixture
def ticking_clock(monkeypatch):
    """Let every case of a benchmark's module take one second: its rate is its amount of work."""

    def tick(module):
        def compare_by_ticks(*args, **kwargs):
            return compare(*args, **{**kwargs, "clock": count().__next__})

        monkeypatch.setattr(module, "compare", compare_by_ticks)

    return tick
