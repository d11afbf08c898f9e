"""Errors of runs of several processes."""

from toolkit.errors import ToolkitError

RESUME_ADVICE = (
    "The same command continues from the last checkpoint, with the same or another number of"
    " workers."
)


class WorkerLostError(ToolkitError):
    """Another process of the run was killed, hangs or failed."""
