"""Settings of the demo corpus."""

from dataclasses import dataclass
from typing import Annotated

from toolkit.config.fields import NonNegativeInt, Positive, Range
from toolkit.corpus.config import CorpusConfig


@dataclass(frozen=True)
class SyntheticConfig(CorpusConfig):
    """Size and difficulty of the demo corpus, in addition to the settings of any corpus."""

    train_speakers: Annotated[int, Range(1, 32)] = 32
    """Number of voices in train (at most 32); dev has 6 other voices, and test 4."""
    train_hours: Positive = 1.2
    """Hours of training speech, shared evenly by the speakers."""
    dev_hours: Positive = 0.15
    """Hours of development speech."""
    test_hours: Positive = 0.1
    """Hours of test speech."""
    snr_db: tuple[float, float] = (0.0, 15.0)
    """Range of the signal-to-noise ratio, drawn per utterance."""
    t60_seconds: tuple[Annotated[float, Range(0.05)], float] = (0.15, 0.5)
    """Range of the reverberation time, drawn per utterance."""
    direct_to_reverberant_db: tuple[float, float] = (0.0, 8.0)
    """Range of the ratio of direct to reverberant energy, drawn per utterance."""
    lm_sentences: NonNegativeInt = 5000
    """Sentences in `lm.txt`."""
    seed: int = 1
    """Random seed of texts, rooms and noise."""

    def check(self) -> None:
        """Refuse ranges whose first value is higher than the second."""
        super().check()
        for name in ("snr_db", "t60_seconds", "direct_to_reverberant_db"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"`{name}` must be (low, high), but {low} is higher than {high}")
