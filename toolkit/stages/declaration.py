"""Declare a recipe: its stages, the profiles of its configuration, and the options of a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from toolkit.stages.log import Verbosity

Headline = Mapping[str, Any]
"""The numbers by which a stage's result is known, such as {"wer": 8.31}."""
StageFunction = Callable[..., Headline | None]
"""The function of a stage: gets a `toolkit.stages.run.Run`, returns the headline."""


@dataclass(frozen=True)
class Stage:
    """One numbered step of a recipe, as declared."""

    number: int
    title: str
    function: StageFunction
    distributed: bool = False
    """Whether every rank that torchrun starts calls the function; rank 0 records. Otherwise rank 0
    alone calls it."""
    check: Callable[[Any], None] | None = None
    """Called with the configuration before the first stage of any run that includes this one;
    raises a `ToolkitError` if the machine lacks what the stage needs."""
    when: str = ""
    """What enables the stage: a setting, such as `lstm` or `rooms.array_hours`; a value of a
    setting, such as `objective=ce`; or several of these with " or " between them. If none is set,
    the stage does nothing. Empty: the stage is always enabled."""
    background_when: str = ""
    """The settings, as in `when`, that let the stage run in the background, see
    `toolkit.stages.background`; empty: never."""

    def is_enabled(self, config: Any) -> bool:
        """Return whether the configuration enables the stage."""
        return not self.when or _any_set(self.when, config)

    def skip_reason(self, config: Any) -> str:
        """Return why this configuration skips the stage; empty if the stage runs."""
        if self.is_enabled(config):
            return ""
        return f"{self.when} is {'not set' if '=' in self.when else 'off'}"

    def runs_in_background(self, config: Any) -> bool:
        """Return whether the configuration enables the stage, and lets it run in the background."""
        if not self.background_when or not self.is_enabled(config):
            return False
        return _any_set(self.background_when, config)


def _any_set(keys: str, config: Any) -> bool:
    """Return whether any of several settings enables the stage, see `Stage.when`."""
    return any(_is_set(key, config) for key in keys.split(" or "))


def _is_set(key: str, config: Any) -> bool:
    """Return whether a setting is true, or has the value after `=`."""
    name, has_value, value = key.partition("=")
    setting = attrgetter(name)(config)
    return str(setting) == value if has_value else bool(setting)


@dataclass(frozen=True)
class RunOptions:
    """The options of one command line."""

    config: Any
    first: int
    """Number of the first stage to run."""
    last: int
    """Number of the last stage to run."""
    forced: frozenset[int] = frozenset()
    """Numbers of stages to run even if they are done."""
    device: str | None = None
    jobs: int = 1
    command: str = ""
    """The command line, for markers and messages."""
    source: Path = field(default_factory=Path.cwd)
    """The recipe's folder, whose git commit is recorded in the markers."""
    accept_code_change: bool = False
    """Whether to continue partial outputs that other code or other packages have made."""
    verbosity: Verbosity = "normal"


class Declaration:
    """Numbered stages over typed configurations.

    Args:
      name: the recipe's name.
      file: the recipe's own file; run directories and relative paths start from its folder,
        not from the working directory.
      profiles: by name, functions that each return a configuration, a dataclass of dataclasses; the
        first is the default.
      title: what the recipe does, for `--help`.
      exp_prefix: put before the profile's name to name the run directory, so that the recipes of
        one folder have different run directories.
      on_finish: called with the run directory whenever the last stage is done, whether it ran or
        was skipped; prints the recipe's results.
      modules: modules that the stages' functions import when they run. They are imported before the
        first stage that runs, in this order, so that workers are forked from a server that has them
        too; `--list` and `--help` do not need them.
    """

    def __init__(
        self,
        name: str,
        file: Path,
        profiles: Mapping[str, Callable[[], Any]],
        title: str = "",
        exp_prefix: str = "",
        on_finish: Callable[[Path], None] | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        self.name, self.title, self.modules = name, title, tuple(modules)
        self.exp_prefix, self.on_finish = exp_prefix, on_finish
        self.folder = Path(file).resolve().parent
        self.profiles = dict(profiles)
        self.stages: list[Stage] = []

    def stage(
        self,
        number: int,
        title: str,
        distributed: bool = False,
        check: Callable[[Any], None] | None = None,
        when: str = "",
        background_when: str = "",
    ) -> Callable[[StageFunction], StageFunction]:
        """Declare the decorated function as stage `number`; each number exceeds the one before.

        The other arguments are the fields of `Stage`.
        """

        def declare(function: StageFunction) -> StageFunction:
            if number < 0 or (self.stages and number <= self.stages[-1].number):
                raise ValueError(
                    f"stage {number} ({title}): the number of a stage must be at least 0, and "
                    "greater than that of the stage before"
                )
            stage = Stage(number, title, function, distributed, check, when, background_when)
            self.stages.append(stage)
            return function

        return declare

    def add(self, number: int, title: str, function: StageFunction, **arguments: Any) -> None:
        """Declare a function that several recipes share as stage `number`.

        The function gets the run and then `arguments`. For example, this line declares stage 3 of a
        recipe, on the cepstra of another split:

            recipe.add(3, "Train triphone GMMs on deltas", stages.train_tri, split="clean")
        """
        self.stage(number, title)(partial(function, **arguments))

    def directory(self, profile: str) -> Path:
        """Return the default run directory of a profile."""
        return self.folder / "exp" / f"{self.exp_prefix}{profile}"
