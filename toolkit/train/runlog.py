"""The event log of a training run, from which time-to-accuracy results are computed (A26, A35).

`log.jsonl` holds one JSON object per line: `event`, the name of its class below, and the fields of
that class. The clock counts the seconds of training since the model was created. It excludes the
time between a kill and the next start. It also excludes the work after the checkpoint from which
that start resumes, since this work is repeated; `Started` records the seconds that it had taken.
"""

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from toolkit.config.fields import from_plain
from toolkit.storage.reading import NATURAL, reading, validated
from toolkit.train.errors import TrainingError

RUN_LOG = "log.jsonl"
ADVICE = "restore it, or remove the folder to train from scratch"


@dataclass(frozen=True)
class Event:
    """Base class of the events."""

    seconds: float = 0.0
    """Clock at the event, see above; it never decreases. Set by the writer."""


@dataclass(frozen=True)
class Created(Event):
    """The model was created; the clock starts from 0."""

    parameters: int = 0
    """Number of parameters of the model."""
    batch: int = 0
    """Utterances per step of all processes together; 0 if that varies."""
    devices: int = 1
    """Number of model replicas, one per process."""
    about: dict[str, Any] | None = None
    """Description of the run by the recipe: its name, machine, configuration."""


@dataclass(frozen=True)
class Started(Event):
    """The training was started again after a kill."""

    start: int = 2
    """Number of this start; creation is the first."""
    step: int = 0
    """Iterations at the checkpoint from which it resumes."""
    lost: float = 0.0
    """Seconds of training after that checkpoint, up to the last event before the kill."""


@dataclass(frozen=True)
class Step(Event):
    """Iterations since the previous `step` event; loss and seconds are of rank 0 alone."""

    step: int = 0
    """Number of iterations since creation."""
    epoch: int = 0
    """Epoch, counted from 1."""
    loss: float = 0.0
    """CTC loss per utterance (or label, see the configuration) over these iterations (A17)."""
    examples: int = 0
    """Utterances in these iterations, of all processes."""
    seconds_in_step: float = 0.0
    """Seconds in the state Training in these iterations, including waiting for data. Throughput
    without the other states is examples / seconds_in_step; with them, use the differences of
    `seconds`."""


@dataclass(frozen=True)
class Sentences(Event):
    """Sentences of the last training batch were recognised (A22)."""

    step: int = 0
    epoch: int = 0
    references: tuple[str, ...] = ()
    hypotheses: tuple[str, ...] = ()
    duration: float = 0.0
    """Seconds in the state."""


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint was written (A22)."""

    step: int = 0
    epoch: int = 0
    duration: float = 0.0
    """Seconds in the state."""


@dataclass(frozen=True)
class Swapped(Event):
    """The training model on the device was swapped for the evaluation model, or back (A22)."""

    step: int = 0
    epoch: int = 0
    to: str = ""
    """`evaluation` or `training`: the model now on the device."""
    duration: float = 0.0
    """Seconds in the state; about zero where the evaluator needs no swap (A23)."""


@dataclass(frozen=True)
class Evaluated(Event):
    """The result of an epoch's evaluation is available; every iteration checks for it."""

    step: int = 0
    """Iterations after which the weights were evaluated."""
    epoch: int = 0
    """Epoch, counted from 1."""
    wer: float = 0.0
    """Word error rate in per cent (A25)."""
    cer: float = 0.0
    """Character error rate in per cent, with the paper's denominator (A25)."""
    cer_usual: float | None = None
    """The same errors in per cent of the references' length; None in old logs."""
    ser: float = 0.0
    """Sentence error rate in per cent."""
    loss: float = 0.0
    """CTC loss on the validation data, as in `Step`."""
    duration: float = 0.0
    """Seconds of the evaluation, in whichever process."""
    waited: float = 0.0
    """Seconds for which training waited for this result."""
    trained: float = 0.0
    """Clock when the weights were ready; `seconds` minus this is the delay of the result."""


@dataclass(frozen=True)
class Utilisation(Event):
    """Utilisation of the machine (A28)."""

    cpu: tuple[float, ...] = ()
    """Utilisation of each core, 0 to 1."""
    gpus: tuple[float, ...] = ()
    """Utilisation of each GPU, 0 to 1; empty without GPUs."""
    process: float = 0.0
    """Share of all cores used by the training's processes on this machine, 0 to 1."""


@dataclass(frozen=True)
class Finished(Event):
    """Training and all evaluations are finished."""

    step: int = 0
    epochs: int = 0


KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Created, Started, Step, Sentences, Saved),
        *(Swapped, Evaluated, Utilisation, Finished),
    )
}
"""Name of an event in the log -> its class."""

