"""The settings that the recipes share, and sizes for small corpora."""

import math
from dataclasses import dataclass, field
from typing import Literal

from toolkit.align.config import (
    CorpusAlignConfig,
    EmConfig,
    LdaMlltConfig,
    MonophoneConfig,
    TriphoneConfig,
)
from toolkit.config.fields import NonNegativeInt, check_fields
from toolkit.corpus.config import CheckConfig, CorpusConfig
from toolkit.decode.config import DecodeConfig, LatticeConfig
from toolkit.features.config import AugmentConfig, ExtractConfig, FrontendConfig, Scope
from toolkit.fsa.config import Beam, PhoneNgramConfig
from toolkit.hmm.config import TreeConfig
from toolkit.lang.config import LangConfig, NgramConfig
from toolkit.models.config import BlstmConfig, LstmConfig, TdnnfConfig, WordLstmConfig
from toolkit.train.config import (
    ChunkConfig,
    CrossEntropyConfig,
    LatticeBatchConfig,
    LfmmiChunkConfig,
    LfmmiConfig,
    NeuralLmConfig,
    PerturbConfig,
    SequenceConfig,
    WholeUtteranceConfig,
)

WIDE_BEAM = Beam(search=18.0, output=6.0, max_active=12_000)
"""Beam for read books with a vocabulary of 20,000 words. With 4,000 active states and a beam of 15,
the WER of the networks in the librispeech recipe's profile mini is two points higher."""

THREE_SPEEDS = AugmentConfig(speeds=(0.9, 1.1))
"""Three-way speed perturbation, as in Kaldi's recipes; it removes a third of the character errors
of CTC on the demo corpus."""

SEVEN_SPEEDS = AugmentConfig(speeds=(0.82, 0.88, 0.94, 1.06, 1.12, 1.18))
"""Speed perturbation for few speakers: a voice at another speed counts as another voice."""

ANY_VOLUME_AND_SPEAKER = PerturbConfig(volume=(0.125, 2.0), unknown_speakers=0.5)
"""Training of networks on log-mel energies for the volumes of Kaldi's recipes and for unknown
speakers. The demo's LSTM then makes 70 instead of 214 errors if the recordings are 20 dB quieter,
and 67 instead of 66 on the recordings as they are. If speakers are unknown, AN4's TDNN-F makes 54
and 58 instead of 58 and 76 errors in two divisions. Nothing changes for networks on
speaker-adapted features."""

SHORT_MONO = MonophoneConfig(
    EmConfig(
        iterations=24,
        realign=(*range(1, 7), 8, 10, 12, 15, 18, 21),
        gaussians=1000,
        grow_until=18,
        min_occupancy=3.0,
    )
)
"""Monophone training with half of the realignments in Kaldi's recipes and in less than half the
time."""

SMALL_LSTM_LM = NeuralLmConfig(
    epochs=4, initial_rate=1e-2, words_per_batch=200, threads=1, model=WordLstmConfig(hidden=128)
)
"""LSTM language model for 50,000 words of text, which trains in a minute on one core."""

SMALL_SEQUENCE = SequenceConfig(
    threads=1,
    initial_rate=1e-4,
    final_rate=4e-5,
    batches=LatticeBatchConfig(utterances_per_batch=8),
)
"""Twice the default batch size and learning rates: 3,700 frames per second instead of 3,000."""

SMALLEST_AT, LARGEST_AT = 0.5, 100.0
"""Up to the first number of hours, the network is the smallest; from the second on, the largest."""

# The smallest network and the largest, which is Kaldi's.
LAYERS = 7, 12
HIDDEN = 256, 1024
BOTTLENECK = 64, 128

SMALL_UP_TO = 20.0
"""Largest number of hours of a small corpus. For a small corpus, one processor core trains the
network fastest; dropout is used; no speakers are held out, since training on them is worth more;
and the denominator has phone bigrams, which are better than 4-grams on AN4. For a larger corpus,
these settings are as in Kaldi."""

