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
    """Selection of recognised utterances, and their alignment."""

    share: PositiveShare = 0.5
    """Share of the frames that is kept, of the most confident utterances; 1 for all utterances that
    have a word."""
    threshold: Share = 0.0
    """Lowest confidence that is kept, 0 to 1; an utterance's is the mean of its words', about the
    share of correct words."""
    samples: ListLength = 100
    """Number of paths sampled from a lattice for the confidences."""
    align: CorpusAlignConfig = CorpusAlignConfig(max_failed=0.5)
    """Alignment of the recognised words."""


@dataclass(frozen=True)
class RecognisedPhonesConfig(Settings):
    """How many word sequences of a recognised lattice are used for training."""

    samples: ListLength = 50
    """Number of paths drawn from a lattice in proportion to their posteriors."""
    alternatives: PositiveInt = 1
    """Largest number of word sequences kept per utterance, those drawn most often. With 1, only the
    likeliest words are kept, as if they were the transcript; with 8 the far-field demo's student
    deletes more words and makes 21 % more errors."""


@dataclass(frozen=True)
class SelectionConfig(Settings):
    """Selection of utterances; all by default."""

    by: Literal["uniform", "confidence"] = "uniform"
    """`uniform`: sampled by a checksum of their ids, as in the paper (C16); `confidence`: those
    with the highest mean over the frames of the teacher's best posterior."""
    share: PositiveShare = 1.0
    """Share of the frames that is selected, above 0; 1 selects all, without reading the data."""


@dataclass(frozen=True)
class ScheduledConfig(FrameTrainingConfig):
    """Sub-epochs on chunks, then some on whole utterances; each ends with the labelled data.

    Batches of unlabelled data have about `chunks.chunks_per_batch` chunks. All inputs of the
    student are masked by `specaugment`; those of the teacher were not.
    """

    epochs: PassCount = 15
    """Sub-epochs on chunks; 15 (C12)."""
    whole_utterances: WholeUtteranceConfig = WholeUtteranceConfig(epochs=3)
    """Fine-tuning sub-epochs on whole utterances; 3 (C12)."""
    hours_per_sub_epoch: Positive | None = 55_000.0
    """Hours of unlabelled audio in a sub-epoch, counted before selection; 55,000 (C12), so that 18
    make 990,000. Smaller data sets are repeated in another order. None: all sub-epochs together are
    one pass over the data."""
    labelled_rate_factor: Positive = 1.2
    """Learning rate on labelled data, relative to that on unlabelled data at the time: "slightly
    higher" (C12, which gives no value)."""
    select: SelectionConfig = SelectionConfig()
    """Selection of the unlabelled utterances to train on; all by default."""


@dataclass(frozen=True)
class CalibrationConfig(Settings):
    """Amount of data on which calibration is measured."""

    utterances: PositiveInt = 500
    """Largest number of utterances, sampled by a checksum of their ids."""


@dataclass(frozen=True)
class ChoiceConfig(Settings):
    """Values of k to try, and amount of data."""

    ks: tuple[ListLength, ...] = (1, 2, 5, 10, 20, 50)
    """Values of k; the number of all senones is tried as well."""
    utterances: Annotated[int, Range(2)] = 100
    """Number of utterances, sampled by a checksum of their ids. Their logits are kept in memory,
    and targets of all senones temporarily on disk: 1.5 GB each per hour with 3,183 senones."""

    def check(self) -> None:
        """Check that there is a k to try."""
        if not self.ks:
            raise ValueError("ks must name at least one k")
