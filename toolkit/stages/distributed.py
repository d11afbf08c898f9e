"""A recipe run by several ranks: rank 0 runs all stages, the others join the distributed ones."""

import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from toolkit.config.settings import to_plain
from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.processes.watchdog import WorkerLostError
from toolkit.stages.declaration import RunOptions, Stage
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import parameters_digest
from toolkit.stages.plan import Planner
from toolkit.stages.run import Run


@contextmanager
def release_ranks() -> Iterator[None]:
    """Wrap rank 0's run: the other ranks end with it, and fail if it fails."""
    if ranks.world_size() == 1:
        yield
        return
    group = ranks.connect()
    try:
        yield
    except BaseException as error:
        group.watchdog.fail(f"worker 0 ended: {str(error) or type(error).__name__}")
        raise
    group.broadcast({"end": True})


@contextmanager
def broadcast_stage(stage: Stage, config: Any) -> Iterator[None]:
    """Wrap a stage's function on rank 0: if it is distributed, the other ranks call it too."""
    if not stage.distributed:
        with ranks.single_process():
            yield
        return
    if ranks.world_size() == 1:
        yield
        return
    group = ranks.connect()
    group.broadcast({"stage": stage.number, "config": _digest(config)})
    yield
    group.barrier()


def follow_rank_zero(stages: Sequence[Stage], directory: RunDirectory, options: RunOptions) -> None:
    """Run the stages that rank 0 announces, until it announces the end of the run.

    Raises:
      WorkerLostError: the run cannot go on.
      ToolkitError: a stage failed on this rank; the other ranks have been told.
    """
    # Without any handler, logging would print warnings.
    logging.getLogger("toolkit").addHandler(logging.NullHandler())
    group = ranks.connect()
    while "end" not in (message := group.receive()):
        stage = next(s for s in stages if s.number == message["stage"])
        try:
            if message["config"] != _digest(options.config):
                raise ToolkitError(
                    "its settings differ from worker 0's settings: start all workers with the same "
                    "command"
                )
            # Without provenance and other stages, since this rank records nothing; see `Run`.
            planner = Planner(directory, stages, options.config)
            number, device, jobs = stage.number, options.device, options.jobs
            run = Run(number, planner, None, [], device, jobs, options.command)
            if stage.is_enabled(options.config):
                stage.function(run)
            group.barrier()
        except WorkerLostError:
            raise
        except (Exception, SystemExit) as error:
            reason = str(error) if isinstance(error, ToolkitError) else repr(error)
            text = f"worker {group.rank} failed in stage {stage.number}: {reason}"
            if not isinstance(error, ToolkitError):
                sys.stderr.write(traceback.format_exc())
            group.watchdog.fail(text)
            raise WorkerLostError(text) from error


def _digest(config: Any) -> str:
    """Return a digest of a configuration, by which ranks compare theirs."""
    return parameters_digest(to_plain(config))
