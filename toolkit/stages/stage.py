"""A stage as a recipe declares it, and the request of a command line to run stages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from toolkit.stages.run import Run


@dataclass(frozen=True)
class Stage:
    """A numbered step of a recipe."""

    number: int
    title: str
    body: Callable[[Run], Mapping[str, float] | None]
    parallel: bool = False
    """Whether all ranks that torchrun starts run it together, rather than rank 0 alone."""
    check: Callable[[Any], None] | None = None
    """Called with the configuration before the first stage of any run that includes this one;
    raises a `ToolkitError` if the machine lacks what the stage needs."""
    when: str = ""
    """The setting that asks for the stage, such as `lstm` or `rooms.array_hours`, or a value of it,
    such as `objective=ce`, or several with " or " between them; else the stage does nothing."""
    beside: str = ""
    """The settings, as in `when`, with which it may run beside stages that follow, see
    `toolkit.stages.beside`."""

    def asked_for(self, config: Any) -> bool:
        """Whether the configuration asks for the stage."""
        return not self.when or _any_set(self.when, config)

    @property
    def lack(self) -> str:
        """What is the matter where the configuration does not ask for the stage."""
        return f"{self.when} is {'not set' if '=' in self.when else 'off'}"

    def may_run_beside(self, config: Any) -> bool:
        """Whether it has something to do, and may do so beside stages that follow."""
        return bool(self.beside) and _any_set(self.beside, config) and self.asked_for(config)


def _any_set(keys: str, config: Any) -> bool:
    return any(_set(key, config) for key in keys.split(" or "))


def _set(key: str, config: Any) -> bool:
    name, given, value = key.partition("=")
    found = attrgetter(name)(config)
    return str(found) == value if given else bool(found)


@dataclass(frozen=True)
class Request:
    """The stages to run and how to run them, from one command line."""

    config: Any
    first: int
    last: int
    forced: frozenset[int] = frozenset()
    device: str | None = None
    jobs: int = 1
    command: str = ""
    source: Path = field(default_factory=Path.cwd)
    """The recipe's folder, whose git commit is recorded in the markers."""
    accept_code_change: bool = False
    """Whether to continue partial outputs that other code or other packages have made."""
