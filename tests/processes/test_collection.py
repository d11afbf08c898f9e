import gc

import pytest

from toolkit.processes.collection import without_collections


@pytest.fixture(autouse=True)
def collecting():
    gc.enable()
    yield
    gc.enable()


def test_nothing_is_collected_within_and_again_after_an_error():
    @without_collections()
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
    with without_collections():
        pass
    assert not gc.isenabled()
