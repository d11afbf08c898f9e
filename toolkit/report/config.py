"""Settings of the report."""

from dataclasses import dataclass

from toolkit.config.fields import NonNegativeInt, Positive, Settings


@dataclass(frozen=True)
class ReportConfig(Settings):
    """How much the page shows."""

    utterances: NonNegativeInt = 6
    """Number of worst utterances shown for each split, with spectrogram and audio."""
    max_mb: Positive = 8.0
    """Largest size of the page in megabytes (10^6 bytes); audio players are left out first, then
    alignments."""
