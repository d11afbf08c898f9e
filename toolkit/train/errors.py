"""The faults of training that a user can mend."""

from toolkit.errors import ToolkitError


class TrainingDataError(ToolkitError):
    """Features and alignments that do not belong together, or too few of them."""


class TrainingError(ToolkitError):
    """Training that cannot go on: a loss that is no number, or a checkpoint of another run."""
