"""Outcomes of the alignment of a folder, file by file."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from toolkit.storage.files import write_atomically
from toolkit.storage.paths import UnsafePathError, path_below, safe_name

COLUMNS = ("utterance", "status", "seconds", "log_likelihood_per_frame", "confidence")


@dataclass(frozen=True)
class FileOutcome:
    """A line of `table.tsv`."""

    utterance: str
    """Its name."""
    status: str
    """`ok`, `retried` (a wider beam was needed) or `failed`."""
    seconds: float
    """Length of the audio; 0 when failed."""
    log_likelihood_per_frame: float
    """Unscaled; NaN when failed."""
    confidence: float
    """Geometric mean over the frames of speech of the aligned phone's posterior; 0 when failed."""
    guessed: str
    """Words whose pronunciation was guessed from their spelling, separated by spaces."""
    reason: str
    """Why it failed, or remarks on the alignment."""

    @classmethod
    def failure(cls, utterance: str, reason: str) -> "FileOutcome":
        """The outcome of a file that could not be aligned."""
        return cls(utterance, "failed", 0.0, math.nan, 0.0, "", reason)

    @property
    def aligned(self) -> bool:
        """Whether the file was aligned."""
        return self.status != "failed"


def textgrid_path(out: Path, utterance: str) -> Path:
    """Return where the TextGrid of a recording belongs.

    Raises:
      UnsafePathError: see `path_below`.
    """
    return path_below(out, f"textgrid/{safe_name(utterance)}.TextGrid")


def write_outcomes(outcomes: Sequence[FileOutcome], out: Path) -> None:
    """Write outcomes to `table.tsv`: tab-separated values under a line of names.

    Of recordings that failed the TextGrids of an earlier alignment into `out` are removed.
    """
    for failed in (o for o in outcomes if not o.aligned):
        with suppress(UnsafePathError):
            textgrid_path(out, failed.utterance).unlink(missing_ok=True)
    lines = ["\t".join((*COLUMNS, "guessed", "reason"))]
    for o in outcomes:
        numbers = f"{o.seconds:.3f}\t{o.log_likelihood_per_frame:.4f}\t{o.confidence:.4f}"
        reason = " ".join(o.reason.split())
        lines.append(f"{o.utterance}\t{o.status}\t{numbers}\t{o.guessed}\t{reason}")
    write_atomically(out / "table.tsv", "\n".join(lines) + "\n")


def summary(outcomes: Sequence[FileOutcome]) -> str:
    """One line that sums up all files."""
    good = [o for o in outcomes if o.aligned]
    retried = sum(o.status == "retried" for o in good)
    guessed = {word for o in good for word in o.guessed.split()}
    seconds = sum(o.seconds for o in good)
    length = f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds:.0f} s"
    sure = sum(o.confidence for o in good) / len(good) if good else 0.0
    return (
        f"Aligned {len(good)} of {len(outcomes)} ({retried} retried, {len(outcomes) - len(good)}"
        f" failed), {length} of audio; mean confidence {sure:.3f}; {len(guessed)} words guessed"
    )
