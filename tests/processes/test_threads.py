import pytest
import torch

from toolkit.processes.threads import one_thread, torch_threads


def test_the_number_of_threads_comes_back_also_after_an_exception():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError, match="inside 1"), one_thread():
            raise KeyError(f"inside {torch.get_num_threads()}")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_none_changes_nothing():
    before = torch.get_num_threads()
    with torch_threads(None):
        assert torch.get_num_threads() == before
