"""What a recipe declares: numbered stages over typed configurations, and its profiles."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolkit.stages.stage import Stage

Body = Callable[..., Mapping[str, float] | None]


class Declaration:
    """Numbered stages over typed configurations.

    Args:
      name: the recipe's name.
      file: the recipe's own file; run directories and relative paths start from its folder,
        wherever it is called from and through whatever link.
      profiles: functions that each return a configuration, a dataclass of dataclasses; the first
        is the default.
      title: what the recipe does, for `--help`.
      prefix: put before the profile's name in that of the run directory, so that the recipes of
        one folder have different ones.
      show: prints the recipe's results from the run directory that it is given; called whenever
        the last stage is done, whether it ran or was skipped.
    """

    def __init__(
        self,
        name: str,
        file: Path,
        profiles: Mapping[str, Callable[[], Any]],
        title: str = "",
        prefix: str = "",
        show: Callable[[Path], None] | None = None,
    ) -> None:
        self.name, self.title, self.prefix, self.show = name, title, prefix, show
        self.folder = Path(file).resolve().parent
        self.profiles = dict(profiles)
        self.stages: list[Stage] = []

    def stage(
        self,
        number: int,
        title: str,
        parallel: bool = False,
        check: Callable[[Any], None] | None = None,
        when: str = "",
        beside: str = "",
    ) -> Callable[[Body], Body]:
        """Declare the decorated function as stage `number`; stages are declared in order.

        With `parallel`, all ranks that torchrun starts run the stage together: each calls the
        function with a run that names the same paths, and what rank 0 returns is recorded. `check`
        is called with the configuration before anything runs, and raises if the stage cannot. With
        `when`, the name of a setting or name=value, the stage does nothing where the setting is
        false or another. With `beside`, settings too, it may run in a process of its own while
        those that follow begin.
        """

        def declare(body: Body) -> Body:
            if number < 0 or (self.stages and number <= self.stages[-1].number):
                raise ValueError(f"stage {number} ({title}): stages are numbered upwards from 0")
            self.stages.append(Stage(number, title, body, parallel, check, when, beside))
            return body

        return declare

    def directory(self, profile: str) -> Path:
        """Return the run directory of a profile, unless another is given."""
        return self.folder / "exp" / f"{self.prefix}{profile}"
