import pytest
import torch

from toolkit.processes.devices import one_thread, torch_threads
from toolkit.startup import MARK


def test_the_number_of_threads_is_restored_after_an_exception():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError, match="inside 1"), one_thread():
            raise KeyError(f"inside {torch.get_num_threads()}")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize(("processes", "threads"), [(1, 6), (2, 3), (8, 1)])
def test_the_default_number_of_threads_is_a_share_of_the_cores(monkeypatch, processes, threads):
    monkeypatch.setattr("toolkit.processes.devices.usable_cpus", lambda: 6)
    monkeypatch.setenv(MARK, "1")
    if processes > 1:
        torchrun = {"RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
        torchrun |= {"WORLD_SIZE": 16, "LOCAL_WORLD_SIZE": processes}
        for name, value in torchrun.items():
            monkeypatch.setenv(name, str(value))
    num_threads = torch.get_num_threads()
    with torch_threads(None):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == num_threads


def test_the_default_keeps_the_number_of_threads_of_the_user(monkeypatch):
    monkeypatch.delenv(MARK, raising=False)
    num_threads = torch.get_num_threads()
    with torch_threads(None):
        assert torch.get_num_threads() == num_threads
