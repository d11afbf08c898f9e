"""Settings of phonetic decision trees."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.config.fields import NonNegative, NumClasses, PositiveInt, Settings


@dataclass(frozen=True)
class TreeConfig(Settings):
    """Settings for growing a phonetic decision tree."""

    max_leaves: NumClasses = 2000
    """Number of leaves, over all roots, at which splitting stops. Clustering then merges leaves, so
    that there are fewer pdfs. The paper has 3,183 senones from 7,000 h (C3)."""
    min_gain: NonNegative = 300.0
    """Log-likelihood, in nats, that a split must gain (Kaldi's --thresh)."""
    min_frames: PositiveInt = 50
    """Fewest frames on each side of a split; Kaldi has no such limit."""
    cluster_threshold: NonNegative | None = None
    """After splitting, leaves of one root are merged as long as a merge loses less log-likelihood
    than this, in nats. None: the gain of the worst split made (Kaldi's default); 0: no merging."""
    context: tuple[Literal["left", "right"], ...] = ("left", "right")
    """The neighbours that questions are about; ("left",) gives left biphones."""
    questions: Path | None = None
    """File of phonetic questions, a set of phones per line (Kaldi's questions.txt). None: questions
    are made from the data."""
    extra_questions: Path | None = None
    """File of questions in addition to those from the data (Kaldi's extra_questions.txt)."""
    roots: Path | None = None
    """File of phones that share roots (Kaldi's roots.txt). None: the variants of each base phone
    share roots."""
