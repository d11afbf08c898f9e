import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.train.config import StatesConfig
from toolkit.train.ctc.states import EDGES, Machine, State, Transition


def drive(machine, epochs, begin=(0, 0), stop=None):
    """Run a training with these iterations per epoch; `stop(state, step)` may end it."""
    visited = []

    def visit(states):
        for state in states:
            assert machine.current is state
            visited.append((machine.step, state))
            if stop and stop(state, machine.step):
                return True
            assert machine.step > 0
        assert machine.current is State.TRAINING
        return False

    first_epoch, first_step = begin
    for epoch in range(first_epoch, len(epochs)):
        for _ in range(first_step if epoch == first_epoch else 0, epochs[epoch]):
            if visit(machine.after_iteration()):
                return visited
        if visit(machine.after_epoch()) or visit(machine.evaluation()):
            return visited
    return visited


def test_states_follow_the_papers_intervals():
    visited = drive(Machine(StatesConfig()), [270, 270])
    assert [step for step, state in visited if state is State.SENTENCES] == [*range(50, 541, 50)]
    assert [step for step, state in visited if state is State.SAVING] == [250, 270, 500, 540]
    assert [step for step, state in visited if state is State.EVALUATING] == [270, 540]
    assert [step for step, state in visited if state is State.SWAPPING] == [270, 270, 540, 540]


def test_transitions_are_those_of_the_papers_figure():
    machine = Machine(StatesConfig(sentences_every=2, checkpoint_every=4))
    drive(machine, [4])
    train, sentences, saving, swap, evaluate = State
    assert [(t.step, t.source, t.target) for t in machine.transitions] == [
        (2, train, sentences),
        (2, sentences, train),
        (4, train, sentences),
        (4, sentences, train),
        (4, train, saving),
        (4, saving, train),
        (4, train, swap),
        (4, swap, evaluate),
        (4, evaluate, swap),
        (4, swap, train),
    ]


@pytest.mark.parametrize(
    ("evaluator", "expected"),
    [
        ("swap", [State.SAVING, State.SWAPPING, State.EVALUATING, State.SWAPPING]),
        ("in_place", [State.SAVING, State.EVALUATING]),
        ("resident", [State.SAVING]),
        ("process", [State.SAVING]),
        ("elsewhere", [State.SAVING]),
    ],
)
def test_evaluators_choose_the_states_at_the_end_of_an_epoch(evaluator, expected):
    machine = Machine(StatesConfig(evaluator=evaluator))
    assert [state for _, state in drive(machine, [3])] == expected


def test_an_overdue_checkpoint_is_written_at_once():
    machine = Machine(StatesConfig())
    assert list(machine.after_iteration(overdue=True)) == [State.SAVING]
    assert list(machine.after_iteration()) == []


@settings(deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.sampled_from(["swap", "in_place", "resident"]),
    st.integers(0, 60),
)
def test_a_start_from_any_checkpoint_visits_the_remaining_states(
    sentences, saves, epochs, kind, number
):
    config = StatesConfig(sentences, saves, kind)
    whole = Machine(config)
    visited = drive(whole, epochs)
    for transition, following in itertools.pairwise(whole.transitions):
        assert transition.target is following.source
    assert all(t.target in EDGES[t.source] for t in whole.transitions)
    checkpoints = [i for i, (_, state) in enumerate(visited) if state is State.SAVING]
    place = checkpoints[number % len(checkpoints)]
    step = visited[place][0]
    killed = Machine(config)
    num_states = itertools.count()
    drive(killed, epochs, stop=lambda *_: next(num_states) == place)
    resumed = Machine(config)
    resumed.load_state_dict(killed.state_dict())
    assert resumed.step == step
    epoch = next(i for i in range(len(epochs)) if step <= sum(epochs[: i + 1]))
    states_after = drive(resumed, epochs, (epoch, step - sum(epochs[:epoch])))
    assert states_after == visited[place + 1 :]
    assert whole.transitions[-len(resumed.transitions) :] == resumed.transitions or not states_after


def test_impossible_transitions_are_refused():
    machine = Machine(StatesConfig(sentences_every=1))
    next(iter(machine.after_iteration()))
    with pytest.raises(AssertionError, match="no transition"):
        next(iter(machine.after_iteration()))
    assert machine.transitions == [Transition(1, State.TRAINING, State.SENTENCES)]


@pytest.mark.parametrize(
    "wrong", [{"sentences_every": 0}, {"checkpoint_every": 0}, {"evaluator": "nobody"}]
)
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StatesConfig(**wrong)
