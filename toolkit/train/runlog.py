"""The log of a training: what happened when, from which times to accuracy are computed (A26, A35).

`log.jsonl` holds one JSON object per line: `event`, its name, and the fields of the class of that
name below. Clocks count the seconds since the model was created in which a process trained: the
time between a kill and the next start is left out, and so is what was done after the checkpoint
that the next start went on from, since it is done again. What was lost is in `Started`.
"""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from toolkit.config.convert import from_plain
from toolkit.storage.reading import NATURAL, checked, reading
from toolkit.train.errors import TrainingError

RUN_LOG = "log.jsonl"
ADVICE = "restore it, or remove the folder to train anew"


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    seconds: float = 0.0
    """Since the model's creation, see above; never falls along the log. The writer sets it."""


@dataclass(frozen=True)
class Created(Event):
    """The model was created: the clock's zero."""

    parameters: int = 0
    """Of the model."""
    batch: int = 0
    """Utterances per step, all processes together; 0 if that varies."""
    devices: int = 1
    """Copies of the model that train, one per process."""
    about: dict[str, Any] | None = None
    """What the recipe says of the run: its name, machine, configuration."""


@dataclass(frozen=True)
class Started(Event):
    """A later start of the same training, after a kill."""

    start: int = 2
    """Which one it is; creation is the first."""
    step: int = 0
    """Iterations of the checkpoint that it goes on from."""
    lost: float = 0.0
    """Seconds of training after that checkpoint, up to the last event before the kill."""


@dataclass(frozen=True)
class Step(Event):
    """Iterations since the event before of this kind, on this process alone."""

    step: int = 0
    """Iterations done since creation."""
    epoch: int = 0
    """From 1."""
    loss: float = 0.0
    """CTC loss per utterance (or label, see the configuration) over these iterations (A17)."""
    examples: int = 0
    """Utterances trained on in them, of all processes."""
    seconds_in_step: float = 0.0
    """Spent in the state Training in them, waiting for data included: throughput is
    examples / seconds_in_step without, and by differences of `seconds` with the other states."""


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
    """One model made place for the other (A22)."""

    step: int = 0
    epoch: int = 0
    to: str = ""
    """`evaluation` or `training`: the model that is there now."""
    duration: float = 0.0
    """Seconds in the state; next to none where the evaluator needs no swap (A23)."""


@dataclass(frozen=True)
class Evaluated(Event):
    """The result of an epoch's evaluation is known; it is looked for after every iteration."""

    step: int = 0
    """Iterations that the evaluated weights were trained for."""
    epoch: int = 0
    """From 1."""
    wer: float = 0.0
    """Word error rate in per cent (A25)."""
    cer: float = 0.0
    """Character error rate in per cent, with the paper's denominator (A25)."""
    cer_usual: float | None = None
    """The same errors by the references' length; None in logs that do not tell."""
    ser: float = 0.0
    """Share of sentences with an error, in per cent."""
    loss: float = 0.0
    """CTC loss on the validation data, as in `Step`."""
    duration: float = 0.0
    """Seconds that the evaluation took, wherever it ran."""
    waited: float = 0.0
    """Seconds of them that training stood still for it."""
    trained: float = 0.0
    """Clock when the evaluated weights were ready; the difference to `seconds` is the delay."""


@dataclass(frozen=True)
class Utilisation(Event):
    """How busy the machine is (A28)."""

    cpu: tuple[float, ...] = ()
    """Share of each core, 0 to 1."""
    gpus: tuple[float, ...] = ()
    """Share of each GPU, 0 to 1; empty without one."""
    process: float = 0.0
    """Share of all cores that the training used, with all its processes on this machine, 0 to 1."""


@dataclass(frozen=True)
class Finished(Event):
    """Training is over, and everything has been evaluated."""

    step: int = 0
    epochs: int = 0


KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Created, Started, Step, Sentences, Saved),
        *(Swapped, Evaluated, Utilisation, Finished),
    )
}
"""Name in the log -> class."""

