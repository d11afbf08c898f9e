"""The record of what a stage's partial outputs were started from: only the same resumes them."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

from toolkit.environment import numeric_environment
from toolkit.stages.code import (
    UNKNOWN,
    Attempt,
    Code,
    Difference,
    attempts_from_plain,
    attempts_to_plain,
    differences,
)
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import contents_from_plain, contents_to_plain
from toolkit.storage.digest import Content
from toolkit.storage.reading import DAMAGE_ERRORS, read_json, validated

_RECORD = {"parameters": {str: Any}, "inputs": {str: Any}, "forced": bool}


@dataclass
class Record:
    """The parameters and inputs that a stage has read so far, and the code that read them."""

    parameters: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Content] = field(default_factory=dict)
    forced: bool = False
    """Whether `--force` started it; if so, the same command resumes it."""
    attempts: list[Attempt | None] = field(default_factory=list)
    """The attempts so far, see `Marker.attempts`."""

    def code_changes(self, present: Code) -> list[Difference]:
        """Return how the code of the last attempt differs; empty where that is not known."""
        last = self.attempts[-1] if self.attempts else None
        return differences(last.code, present) if last else []

    def update_numeric(self) -> bool:
        """Note the present numeric environment, and return whether it was another.

        What torch uses is known only once the stage has loaded it.
        """
        last, numeric = self.attempts[-1] if self.attempts else None, numeric_environment()
        if last is None or last.numeric == numeric:
            return False
        self.attempts[-1] = replace(last, numeric=numeric)
        return True

    def write(self, directory: RunDirectory, stage: int) -> None:
        """Write the record, before anything that depends on it is written."""
        plain = {
            "parameters": self.parameters,
            "inputs": contents_to_plain(self.inputs),
            "forced": self.forced,
            "attempts": attempts_to_plain(self.attempts),
        }
        directory.write(directory.record(stage), json.dumps(plain, indent=1) + "\n")


def read_record(directory: RunDirectory, stage: int) -> Record | None:
    """Return the record of a stage's partial outputs, None when there is no readable one."""
    try:
        plain = read_json(directory.record(stage), _RECORD)
        inputs = contents_from_plain(plain["inputs"])
        # Records from before code was recorded have no attempts: at least one was made.
        attempts = attempts_from_plain(plain.get("attempts", [UNKNOWN]))
        return Record(plain["parameters"], inputs, plain["forced"], attempts)
    except DAMAGE_ERRORS:
        return None


@dataclass(frozen=True)
class Progress:
    """How far a stage's partial outputs are."""

    done: float
    total: float
    seconds: float
    """Wall time spent on them."""

    def write(self, directory: RunDirectory, stage: int) -> None:
        """Write the progress."""
        directory.write(directory.progress(stage), json.dumps(vars(self)) + "\n")


def read_progress(directory: RunDirectory, stage: int) -> Progress | None:
    """Return how far a stage's partial outputs are, None when it has not reported progress."""
    try:
        plain = read_json(directory.progress(stage))
        return Progress(**validated(plain, dict.fromkeys(("done", "total", "seconds"), float)))
    except DAMAGE_ERRORS:
        return None
