"""Python's collection of objects in cycles, and where it is better off."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no cycles in a `with` block, or in a function that it decorates.

    For work that makes many objects, none of them in a cycle: a collection goes through all that
    there are, so that time would grow faster than their number. 16,000 utterances are scored in
    15 microseconds each instead of 19, 2,000 in 15.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
