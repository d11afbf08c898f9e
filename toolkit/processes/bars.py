"""Progress bars that also show how much memory a recipe's stage currently uses."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from toolkit.processes.memory import resident_bytes

if TYPE_CHECKING:
    Base = tqdm[Any]
else:
    Base = tqdm

FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}{memory}]"


class Bar(Base):
    """tqdm's bar with the memory of the stage's processes; by default only terminals show it.

    Args:
      arguments: those of tqdm.
      settings: those of tqdm.
    """

    hidden = False
    """Whether new bars are hidden, see `hide_progress_bars`."""
    monitor_interval = 0  # no monitor thread: a fork would inherit its lock; see `miniters`

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        defaults = {"disable": None, "miniters": 1, "bar_format": FORMAT}
        hidden = {"disable": True} if sys.stderr is None or Bar.hidden else {}
        super().__init__(*arguments, **{**defaults, **settings, **hidden})

    @property
    def format_dict(self) -> dict[str, Any]:
        """Fields for the bar's format string, as in tqdm, and `memory`."""
        resident = resident_bytes()
        memory = f", {resident / 1e9:.1f} GB" if resident else ""
        return {**super().format_dict, "memory": memory}


@contextmanager
def hide_progress_bars() -> Iterator[None]:
    """Hide the bars that begin in a `with` block."""
    previous, Bar.hidden = Bar.hidden, True
    try:
        yield
    finally:
        Bar.hidden = previous
