"""Lost events are reported."""

import contextlib
import threading

import pytest

from toolkit.stages.log import survive_broken_output
from toolkit.train.monitor import Monitor


def test_lost_events_are_an_error_and_no_traceback(tmp_path, capsys):
    hook = threading.excepthook
    threads = set(threading.enumerate())
    monitor = Monitor(tmp_path, 2, None)
    monitor.start(0)
    with survive_broken_output(lambda line: None):
        (tmp_path / "tensorboard").rename(tmp_path / "elsewhere")  # in one step, unlike a removal
        with contextlib.suppress(OSError):  # it may be known already
            monitor.events(0, {"loss": 1.0})
        with pytest.raises(OSError, match="tensorboard"):
            monitor.close()
        for thread in set(threading.enumerate()) - threads:
            thread.join(60)  # the flush may have failed before the writer's thread was told
            assert not thread.is_alive()
    errors = capsys.readouterr().err
    assert "warning: Thread-" in errors
    assert "Traceback" not in errors
    assert threading.excepthook is hook
