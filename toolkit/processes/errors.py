"""The faults of runs of several processes."""

from toolkit.errors import ToolkitError

CONTINUES = (
    "The same command continues from the last checkpoint, with as many workers or another number."
)


class WorkerLostError(ToolkitError):
    """Another process of the run was killed, hangs or failed."""
