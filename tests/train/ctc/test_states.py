import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from tests.train.conftest import Spelling
from toolkit.decode.config import EvaluationConfig
from toolkit.decode.ctc.evaluation import SearchFiles, make_recognition
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import estimate
from toolkit.train.ctc import states
from toolkit.train.ctc.evaluation import EvaluationFolder, evaluate_elsewhere
from toolkit.train.ctc.states import Machine, State
from toolkit.train.runlog import Evaluated, Sentences, Started, Step, read_run_log


def transitions(ctc_toy, out):
    """Train; return all transitions."""
    visited = []

    class Counted(Machine):
        def go_to(self, target):
            super().go_to(target)
            visited.append(self.transitions[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "Machine", Counted)
        ctc_toy.train(out, evaluator="swap")
    return visited


def kill_at(ctc_toy, out, place):
    """Train in a forked process that kills itself right after transition `place`."""

    class Deadly(Machine):
        def go_to(self, target):
            super().go_to(target)
            if len(self.transitions) > place:
                os.kill(os.getpid(), signal.SIGKILL)

    train_in_a_killed_process(Deadly, lambda: ctc_toy.train(out, evaluator="swap"))


def train_in_a_killed_process(machine, train):
    """Train in a forked process with a machine that kills it."""
    child = os.fork()
    if child == 0:
        try:
            states.Machine = machine
            train()
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_killed_in_any_state_it_ends_with_the_same_losses(ctc_toy, tmp_path):
    killed_in_every_state(ctc_toy, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "precision", [{"amp": "bf16"}, {"amp": "fp16"}, {"amp": "fp32", "tf32": True}]
)
def test_killed_in_any_state_in_every_precision_with_word_search(
    ctc_toy, tmp_path, precision, monkeypatch
):
    """The first loss scale of float16 overflows, and later ones change soon."""
    if precision["amp"] == "fp16" and torch.__version__ < "2.3":
        pytest.skip("float16 on a CPU needs torch 2.3")
    monkeypatch.setattr("toolkit.train.precision.INITIAL_SCALE", 2.0**30)
    monkeypatch.setattr("toolkit.train.precision.STEPS_BETWEEN_RISES", 4)
    words, arpa = tmp_path / "words.txt", tmp_path / "lm.arpa"
    dictionary = ["A", "AB", "B", "BA", "C", "CAB"]
    words.write_text("\n".join(dictionary), encoding="utf-8")
    write_arpa(estimate([["A", "CAB"], ["BA", "C"]], set(dictionary), 2)[0], arpa)
    ctc_toy.recognition = make_recognition(
        ctc_toy.recognition.units, 8, 1, EvaluationConfig("words+lm"), SearchFiles(words, arpa)
    )
    ctc_toy.config = replace(ctc_toy.config, **precision)
    killed_in_every_state(ctc_toy, tmp_path)
    hypotheses = read_run_log(tmp_path / "whole").of(Sentences)[-1].hypotheses
    assert set(" ".join(hypotheses).split()) <= set(dictionary)


def killed_in_every_state(ctc_toy, folder):
    """Train without and with a kill in each state, and compare all outputs."""
    every = transitions(ctc_toy, folder / "whole")
    expected = ctc_toy.events(folder / "whole")
    for state in State:
        places = [i for i, transition in enumerate(every) if transition.target is state]
        place = places[len(places) // 2]
        out = folder / state.name
        kill_at(ctc_toy, out, place)
        assert not (out / "headline.json").exists()
        ctc_toy.train(out, evaluator="swap")
        assert ctc_toy.same(out, folder / "whole"), state
        assert ctc_toy.events(out) == expected, state
        (started,) = read_run_log(out).of(Started)
        assert started.step in (every[place].step, 5, 6, 10, 12)


def test_a_training_killed_repeatedly_ends_with_the_same_losses(ctc_toy, tmp_path):
    """Each start gets a few transitions further."""
    every = transitions(ctc_toy, tmp_path / "whole")
    for _ in range(3):
        kill_at(ctc_toy, tmp_path / "killed", len(every) // 3)
    ctc_toy.train(tmp_path / "killed", evaluator="swap")
    assert ctc_toy.same(tmp_path / "killed", tmp_path / "whole")
    assert ctc_toy.events(tmp_path / "killed") == ctc_toy.events(tmp_path / "whole")
    assert read_run_log(tmp_path / "killed").starts > 2


class Patient(Spelling):
    """From its second batch on, an epoch waits for the evaluation of the previous one."""

    def __init__(self, out):
        super().__init__()
        self.folder = EvaluationFolder(out)

    def batches(self, epoch, start=0, rank=0, world_size=1):
        for step, batch in enumerate(super().batches(epoch, start, rank, world_size), start):
            end = time.monotonic() + 60
            while epoch and step and self.folder.result(epoch) is None:
                assert time.monotonic() < end, f"epoch {epoch} is not evaluated"
                time.sleep(0.01)
            yield batch


def train_patiently(ctc_toy, out):
    """Train while another thread evaluates."""

    @contextmanager
    def evaluating(write):
        thread = threading.Thread(
            target=evaluate_elsewhere, args=(out, ctc_toy.evaluation), daemon=True
        )
        thread.start()
        yield
        thread.join()

    ctc_toy.data = Patient(out)
    config = replace(ctc_toy.config, log_every=1)
    ctc_toy.train(out, config, evaluator="elsewhere", background_logging=evaluating)


def test_an_evaluation_in_the_background_is_logged_when_its_result_is_there(ctc_toy, tmp_path):
    train_patiently(ctc_toy, tmp_path)
    events = read_run_log(tmp_path).events
    places = {event.epoch: n for n, event in enumerate(events) if type(event) is Evaluated}
    assert list(places) == [1, 2, 3]
    for epoch in (1, 2):  # the result is there before the second iteration of the next epoch ends
        third = next(n for n, e in enumerate(events) if type(e) is Step and e.step == 6 * epoch + 3)
        assert places[epoch] < third
        assert events[places[epoch]].waited == 0


@pytest.mark.parametrize("last", [9, 11])
def test_a_background_evaluation_is_logged_once_when_killed_around_a_checkpoint(
    ctc_toy, tmp_path, last
):
    """The first evaluation is logged after iteration 7 or 8; a checkpoint follows at 10."""

    class Deadly(Machine):
        def after_iteration(self, *arguments):
            yield from super().after_iteration(*arguments)
            if self.step == last:
                os.kill(os.getpid(), signal.SIGKILL)

    train_in_a_killed_process(Deadly, lambda: train_patiently(ctc_toy, tmp_path))
    assert [event.step for event in read_run_log(tmp_path).of(Evaluated)] == [6]
    train_patiently(ctc_toy, tmp_path)
    log = read_run_log(tmp_path)
    assert log.of(Started)[0].step == (6 if last == 9 else 10)
    assert [(event.epoch, event.step) for event in log.of(Evaluated)] == [(1, 6), (2, 12), (3, 18)]
    rates = [record["valid_cer"] for record in ctc_toy.history(tmp_path)]
    assert [event.cer for event in log.of(Evaluated)] == rates
