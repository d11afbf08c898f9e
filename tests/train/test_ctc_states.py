import os
import signal

import pytest

from toolkit.train import ctc_states
from toolkit.train.machine import Machine, State
from toolkit.train.runlog import Started, read_run_log


def transitions(ctc_toy, out):
    """Train; return all transitions."""
    seen = []

    class Counted(Machine):
        def _go(self, target):
            super()._go(target)
            seen.append(self.transitions[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctc_states, "Machine", Counted)
        ctc_toy.train(out, evaluator="swap")
    return seen


def kill_at(ctc_toy, out, place):
    """Train in a process of its own that kills itself right after its transition `place`."""

    class Deadly(Machine):
        def _go(self, target):
            super()._go(target)
            if len(self.transitions) > place:
                os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            ctc_states.Machine = Deadly
            ctc_toy.train(out, evaluator="swap")
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_killed_in_any_state_it_ends_with_the_same_losses(ctc_toy, tmp_path):
    every = transitions(ctc_toy, tmp_path / "whole")
    expected = ctc_toy.events(tmp_path / "whole")
    for state in State:
        places = [i for i, transition in enumerate(every) if transition.target is state]
        place = places[len(places) // 2]
        out = tmp_path / state.name
        kill_at(ctc_toy, out, place)
        assert not (out / "headline.json").exists()
        ctc_toy.train(out, evaluator="swap")
        assert ctc_toy.same(out, tmp_path / "whole"), state
        assert ctc_toy.events(out) == expected, state
        (started,) = read_run_log(out).of(Started)
        assert started.step in (every[place].step, 5, 6, 10, 12)


def test_killed_again_and_again(ctc_toy, tmp_path):
    """Each start comes a few transitions further, whatever they are."""
    every = transitions(ctc_toy, tmp_path / "whole")
    for _ in range(3):
        kill_at(ctc_toy, tmp_path / "killed", len(every) // 3)
    ctc_toy.train(tmp_path / "killed", evaluator="swap")
    assert ctc_toy.same(tmp_path / "killed", tmp_path / "whole")
    assert ctc_toy.events(tmp_path / "killed") == ctc_toy.events(tmp_path / "whole")
    assert read_run_log(tmp_path / "killed").starts > 2
