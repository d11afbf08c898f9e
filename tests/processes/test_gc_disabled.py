import gc

import pytest

from toolkit.processes.memory import gc_disabled


@pytest.fixture(autouse=True)
def collecting():
    gc.enable()
    yield
    gc.enable()


def test_nothing_is_collected_within_and_again_after_an_error():
    @gc_disabled()
    def fails():
        seen.append(gc.isenabled())
        raise KeyError

    seen = []
    with pytest.raises(KeyError):
        fails()
    assert seen == [False]
    assert gc.isenabled()


def test_what_was_off_before_stays_off():
    gc.disable()
    with gc_disabled():
        pass
    assert not gc.isenabled()
