"""A run of several processes: rank 0 leads through the stages, the others follow into some."""

import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.config.settings import to_plain
from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.processes.errors import WorkerLostError
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import parameters_digest
from toolkit.stages.partial import Record
from toolkit.stages.plan import Inspector
from toolkit.stages.run import MissingInputError, Run
from toolkit.stages.stage import Request, Stage


class FollowerRun(Run):
    """What a stage is given on a follower: the same places as on rank 0; nothing is recorded."""

    def need(self, name: str | Path) -> Path:
        """Return the path of an input."""
        path = self._directory.root / name
        if not path.exists():
            raise MissingInputError(f"`{path}` is missing on worker {ranks.number()}'s host")
        return path

    def need_outside(self, path: str | Path) -> Path:
        """Return the path of an input."""
        return self.need(Path(path).absolute())

    def make(self, name: str) -> Path:
        """Return where rank 0 builds the output `name`."""
        place = self._directory.partial(self.stage, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def progress(self, done: float, total: float) -> None:
        """Rank 0 notes it."""

    def record_parameter(self, name: str, value: Any) -> None:
        """Rank 0 notes it."""


@contextmanager
def leading() -> Iterator[None]:
    """Around rank 0's run: afterwards followers end, with a fault if there was one."""
    if ranks.count() == 1:
        yield
        return
    connection = ranks.connect()
    try:
        yield
    except BaseException as error:
        connection.watch.fail(f"worker 0 ended: {str(error) or type(error).__name__}")
        raise
    connection.say({"end": True})


@contextmanager
def accompanied(stage: Stage, config: Any) -> Iterator[None]:
    """Around a stage's body on rank 0: followers do it too, where it works in parallel."""
    if not stage.parallel:
        with ranks.alone():
            yield
        return
    if ranks.count() == 1:
        yield
        return
    connection = ranks.connect()
    connection.say({"stage": stage.number, "config": _digest(config)})
    yield
    connection.meet()


def follow(stages: Sequence[Stage], directory: RunDirectory, request: Request) -> None:
    """Do on a follower the stages that rank 0 says, until it says that the run has ended.

    Raises:
      WorkerLostError: the run cannot go on.
      ToolkitError: a stage failed here; the others know.
    """
    logging.getLogger("toolkit").addHandler(logging.NullHandler())  # else warnings are shown
    connection = ranks.connect()
    while "end" not in (message := connection.hear()):
        stage = next(s for s in stages if s.number == message["stage"])
        try:
            if message["config"] != _digest(request.config):
                raise ToolkitError("its settings differ from worker 0's: start all with the same")
            inspector = Inspector(directory, request.config, directory.load_digests())
            place = stage.number, inspector, Record(), [], request.device, request.jobs
            stage.body(FollowerRun(*place, request.command))
            connection.meet()
        except WorkerLostError:
            raise
        except (Exception, SystemExit) as error:
            fault = str(error) if isinstance(error, ToolkitError) else repr(error)
            text = f"worker {connection.rank} failed in stage {stage.number}: {fault}"
            if not isinstance(error, ToolkitError):
                sys.stderr.write(traceback.format_exc())
            connection.watch.fail(text)
            raise WorkerLostError(text) from error


def _digest(config: Any) -> str:
    return parameters_digest(to_plain(config))
