"""Settings of forced alignment and GMM training."""

from dataclasses import dataclass
from typing import Annotated

from toolkit.config.fields import (
    NonNegative,
    NumClasses,
    NumEpochs,
    Positive,
    PositiveInt,
    Range,
    Settings,
    Share,
)
from toolkit.fsa.config import MAX_ACTIVE, Beam
from toolkit.hmm.config import TreeConfig


@dataclass(frozen=True)
class AlignConfig(Settings):
    """Settings of the beam search for the best path through a transcript."""

    acoustic_scale: Positive = 0.1
    """Factor on log-likelihoods (Kaldi's default for alignment: 0.1)."""
    beam: Positive = 10.0
    """First search beam, in scaled log units."""
    retries: tuple[Positive, ...] = (4.0, 16.0)
    """Factors by which `beam` is widened when no path survives (Kaldi's beams: 10, then 40)."""
    max_active: Annotated[int, Range(2, MAX_ACTIVE)] = 2000
    """Maximum number of active states with the first beam; see `toolkit.fsa.config.Beam`."""

    def check(self) -> None:
        """Check that the beams are valid."""
        self.beams()

    def beams(self) -> list[Beam]:
        """Return the beams to try, in order."""
        first = Beam(self.beam, 1.0, min(30, self.max_active - 1), self.max_active)
        return first.with_retries(self.retries)


@dataclass(frozen=True)
class LongConfig(Settings):
    """Settings for cutting long recordings into windows; lengths in frames of 10 ms."""

    search: AlignConfig = AlignConfig(beam=100.0, retries=(4.0,), max_active=5000)
    """The search within a window. The beam is wider than the scores of entering a gap and jumping
    over dozens of words."""
    window: PositiveInt = 6000
    """Length of a window in frames. Recordings up to a quarter longer are aligned in one piece."""
    longest: PositiveInt = 18000
    """Length in frames to which a window may grow; the last window may be a quarter longer. A
    window grows if it holds too little speech for a reliable cut."""
    margin: PositiveInt = 400
    """Number of speech frames that must follow a cut within the window. The path is accepted only
    up to the cut."""
    gap_levels: tuple[NonNegative, ...] = (4.0, 9.0)
    """How far the log-likelihood of a frame in a gap is below that of the best pdf. The next level
    is tried if fewer than `MOST_WORDS` of the words are found, and is used if that finds them.
    In recordings like the training data, the aligned pdf is 1 below the best one on average, and 3
    in noisy seconds; in recordings that the model does not fit 5 to 7; with another text at least
    7, and mostly more than 9."""
    gap_entry: Annotated[float, Range(-1000, 0)] = -30.0
    """Score of entering a gap, in scaled log units: as much as 0.75 s of audio in the gap."""
    gap_jump: Annotated[float, Range(-1000, 0)] = -1.0
    """Score of each word that is left out, in scaled log units."""

    def check(self) -> None:
        """Check that the window lengths are consistent and that there is a level."""
        if not self.gap_levels:
            raise ValueError("`gap_levels` needs at least one value")
        if not 2 * self.margin < self.window <= self.longest:
            raise ValueError(
                f"`margin` is {self.margin}, `window` is {self.window} and `longest` is"
                f" {self.longest}, but they must satisfy 2 * margin < window <= longest"
            )


@dataclass(frozen=True)
class EmConfig(Settings):
    """Settings of EM training; the defaults are those of Kaldi's train_deltas.sh."""

    iterations: Annotated[int, Range(1, 1_000_000)] = 35
    """EM iterations (Kaldi: 35, monophones 40)."""
    realign: tuple[int, ...] = (10, 20, 30)
    """Iterations, counted from 1, that begin with a new Viterbi alignment."""
    gaussians: NumClasses = 10_000
    """Total number of Gaussians at the end of training."""
    grow_until: PositiveInt = 25
    """The last iteration that splits Gaussians."""
    min_occupancy: NonNegative = 10.0
    """A Gaussian with fewer frames than this is removed (Kaldi: 10, monophones 3), except the
    heaviest of its pdf. A pdf's Gaussians are split only while the pdf has at least twice this
    number of frames per Gaussian."""
    align: AlignConfig = AlignConfig()
    """The search that aligns the utterances."""
    max_failed: Share = 0.2
    """Training stops if more than this share of the utterances has no alignment."""

    def check(self) -> None:
        """Check that the last Gaussian split lies within the iterations."""
        if self.grow_until > self.iterations:
            raise ValueError(
                f"`grow_until` is {self.grow_until} but must be at most `iterations`, which is "
                f"{self.iterations}"
            )


@dataclass(frozen=True)
class MonophoneConfig(Settings):
    """Settings of monophone training; the defaults are those of Kaldi's train_mono.sh."""

    em: EmConfig = EmConfig(
        iterations=40,
        realign=(*range(1, 11), *range(12, 21, 2), 23, 26, 29, 32, 35, 38),
        gaussians=1000,
        grow_until=30,
        min_occupancy=3.0,
    )
    """The EM schedule (Kaldi's)."""
    max_utterances: PositiveInt = 2000
    """Train on at most this many utterances, those with the fewest words. Kaldi's recipes choose
    those with the fewest frames (subset_data_dir.sh --shortest)."""


@dataclass(frozen=True)
class TriphoneConfig(Settings):
    """Settings of triphone training, as in Kaldi's train_deltas.sh."""

    tree: TreeConfig = TreeConfig()
    """The phonetic decision tree."""
    em: EmConfig = EmConfig()
    """The EM schedule."""


@dataclass(frozen=True)
class LdaMlltConfig(TriphoneConfig):
    """Settings of LDA + MLLT training, as in Kaldi's train_lda_mllt.sh.

    Splicing and dimension are those of C4.
    """

    em: EmConfig = EmConfig(gaussians=15_000)
    """The EM schedule."""
    splice: Annotated[int, Range(0, 1000)] = 3
    """Frames spliced on either side for LDA. Kaldi splices 4 frames of 13 cepstra; here each frame
    has 39 values, deltas included (C4)."""
    dimension: Annotated[int, Range(1, 10_000)] = 40
    """Dimensions that LDA keeps (C4)."""
    mllt: tuple[int, ...] = (2, 4, 6, 12)
    """Iterations that begin with a new MLLT matrix (Kaldi's list)."""


@dataclass(frozen=True)
class SatConfig(TriphoneConfig):
    """Settings of speaker-adaptive training, as in Kaldi's train_sat.sh."""

    em: EmConfig = EmConfig(gaussians=15_000)
    """The EM schedule."""
    fmllr: tuple[int, ...] = (2, 4, 6, 12)
    """Iterations that begin with new speaker transforms (Kaldi's list)."""


@dataclass(frozen=True)
class CorpusAlignConfig(Settings):
    """Settings for aligning a whole corpus."""

    search: AlignConfig = AlignConfig()
    """The search that aligns each utterance."""
    max_failed: Share = 0.1
    """If more than this share of the utterances fails, the corpus counts as unusable."""
    rounds: NumEpochs = 0
    """Rounds of realignment with the trained network, each followed by a new training run (C4)."""


NO_GAPS = 1e4
"""Level of gaps at which there are none."""
COMPLETE_TEXTS = LongConfig(search=AlignConfig(), gap_levels=(NO_GAPS,))
"""For texts that have all words that were spoken, and no others. Without gaps, a narrower beam is
enough."""
