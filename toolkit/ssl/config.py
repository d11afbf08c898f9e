"""Settings of learning from unlabelled speech."""

from dataclasses import dataclass
from typing import Annotated, Literal

from toolkit.align.config import CorpusAlignConfig
from toolkit.config.fields import (
    ListLength,
    Positive,
    PositiveInt,
    PositiveShare,
    Range,
    Settings,
    Share,
)
from toolkit.train.config import FrameTrainingConfig, PassCount, WholeUtteranceConfig


@dataclass(frozen=True)
class SelfTrainingConfig(Settings):
    """Selection and alignment of recognised utterances."""

    share: PositiveShare = 0.5
    """Share of the frames to keep, those of the most confident utterances; 1 keeps all utterances
    that have a word and reach `threshold`."""
    threshold: Share = 0.0
    """Lowest confidence to keep, 0 to 1. An utterance's confidence is the mean of its words'
    confidences, roughly the share of correct words."""
    samples: ListLength = 100
    """Number of paths sampled from each lattice to compute the confidences."""
    align: CorpusAlignConfig = CorpusAlignConfig(max_failed=0.5)
    """Alignment of the recognised words."""


@dataclass(frozen=True)
class RecognisedPhonesConfig(Settings):
    """How many word sequences of a recognised lattice are used for training."""

    samples: ListLength = 50
    """Number of paths drawn from each lattice in proportion to their posteriors."""
    alternatives: PositiveInt = 1
    """Largest number of word sequences to keep per utterance: those drawn most often. With 1, only
    the likeliest words are kept, as if they were the transcript. With 8 instead of 1, the student
    of the far-field demo deletes more words and makes 21 % more errors."""


@dataclass(frozen=True)
class SelectionConfig(Settings):
    """Selection of utterances; all by default."""

    by: Literal["uniform", "confidence"] = "uniform"
    """`uniform`: a sample by a checksum of the ids, as in the paper (C16). `confidence`: the
    utterances in which the teacher's highest posterior, averaged over the frames, is highest."""
    share: PositiveShare = 1.0
    """Share of the frames to select, above 0; 1 selects all utterances without reading the data."""


@dataclass(frozen=True)
class ScheduledConfig(FrameTrainingConfig):
    """Sub-epochs on chunks, then on whole utterances; each ends with a pass over labelled data.

    Batches of unlabelled data have about `chunks.chunks_per_batch` chunks. `specaugment` masks all
    inputs of the student; the teacher's inputs were not masked.
    """

    epochs: PassCount = 15
    """Number of sub-epochs on chunks; 15 in the paper (C12)."""
    whole_utterances: WholeUtteranceConfig = WholeUtteranceConfig(epochs=3)
    """Fine-tuning sub-epochs on whole utterances; 3 in the paper (C12)."""
    hours_per_sub_epoch: Positive | None = 55_000.0
    """Hours of unlabelled audio in a sub-epoch, counted before selection; 55,000 in the paper
    (C12), so that 18 sub-epochs make 990,000. Smaller data sets are repeated, each time in a
    different order. None: all sub-epochs together are one pass over the data."""
    labelled_rate_factor: Positive = 1.2
    """Factor of the learning rate on labelled data, relative to the rate at the end of the
    unlabelled pass before it. In the paper it is "slightly higher", without a value (C12)."""
    select: SelectionConfig = SelectionConfig()
    """Selection of the unlabelled utterances to train on; all by default."""


@dataclass(frozen=True)
class CalibrationConfig(Settings):
    """Amount of data on which calibration is measured."""

    utterances: PositiveInt = 500
    """Largest number of utterances, sampled by a checksum of their ids."""


@dataclass(frozen=True)
class ChoiceConfig(Settings):
    """Values to try for k, the number of logits stored per frame, and the number of utterances."""

    ks: tuple[ListLength, ...] = (1, 2, 5, 10, 20, 50)
    """Values of k; the number of all senones is tried as well."""
    utterances: Annotated[int, Range(2)] = 100
    """Number of utterances, sampled by a checksum of their ids. Their logits are kept in memory,
    and targets for all senones temporarily on disk: 1.5 GB each per hour of audio with 3,183
    senones."""

    def check(self) -> None:
        """Check that there is a k to try."""
        if not self.ks:
            raise ValueError("`ks` is empty: give at least one number of logits to try")
