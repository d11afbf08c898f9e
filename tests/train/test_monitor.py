"""Events that are lost are not lost silently."""

import shutil
import threading

import pytest

from toolkit.stages.terminal import outlive
from toolkit.train.monitor import Monitor


def test_lost_events_are_an_error_and_no_traceback(tmp_path, capsys):
    hook = threading.excepthook

    def lose_events():
        monitor = Monitor(tmp_path, 2, None)
        monitor.start(0)
        shutil.rmtree(tmp_path / "tensorboard")
        monitor.events(0, {"loss": 1.0})  # may see it already
        monitor.close()

    before = set(threading.enumerate())
    with outlive(lambda line: None):
        with pytest.raises(OSError, match="tensorboard"):
            lose_events()
        for thread in set(threading.enumerate()) - before:
            thread.join()  # the flush may have failed before the writer's thread was told
    said = capsys.readouterr().err
    assert "warning: Thread-" in said
    assert "Traceback" not in said
    assert threading.excepthook is hook
