"""The states that a training goes through (A22): pure logic, driven by counts of iterations."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args

logger = logging.getLogger(__name__)

EvaluatorKind = Literal["swap", "in_place", "resident", "process", "elsewhere"]
"""Who evaluates, see `MachineConfig.evaluator`."""


class State(Enum):
    """What is being done; the names are the paper's."""

    TRAINING = "Training"
    SENTENCES = "Generating Sentences"
    SAVING = "Saving Checkpoint"
    SWAPPING = "Swapping Model"
    EVALUATING = "Evaluating"


EDGES = {
    State.TRAINING: {State.SENTENCES, State.SAVING, State.SWAPPING, State.EVALUATING},
    State.SENTENCES: {State.TRAINING},
    State.SAVING: {State.TRAINING},
    State.SWAPPING: {State.EVALUATING, State.TRAINING},
    State.EVALUATING: {State.SWAPPING, State.TRAINING},
}
"""The transitions there are. The paper's figure has all but the one from training to evaluating
and back, which evaluation in place takes."""


@dataclass(frozen=True)
class MachineConfig:
    """When a training leaves the state Training, and who evaluates."""

    sentences_every: int = 50
    """Iterations from one recognition of sentences of the training data to the next; 50 (A22)."""
    checkpoint_every: int = 250
    """Iterations from one checkpoint to the next; 250 (A22). There is one at the end of every
    epoch too, which evaluation starts from, and after `checkpoint_seconds` if that is earlier.
    Processes that train asynchronously (`asgd`, `adpsgd`, `hadpsgd`) make those of epochs alone."""
    evaluator: EvaluatorKind = "swap"
    """Who evaluates after an epoch (A22, A23). `swap`: this process, once the training model has
    made place on the device for the evaluation model. `in_place`: this process, with the training
    model itself. Training goes on meanwhile with the others. `resident`: a process that stays.
    `process`: one that is started for it. `elsewhere`: whoever runs `toolkit ctc evaluate` on the
    same run directory, such as another machine with the same storage."""

    def __post_init__(self) -> None:
        for name in ("sentences_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        if self.evaluator not in get_args(EvaluatorKind):
            known = ", ".join(get_args(EvaluatorKind))
            raise ValueError(f"evaluator is {self.evaluator!r}, needs to be one of {known}")


@dataclass(frozen=True)
class Transition:
    """One state after the other."""

    step: int
    """Iterations done."""
    source: State
    target: State


class Machine:
    """Says what comes next; somebody else does it.

    ```
    for state in machine.after_iteration():
        do(state)
    ```
    goes through the states that are due after an iteration, one after the other; the machine is in
    a state while the loop's body runs, and back in Training at the loop's end. After the last
    iteration of an epoch `after_epoch` and then `evaluation` do the same.

    Args:
      config: intervals and evaluator.
    """

    def __init__(self, config: MachineConfig) -> None:
        self._config = config
        self._saved = -1  # iterations at the newest checkpoint
        self.step = 0
        """Iterations done."""
        self.current = State.TRAINING
        self.transitions: list[Transition] = []
        """All since this process started, in order."""

    def after_iteration(self, overdue: bool = False, storable: bool = True) -> Iterator[State]:
        """Count an iteration and go through what is due after it.

        Args:
          overdue: a checkpoint is wanted, whatever the count.
          storable: a checkpoint can be made after this iteration; else none is.
        """
        self.step += 1
        if self.step % self._config.sentences_every == 0:
            yield from self._visit(State.SENTENCES)
        if storable and (overdue or self.step % self._config.checkpoint_every == 0):
            yield from self._visit(State.SAVING)

    def after_epoch(self) -> Iterator[State]:
        """Make a checkpoint, unless there is one of this iteration.

        A start from it comes here again without iterating.
        """
        if self._saved != self.step:
            yield from self._visit(State.SAVING)

    def evaluation(self) -> Iterator[State]:
        """Evaluate; `resident`, `process` and `elsewhere` do that outside the machine."""
        if self._config.evaluator == "swap":
            yield from self._visit(State.SWAPPING, State.EVALUATING, State.SWAPPING)
        elif self._config.evaluator == "in_place":
            yield from self._visit(State.EVALUATING)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold.

        Whatever state it is taken in, a start from it goes on in Training after that state.
        """
        return {"step": self.step, "saved": self._saved}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self.step, self._saved = state["step"], state["saved"]

    def _visit(self, *states: State) -> Iterator[State]:
        """Go from Training through states and back."""
        for state in states:
            self._go(state)
            if state is State.SAVING:
                self._saved = self.step
            yield state
        self._go(State.TRAINING)

    def _go(self, target: State) -> None:
        assert target in EDGES[self.current], f"no way from {self.current} to {target}"
        logger.debug("iteration %d: %s -> %s", self.step, self.current.value, target.value)
        self.transitions.append(Transition(self.step, self.current, target))
        self.current = target