DROPOUT = 0.3


@dataclass(frozen=True)
class HybridConfig:
    """The settings of every hybrid recipe."""

    corpus: CorpusConfig = CorpusConfig()
    """The corpus and its splits."""
    check: CheckConfig = CheckConfig()
    """What counts as a fault of the data. Faults exclude an utterance or stop the run."""
    lang: LangConfig = LangConfig()
    """Lexicon and vocabulary."""
    lm: NgramConfig = NgramConfig()
    """The n-gram language model of the decoding graphs."""
    rescoring: NgramConfig = NgramConfig(order=4)
    """The larger language model that rescores lattices (C2: 4-gram); its default text is that of
    `lm`."""
    cepstra: ExtractConfig = ExtractConfig(FrontendConfig("plp"))
    """Features of the GMMs: 13 PLP cepstra (C4)."""
    fbank: ExtractConfig = ExtractConfig(FrontendConfig("fbank"))
    """Features of the networks: 64 log-mel energies (C5)."""
    prior_frames: NonNegativeInt = 200
    """Weight, in frames, of the global mean in the running mean of a speaker (Kaldi: 200)."""
    normalisation: Scope = "causal"
    """Statistics that normalise the networks' features. `causal`: of the speaker's frames so far.
    `whole`: also of the rest of the file, and with its variance; streaming is then impossible.
    `global`: of the training data alone. Features of speaker-adapted GMMs always use `global`."""
    augment: AugmentConfig = AugmentConfig()
    """Augmented copies of the training utterances, for the networks; none in the paper."""
    mono: MonophoneConfig = MonophoneConfig()
    """The monophone GMMs."""
    tri: TriphoneConfig = TriphoneConfig()
    """Triphone GMMs on deltas."""
    lda_mllt: LdaMlltConfig = LdaMlltConfig()
    """Triphone GMMs on LDA + MLLT features (C4)."""
    align: CorpusAlignConfig = CorpusAlignConfig()
    """Alignment of the training data."""
    senones: TreeConfig = TreeConfig(max_leaves=3183)
    """The tree of the senones at the low frame rate (C3)."""
    pronunciation_probabilities: bool = False
    """Estimate from the alignments how often each pronunciation is spoken and how often silence
    surrounds it, for the graphs of the networks (Chen et al. 2015)."""
    lattice_lm: NgramConfig = NgramConfig(order=2, mix_transcripts=False)
    """The weak language model of the denominator lattices. A text is not mixed with transcripts,
    since the lattices are made of the transcribed utterances."""
    lattice_text: Literal["transcripts", "lm"] = "transcripts"
    """Text of `lattice_lm` if it names none: the transcripts, or the text of `lm`. On an hour or
    two of speech, bigrams of the transcripts overfit, so that lattices have too few wrong paths."""
    lattices: LatticeConfig = LatticeConfig()
    """The denominator lattices (C8)."""
    sequence: SequenceConfig = SequenceConfig()
    """sMBR training on the lattices (C8)."""
    sequence_copies: bool = True
    """Also make lattices of the augmented copies, and train on them."""
    decode: DecodeConfig = DecodeConfig(
        acoustic_scale=0.25,
        scales=(0.2, 0.25, 0.3, 0.4, 0.5),
        penalties=(-2.0, -1.0, 0.0, 1.0),
        # Errors on the demo's dev and test splits: 157 with a beam of 15 and 4,000 states; 149 with
        # these values, and also with 19 and 16,000.
        beam=Beam(search=17.0, output=6.0, max_active=8000),
    )
    """Decoding with the LSTM, 33 frames per second."""
    chain_tree: TreeConfig = TreeConfig(max_leaves=7000, context=("left",))
    """The tree of lattice-free MMI: left biphones, as in Kaldi, for a small denominator."""
    lfmmi: LfmmiConfig = field(default_factory=lambda: lattice_free(hours=1000, epochs=6))
    """The TDNN-F that is trained with lattice-free MMI."""
    chain_decode: DecodeConfig = DecodeConfig(
        acoustic_scale=1.0,
        scales=(0.7, 0.85, 1.0, 1.2, 1.4),
        penalties=(-2.0, -1.0, 0.0, 1.0),
        untuned_within=2.0,
        beam=Beam(search=15.0, output=8.0, max_active=7000),
    )
    """Decoding with the TDNN-F. LF-MMI trains its scores at the acoustic scale 1, so the best scale
    is near 1."""

    def __post_init__(self) -> None:
        check_fields(self)  # not inherited from `Settings`: its method `check` is a section here

    def refuse_contradictions(self) -> None:
        """Check that there is audio if training utterances are copied at other speeds.

        Called when all settings are known.

        Raises:
          ValueError: copies are set, but the corpus has no audio.
        """
        if self.corpus.features == "kaldi" and self.augment.speeds:
            raise ValueError(
                "`augment.speeds` needs audio, and a corpus with `corpus.features=kaldi` has none: "
                "turn it off with --set augment.speeds=[]"
            )


