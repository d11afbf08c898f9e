"""Measured speeds and bytes of the pipeline's steps, the input of `toolkit pipeline plan`."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.config.fields import from_plain
from toolkit.errors import ToolkitError
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading


class RatesError(ToolkitError):
    """A file of rates cannot be read."""


@dataclass(frozen=True)
class StepRate:
    """Speed of a step, and the bytes that it reads and writes."""

    speed: float
    """Hours of audio per hour on one core, or one device, waiting for the store not included."""
    read: float = 0.0
    """Bytes read per hour of audio."""
    written: float = 0.0
    """Bytes written per hour of audio."""
    device: bool = False
    """Whether it runs on devices (GPUs) rather than cores."""
    low: float | None = None
    """Lower end of the speed's 95 % interval, or of its range over the rounds; None: unknown."""
    high: float | None = None
    """Its upper end; None: unknown, or no bound."""
    measured_on: str = ""
    """On what the speed was measured, in words."""

    def __post_init__(self) -> None:
        if not self.speed > 0:
            raise ValueError(f"speed is {self.speed}, needs to be above 0")


@dataclass(frozen=True)
class Rates:
    """Rates of all steps."""

    steps: Mapping[str, StepRate]
    """Rate of each step by name, in the order of the pipeline."""
    seconds_per_utterance: float = 3.6
    """Mean length of an utterance; 3.6 s are 1e9 utterances in a million hours (C35)."""
    audio_bytes: float = 256e3 / 8 * 3600
    """Bytes of audio per hour: 256 kbps (C35)."""
    measured: Mapping[str, str] = field(default_factory=dict)
    """Where and when the rates were measured: processor, date."""

    def __post_init__(self) -> None:
        if not self.seconds_per_utterance > 0:
            raise ValueError("seconds_per_utterance must be above 0")

    def with_speed(self, name: str, speed: float, device: bool = False) -> "Rates":
        """Return rates with another speed of one step, on a core or on a device."""
        if name not in self.steps:
            raise RatesError(f"no step {name!r}: {', '.join(self.steps)}")
        given = {"low": None, "high": None, "measured_on": "given"}
        rate = replace(self.steps[name], speed=speed, device=device, **given)
        return replace(self, steps={**self.steps, name: rate})

    def save(self, path: Path) -> None:
        """Write the rates as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Rates":
        """Read what `save` wrote.

        Raises:
          RatesError: naming the file.
        """
        advice = "`toolkit pipeline rates` and `toolkit pipeline measure` write them"
        with reading(path, RatesError, advice, "no rates"):
            plain = read_json(path, {"steps": {str: {str: Any}}})
            steps = {name: from_plain(StepRate, rate) for name, rate in plain["steps"].items()}
            return replace(from_plain(cls, {**plain, "steps": {}}), steps=steps)
