import gc
import weakref

import numpy as np

from toolkit.processes.workers import WorkerPool


def made(number):
    return np.full(3, number)


def test_results_come_in_order_and_are_let_go():
    """Sums of parts must not need the memory of all of them."""
    seen = []
    with WorkerPool(2) as pool:
        results = pool.map(made, range(8))
        for number, result in enumerate(results):
            assert result.tolist() == [number] * 3
            seen.append(weakref.ref(result))
            del result
            gc.collect()
            assert sum(ref() is not None for ref in seen) <= 1
