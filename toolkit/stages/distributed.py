"""A recipe run by several ranks: rank 0 runs all stages, the followers join the parallel ones."""

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
from toolkit.processes.watchdog import WorkerLostError
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import Provenance, parameters_digest
from toolkit.stages.plan import Inspector
from toolkit.stages.run import MissingInputError, Run
from toolkit.stages.stage import Request, Stage


class FollowerRun(Run):
    """The `Run` of a follower: the same paths as on rank 0, but nothing is recorded."""

    def need(self, name: str | Path) -> Path:
        """Return the path of an input."""
        path = self._directory.root / name
        if not path.exists():
            raise MissingInputError(f"`{path}` is missing on worker {ranks.rank()}'s host")
        return path

    def need_outside(self, path: str | Path, whole: bool = False) -> Path:
        """Return the path of an input."""
        return self.need(Path(path).absolute())

    def need_matches(self, pattern: str | Path) -> None:
        """Do nothing: rank 0 records the files."""

    def need_audio(self, manifest: str) -> dict[str, str]:
        """Return nothing: rank 0 records the audio."""
        return {}

    def need_place(self, path: str | Path) -> Path:
        """Return the path of an input."""
        return self.need(Path(path).absolute())

    def make(self, name: str) -> Path:
        """Return where rank 0 builds the output `name`."""
        path = self._directory.partial(self.stage, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def progress(self, done: float, total: float) -> None:
        """Do nothing: rank 0 records progress."""

    def record_parameter(self, name: str, value: Any) -> None:
        """Do nothing: rank 0 records parameters."""


@contextmanager
def ending_followers() -> Iterator[None]:
    """Wrap rank 0's run: the followers end with it, and fail if it fails."""
    if ranks.world_size() == 1:
        yield
        return
    connection = ranks.connect()
    try:
        yield
    except BaseException as error:
        connection.watchdog.fail(f"worker 0 ended: {str(error) or type(error).__name__}")
        raise
    connection.broadcast({"end": True})


@contextmanager
def joined_by_followers(stage: Stage, config: Any) -> Iterator[None]:
    """Wrap a stage's body on rank 0: if the stage is parallel, the followers run it too."""
    if not stage.parallel:
        with ranks.single_process():
            yield
        return
    if ranks.world_size() == 1:
        yield
        return
    connection = ranks.connect()
    connection.broadcast({"stage": stage.number, "config": _digest(config)})
    yield
    connection.barrier()


def run_follower(stages: Sequence[Stage], directory: RunDirectory, request: Request) -> None:
    """Run the stages that rank 0 announces, until it announces the end of the run.

    Raises:
      WorkerLostError: the run cannot go on.
      ToolkitError: a stage failed on this rank; the other ranks have been told.
    """
    # Without any handler, logging would print warnings.
    logging.getLogger("toolkit").addHandler(logging.NullHandler())
    connection = ranks.connect()
    while "end" not in (message := connection.receive()):
        stage = next(s for s in stages if s.number == message["stage"])
        try:
            if message["config"] != _digest(request.config):
                raise ToolkitError(
                    "its settings differ from worker 0's: start all workers with the same command"
                )
            inspector = Inspector(directory, request.config, directory.load_digests())
            run = FollowerRun(
                stage.number,
                inspector,
                Provenance(),
                [],
                request.device,
                request.jobs,
                request.command,
            )
            if stage.asked_for(run.config):
                stage.body(run)
            connection.barrier()
        except WorkerLostError:
            raise
        except (Exception, SystemExit) as error:
            reason = str(error) if isinstance(error, ToolkitError) else repr(error)
            text = f"worker {connection.rank} failed in stage {stage.number}: {reason}"
            if not isinstance(error, ToolkitError):
                sys.stderr.write(traceback.format_exc())
            connection.watchdog.fail(text)
            raise WorkerLostError(text) from error


def _digest(config: Any) -> str:
    return parameters_digest(to_plain(config))