E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class RunLog:
    """A log as read."""

    path: Path
    events: tuple[Event, ...]
    """In the order in which they happened."""

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind, such as `log.of(Evaluated)`."""
        return [event for event in self.events if type(event) is kind]

    @property
    def created(self) -> Created:
        """The first event."""
        return self.of(Created)[0]

    @property
    def starts(self) -> int:
        """How often the training was started."""
        return max((event.start for event in self.of(Started)), default=1)

    @property
    def examples(self) -> int:
        """Utterances trained on."""
        return sum(step.examples for step in self.of(Step))

    @property
    def examples_per_second(self) -> float:
        """Throughput: utterances by the seconds in the state Training (A27: b/t)."""
        return self.examples / max(sum(step.seconds_in_step for step in self.of(Step)), 1e-9)

    @property
    def seconds(self) -> float:
        """Clock of the last event."""
        return self.events[-1].seconds


def read_run_log(path: Path) -> RunLog:
    """Read a log, of a finished or of a running training.

    Args:
      path: the file, or the training's folder. Half a line at its end is ignored: somebody is
        writing it. So are fields that a class does not have, and events of unknown kinds.

    Raises:
      TrainingError: there is no such file, a line is no event, or the first one is not `created`.
    """
    path = Path(path)
    path = path / RUN_LOG if path.is_dir() else path
    if not os.path.lexists(path):
        raise TrainingError(f"{path} does not exist: no training has begun there")
    with reading(path, TrainingError, ADVICE):
        lines = path.read_bytes().split(b"\n")[:-1]
    events = []
    for number, line in enumerate(lines, 1):
        with reading(f"{path}, line {number}", TrainingError, ADVICE, "is no event of a training"):
            events += _event(checked(json.loads(line), {"event": str}))
    if not events or type(events[0]) is not Created:
        raise TrainingError(f"{path} does not begin with the creation of a model")
    return RunLog(path, tuple(events))


def _event(plain: dict[str, Any]) -> list[Event]:
    kind = KINDS.get(plain["event"])
    if kind is None:
        return []
    names = {field.name for field in fields(kind)}
    return [from_plain(kind, {k: v for k, v in plain.items() if k in names})]


class RunLogWriter:
    """Appends events with their time; may be used from several threads.

    Args:
      path: the log; a new training begins it with `create`, a continued one with `resume`. The
        clock of this start runs from the construction on: make the model afterwards.
      clock: seconds, increasing.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = monotonic) -> None:
        self._path = Path(path)
        self._clock = clock
        self._zero = clock()
        self._starts = 1
        self._lock = threading.Lock()

    def create(self, event: Created) -> None:
        """Begin a log; one that a run left which never came to a checkpoint is overwritten."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(b"")
        self._append(replace(event, seconds=0.0))

    def resume(self, position: dict[str, Any], step: int) -> None:
        """Go back to where a checkpoint was written and go on from there.

        Args:
          position: what `position` returned then.
          step: iterations done then.

        Raises:
          TrainingError: the log is shorter than it was then.
        """
        content = self._path.read_bytes() if self._path.exists() else b""
        end, seconds, starts = position["bytes"], position["seconds"], position["starts"]
        if len(content) < end:
            raise TrainingError(
                f"{self._path} is shorter than when the checkpoint beside it was written: restore "
                "it, or remove the folder to train anew"
            )
        last = seconds
        with reading(self._path, TrainingError, ADVICE, "damaged after the last checkpoint"):
            for number, line in enumerate(content[end:].split(b"\n")[:-1]):
                event = checked(json.loads(line), {"event": str, "seconds": float})
                last = event["seconds"]
                starts = max(starts, checked(event.get("start", 0), NATURAL))
                if number == 0 and event["event"] == "saved" and event["step"] == step:
                    end, seconds = end + len(line) + 1, last  # that checkpoint itself
        with open(self._path, "r+b") as file:
            file.truncate(end)
        self._starts = starts + 1
        started = Started(seconds, self._starts, step, lost=round(last - seconds, 4))
        self._zero -= seconds
        self._append(started)

    def write(self, event: Event) -> None:
        """Append an event, at the present time."""
        with self._lock:
            self._append(replace(event, seconds=round(self.seconds(), 4)))

    def _append(self, event: Event) -> None:
        plain = {"event": type(event).__name__.lower(), **asdict(event)}
        with open(self._path, "ab") as file:
            file.write(json.dumps(plain, ensure_ascii=False).encode() + b"\n")

    def seconds(self) -> float:
        """The clock."""
        return self._clock() - self._zero

    def position(self) -> dict[str, Any]:
        """Describe, for a checkpoint, where the log is; all before it is on disk then."""
        with self._lock, open(self._path, "rb") as file:
            os.fsync(file.fileno())
            end = file.seek(0, os.SEEK_END)
            return {"bytes": end, "seconds": round(self.seconds(), 4), "starts": self._starts}
