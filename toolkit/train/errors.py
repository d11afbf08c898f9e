"""Training errors that the user can resolve."""

from toolkit.errors import ToolkitError


class TrainingDataError(ToolkitError):
    """Features and alignments do not match, or too few of them are usable."""


def no_step(processes: int) -> str:
    """Return the message for an epoch with fewer batches than processes."""
    if processes == 1:
        return "an epoch has no batch: the utterances to train on are too few, or too short"
    return (
        f"an epoch has fewer batches than the {processes} processes: use fewer processes or a"
        " smaller batch"
    )


class TrainingError(ToolkitError):
    """Training cannot continue: the loss is not finite, or a checkpoint is from another run."""
