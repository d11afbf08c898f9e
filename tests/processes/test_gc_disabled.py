import gc

import pytest

from toolkit.processes.memory import gc_disabled


@pytest.fixture(autouse=True)
def collecting():
    gc.enable()
    yield
    gc.enable()


def test_gc_is_disabled_within_and_enabled_again_after_an_error():
    @gc_disabled()
    def fails():
        enabled_inside.append(gc.isenabled())
        raise KeyError

    enabled_inside = []
    with pytest.raises(KeyError):
        fails()
    assert enabled_inside == [False]
    assert gc.isenabled()


def test_gc_that_was_disabled_stays_disabled():
    gc.disable()
    with gc_disabled():
        pass
    assert not gc.isenabled()
