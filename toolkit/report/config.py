"""Settings of the report."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReportConfig:
    """How much the page shows."""

    utterances: int = 6
    """Number of worst utterances shown for each split, with spectrogram and audio."""
    max_mb: float = 8.0
    """Largest size of the page in megabytes (10^6 bytes); audio players are left out first, then
    alignments."""

    def __post_init__(self) -> None:
        if self.utterances < 0:
            raise ValueError(f"utterances must not be negative: {self.utterances}")
        if self.max_mb <= 0:
            raise ValueError(f"max_mb must be above 0: {self.max_mb}")