E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class RunLog:
    """The contents of a run log."""

    path: Path
    events: tuple[Event, ...]
    """Events in chronological order."""

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind, such as `log.of(Evaluated)`."""
        return [event for event in self.events if type(event) is kind]

    @property
    def created(self) -> Created:
        """The first event."""
        return self.of(Created)[0]

    @property
    def starts(self) -> int:
        """Number of starts of the training."""
        return max((event.start for event in self.of(Started)), default=1)

    @property
    def examples(self) -> int:
        """Number of utterances trained on, repetitions included."""
        return sum(step.examples for step in self.of(Step))

    @property
    def examples_per_second(self) -> float:
        """Throughput: utterances per second in the state Training (A27: b/t)."""
        return self.examples / max(sum(step.seconds_in_step for step in self.of(Step)), 1e-9)

    @property
    def seconds(self) -> float:
        """Clock of the last event."""
        return self.events[-1].seconds


def read_run_log(path: Path) -> RunLog:
    """Read the log of a finished or running training.

    Args:
      path: the file, or the training's folder. An incomplete last line is ignored, as it is still
        being written. So are unknown fields and events of unknown kinds.

    Raises:
      TrainingError: there is no such file, a line is invalid, or the first one is not `created`.
    """
    path = Path(path)
    path = path / RUN_LOG if path.is_dir() else path
    if not os.path.lexists(path):
        raise TrainingError(f"{path} does not exist: no training has begun there")
    with reading(path, TrainingError, ADVICE):
        lines = path.read_bytes().split(b"\n")[:-1]  # without the rest after the last line end
    events = []
    for number, line in enumerate(lines, 1):
        with reading(f"{path}, line {number}", TrainingError, ADVICE, "not an event of a training"):
            events += _event(validated(json.loads(line), {"event": str}))
    if not events or type(events[0]) is not Created:
        raise TrainingError(f"{path}: the first event is not `created`, the creation of a model")
    return RunLog(path, tuple(events))


def _event(values: dict[str, Any]) -> list[Event]:
    """Return the event of a line, or nothing for an unknown kind."""
    kind = KINDS.get(values["event"])
    if kind is None:
        return []
    names = {field.name for field in fields(kind)}
    return [from_plain(kind, {k: v for k, v in values.items() if k in names})]


class RunLogWriter:
    """Appends events with their time; thread-safe.

    Args:
      path: the log; a new training run starts it with `create`, a resumed one with `resume`. The
        clock of this start runs from the construction on, so construct the model afterwards.
      clock: monotonic clock in seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = monotonic) -> None:
        self._path = Path(path)
        self._clock = clock
        self._zero = clock()
        self._starts = 1
        self._lock = threading.Lock()

    def create(self, event: Created) -> None:
        """Start a log, overwriting that of a run which ended before its first checkpoint."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(b"")
        self._append(replace(event, seconds=0.0))

    def resume(self, position: dict[str, Any], step: int) -> None:
        """Truncate the log to the position of a checkpoint and continue from there.

        Args:
          position: what `position` returned at the checkpoint.
          step: iterations at the checkpoint.

        Raises:
          TrainingError: the log is shorter than at the checkpoint.
        """
        content = self._path.read_bytes() if self._path.exists() else b""
        end, seconds, starts = position["bytes"], position["seconds"], position["starts"]
        if len(content) < end:
            raise TrainingError(
                f"{self._path} is shorter than when the checkpoint beside it was written: restore "
                "it, or remove the folder to train from scratch"
            )
        # Find the last event before the kill: the work from the checkpoint to this event is lost.
        # The lines after the checkpoint are cut off below, so that a damaged line does no harm.
        last = seconds
        with suppress(TrainingError), reading(self._path, TrainingError, ADVICE):
            for number, line in enumerate(content[end:].split(b"\n")[:-1]):
                event = validated(json.loads(line), {"event": str, "seconds": float})
                last = event["seconds"]
                starts = max(starts, validated(event.get("start", 0), NATURAL))
                if number == 0 and event["event"] == "saved" and event["step"] == step:
                    # `saved` of that checkpoint itself, written after its position was stored
                    end, seconds = end + len(line) + 1, last
        with open(self._path, "r+b") as file:
            file.truncate(end)
        self._starts = starts + 1
        started = Started(seconds, self._starts, step, lost=round(last - seconds, 4))
        self._zero -= seconds  # the clock continues from the checkpoint
        self._append(started)

    def write(self, event: Event) -> None:
        """Append an event with the current time."""
        with self._lock:
            self._append(replace(event, seconds=round(self.seconds(), 4)))

    def _append(self, event: Event) -> None:
        values = {"event": type(event).__name__.lower(), **asdict(event)}
        with open(self._path, "ab") as file:
            file.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")

    def seconds(self) -> float:
        """Return the clock in seconds."""
        return self._clock() - self._zero

    def position(self) -> dict[str, Any]:
        """Return the position in the log for a checkpoint, after flushing the log to disk."""
        with self._lock, open(self._path, "rb") as file:
            os.fsync(file.fileno())
            end = file.seek(0, os.SEEK_END)
            return {"bytes": end, "seconds": round(self.seconds(), 4), "starts": self._starts}
