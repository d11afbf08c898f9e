"""The state machine of a training, driven by counts of iterations; without side effects (A22)."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args

logger = logging.getLogger(__name__)

EvaluatorKind = Literal["swap", "in_place", "resident", "process", "elsewhere"]
"""Kind of evaluator, see `MachineConfig.evaluator`."""


class State(Enum):
    """State of a training; the names are the paper's."""

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
"""Allowed transitions. The paper's figure has all but those from Training to Evaluating and back,
which evaluation in place takes."""


@dataclass(frozen=True)
class MachineConfig:
    """Intervals between the states of a training, and the evaluator."""

    sentences_every: int = 50
    """Iterations between two recognitions of training sentences; 50 (A22)."""
    checkpoint_every: int = 250
    """Iterations between two checkpoints; 250 (A22). There is one at the end of every epoch as
    well, which evaluation starts from, and after `checkpoint_seconds` if that is earlier.
    Asynchronous methods (`asgd`, `adpsgd`, `hadpsgd`) write checkpoints at ends of epochs only,
    except with delay by one."""
    evaluator: EvaluatorKind = "swap"
    """Evaluator of an epoch (A22, A23). `swap`: this process, after the training model on the
    device was swapped for the evaluation model. `in_place`: this process, with the training model
    itself. The others evaluate while training continues. `resident`: one process for the whole
    training. `process`: a new process for each epoch. `elsewhere`: `toolkit ctc evaluate` on the
    same run directory, such as on another machine with the same storage."""

    def __post_init__(self) -> None:
        for name in ("sentences_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")
        if self.evaluator not in get_args(EvaluatorKind):
            known = ", ".join(get_args(EvaluatorKind))
            raise ValueError(f"evaluator is {self.evaluator!r}, needs to be one of {known}")


@dataclass(frozen=True)
class Transition:
    """A transition between two states."""

    step: int
    """Iterations done."""
    source: State
    target: State


class Machine:
    """The state machine: decides which states are due; the caller does their work.

    ```
    for state in machine.after_iteration():
        do(state)
    ```
    visits the states that are due after an iteration. The machine is in a state while the loop's
    body runs, and back in Training after the loop. After the last iteration of an epoch,
    `after_epoch` and then `evaluation` work in the same way.

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
        """All transitions since this process started, in order."""

    def after_iteration(
        self, overdue: bool = False, can_checkpoint: bool = True
    ) -> Iterator[State]:
        """Count an iteration and visit the states that are due after it.

        Args:
          overdue: write a checkpoint regardless of the count.
          can_checkpoint: whether a checkpoint can be written after this iteration.
        """
        self.step += 1
        if self.step % self._config.sentences_every == 0:
            yield from self._visit(State.SENTENCES)
        if can_checkpoint and (overdue or self.step % self._config.checkpoint_every == 0):
            yield from self._visit(State.SAVING)

    def after_epoch(self) -> Iterator[State]:
        """Write a checkpoint, unless there is one of this iteration.

        A training resumed from that checkpoint calls this again without an iteration.
        """
        if self._saved != self.step:
            yield from self._visit(State.SAVING)

    def evaluation(self) -> Iterator[State]:
        """Visit the states of an evaluation; only `swap` and `in_place` have any."""
        if self._config.evaluator == "swap":
            yield from self._visit(State.SWAPPING, State.EVALUATING, State.SWAPPING)
        elif self._config.evaluator == "in_place":
            yield from self._visit(State.EVALUATING)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint.

        Whichever state the machine is in, a resumed training continues in Training after it.
        """
        return {"step": self.step, "saved": self._saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.step, self._saved = state["step"], state["saved"]

    def _visit(self, *states: State) -> Iterator[State]:
        """Go from Training through states and back."""
        for state in states:
            self.go_to(state)
            if state is State.SAVING:
                self._saved = self.step
            yield state
        self.go_to(State.TRAINING)

    def go_to(self, target: State) -> None:
        """Make and record a transition."""
        assert target in EDGES[self.current], f"no transition from {self.current} to {target}"
        logger.debug("iteration %d: %s -> %s", self.step, self.current.value, target.value)
        self.transitions.append(Transition(self.step, self.current, target))
        self.current = target
