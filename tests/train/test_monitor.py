"""Events that are lost are not lost silently."""

import shutil
import threading

import pytest

from toolkit.stages.terminal import outlive
from toolkit.train.monitor import Monitor


def test_lost_events_are_an_error_and_no_traceback(tmp_path, capsys):
    hook = threading.excepthook

    def lose_events():
        monitor.events(0, {"loss": 1.0})  # may see it already
        monitor.close()

    before = set(threading.enumerate())
    monitor = Monitor(tmp_path, 2, None)
    monitor.start(0)
    monitor._writer.flush()  # or its thread would write into the folder while that is removed
    shutil.rmtree(tmp_path / "tensorboard")
    with outlive(lambda line: None):
        with pytest.raises(OSError, match="tensorboard"):
            lose_events()
        for thread in set(threading.enumerate()) - before:
            thread.join(60)  # the flush may have failed before the writer's thread was told
            assert not thread.is_alive()
    said = capsys.readouterr().err
    assert "warning: Thread-" in said
    assert "Traceback" not in said
    assert threading.excepthook is hook