def small_network(
    model: LstmConfig | BlstmConfig | TdnnfConfig, epochs: int, chunks: ChunkConfig
) -> CrossEntropyConfig:
    """Return the training settings of a network that one core can train in minutes."""
    return CrossEntropyConfig(
        epochs=epochs,
        initial_rate=2e-3,
        final_rate=1e-4,
        amp="auto",
        threads=1,
        average_epochs=3,
        model=model,
        chunks=chunks,
        whole_utterances=WholeUtteranceConfig(epochs=2),
    )


def lattice_free(hours: float, epochs: int) -> LfmmiConfig:
    """Return a TDNN-F for `hours` of training speech and its training with lattice-free MMI.

    The size grows with the logarithm of the hours: from 7 layers of 256 values, one of them at 100
    Hz, to 12 layers of 1,024 values, three of them at 100 Hz, as in Kaldi's recipes.

    Args:
      hours: hours of training speech, without copies.
      epochs: passes over the speech and its copies.
    """
    # 0 at the hours of the smallest network, 1 at those of the largest.
    share = math.log(hours / SMALLEST_AT) / math.log(LARGEST_AT / SMALLEST_AT)
    share = min(1.0, max(0.0, share))
    # `full` layers at 100 Hz, one of stride 0, and the remaining ones with strides of 3 (33 Hz).
    layers, full = round(LAYERS[0] + (LAYERS[1] - LAYERS[0]) * share), 1 + round(2 * share)
    model = TdnnfConfig(
        hidden=_between(*HIDDEN, share),
        bottleneck=_between(*BOTTLENECK, share),
        final=_between(*BOTTLENECK, share) * 3 // 2,
        strides=(*[1] * full, 0, *[3] * (layers - full - 1)),
        dropout=DROPOUT if hours <= SMALL_UP_TO else 0.0,
    )
    return LfmmiConfig(
        epochs=epochs,
        initial_rate=2e-3,
        final_rate=1e-4,
        amp="auto",
        threads=1 if hours <= SMALL_UP_TO else None,
        # Average the last 4 epochs of 8, the last 6 of 16.
        average_epochs=2 + epochs // 4,
        prefer_average=True,
        valid_utterances=0 if hours <= SMALL_UP_TO else 100,
        model=model,
        chunks=LfmmiChunkConfig(
            batch_frames=1600, left_context=model.context, right_context=model.context
        ),
        ngram=PhoneNgramConfig(order=3, extra_states=0)
        if hours <= SMALL_UP_TO
        else PhoneNgramConfig(),
    )


def _between(small: int, large: int, share: float) -> int:
    """Interpolate log-linearly between two sizes, rounded to a multiple of 16."""
    return 16 * round(small * (large / small) ** share / 16)
