"""Errors of training that the user can resolve."""

from toolkit.errors import ToolkitError


class TrainingDataError(ToolkitError):
    """Features and alignments do not match, or too few of them are usable."""


class TrainingError(ToolkitError):
    """Training cannot continue: the loss is not finite, or a checkpoint is of another run."""
