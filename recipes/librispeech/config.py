"""The hybrid recipe's settings, a section per step, and its profiles."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from local.synthetic.config import SyntheticConfig
from recipes.steps.settings import (
    ANY_VOLUME_AND_SPEAKER,
    SEVEN_SPEEDS,
    SHORT_MONO,
    SMALL_LSTM_LM,
    SMALL_SEQUENCE,
    THREE_SPEEDS,
    WIDE_BEAM,
    HybridConfig,
    lattice_free,
    small_network,
)
from toolkit.align.config import (
    CorpusAlignConfig,
    EmConfig,
    LdaMlltConfig,
    MonophoneConfig,
    SatConfig,
    TriphoneConfig,
)
from toolkit.corpus.config import CorpusConfig
from toolkit.decode.config import DecodeConfig, NbestConfig, NeuralRescoringConfig
from toolkit.features.config import ExtractConfig, FrontendConfig
from toolkit.fsa.config import Beam, RescoreLimits
from toolkit.hmm.config import TreeConfig
from toolkit.lang.config import LangConfig, NgramConfig
from toolkit.models.config import BlstmConfig, LstmConfig
from toolkit.train.config import (
    ChunkConfig,
    CrossEntropyConfig,
    NeuralLmConfig,
    WholeUtteranceConfig,
)

HIGH_RATES = replace(SMALL_SEQUENCE, initial_rate=1e-3, final_rate=1e-4)
"""Learning rates chosen by the expected accuracy on held-out utterances. AN4: 0.837 before sMBR;
after three epochs, 0.872 with an initial rate of 1e-4, 0.892 with 4e-4, and 0.901 with 1e-3.
`mini`: 0.676 before sMBR; 0.721 with 3e-4, and 0.735 with 1e-3."""

BIDIRECTIONAL_CHUNKS = ChunkConfig(left_context=10, right_context=10)
"""Chunks for a bidirectional network: 0.3 s of context on either side are not scored."""

GMMS = ("mono", "tri", "lda_mllt", "sat")
"""The systems that are always trained."""
System = Literal[
    "mono",
    "tri",
    "lda_mllt",
    "sat",
    "lstm_ce",
    "lstm_smbr",
    "lstm_fmllr",
    "blstm",
    "chain",
    "chain_fbank",
]
"""Names of the systems that the recipe can train."""


@dataclass(frozen=True)
class Config(HybridConfig):
    """All settings of a run; a stage becomes stale if a setting that it reads changes."""

    sat: SatConfig = SatConfig()
    """Triphone GMMs on features adapted to each speaker."""
    gmm_decode: DecodeConfig = DecodeConfig()
    """Decoding with GMMs, 100 frames per second."""
    mono_beam: Beam = Beam(search=13.0, output=4.0, max_active=3000)
    """Pruning of the monophones' search; no later stage uses its results."""
    ce: CrossEntropyConfig = field(default_factory=CrossEntropyConfig)
    """The LSTM and its cross entropy training (C6, C7)."""
    lstm: bool = True
    """Train the LSTM. False: the recipe goes from the GMMs straight to the bundle, unless other
    settings ask for networks."""
    adapted: bool = False
    """Also train an LSTM on the features of the speaker-adapted GMMs. Decoding with this LSTM needs
    the first pass of these GMMs."""
    bidirectional: bool = False
    """Also train a BLSTM on the features of the LDA + MLLT GMMs. It needs the whole utterance and
    the speaker's mean over all utterances."""
    blstm: CrossEntropyConfig = field(
        default_factory=lambda: CrossEntropyConfig(
            model=BlstmConfig(),
            chunks=BIDIRECTIONAL_CHUNKS,
            whole_utterances=WholeUtteranceConfig(epochs=2),
        )
    )
    """The BLSTM of `bidirectional` and its training (C9)."""
    chain: bool = False
    """Also train a TDNN-F with lattice-free MMI."""
    chain_features: Literal["adapted", "fbank", "both"] = "adapted"
    """Features of `chain`. `adapted`: those of the speaker-adapted GMMs; decoding then needs the
    GMMs' first pass and some seconds of a speaker. `fbank`: log-mel energies. `both`: adapted
    features, and log-mel energies for a second TDNN-F, `chain_fbank`, which recognises recordings
    of unknown speakers."""
    bundle: System | None = None
    """The system to bundle, used for known and unknown speakers alike. None: for each of the two,
    the system with the fewest errors on the development splits."""
    detect_speech: bool = True
    """Add a speech detector to bundles: an utterance without speech then has no words."""
    nbest: NbestConfig = NbestConfig()
    """N-best lists, confidences and word lattices of the systems that are combined."""
    neural: bool = False
    """Also train an LSTM language model, and rescore n-best lists with it."""
    neural_systems: tuple[System, ...] = ()
    """The systems whose n-best lists the LSTM language model rescores; empty: the system with the
    fewest errors on the development splits. If `nbest.count` is at least `lstm_rescoring.count`,
    the lists that decoding wrote are used."""
    lstm_lm: NeuralLmConfig = field(default_factory=NeuralLmConfig)
    """The LSTM language model of `neural` and its training."""
    lstm_rescoring: NeuralRescoringConfig = NeuralRescoringConfig()
    """Rescoring with the LSTM language model."""

    def refuse_contradictions(self) -> None:
        """Check that the systems in `bundle` and `neural_systems` are trained.

        Called when all settings are known.

        Raises:
          ValueError: one of them is not trained; see also `HybridConfig.refuse_contradictions`.
        """
        super().refuse_contradictions()
        trained = [*GMMS, *["lstm_ce"] * self.lstm, *self.networks]
        for name in (self.bundle, *self.neural_systems):
            if name is not None and name not in trained:
                raise ValueError(
                    f"these settings do not train the system {name}, which is a value of `bundle` "
                    f"or `neural_systems`: choose from {', '.join(trained)}"
                )

    @property
    def networks(self) -> list[str]:
        """The networks to train, each named after the last step of its training."""
        chosen = {
            "lstm_smbr": self.lstm,
            "lstm_fmllr": self.adapted,
            "blstm": self.bidirectional,
            "chain": self.chain,
            "chain_fbank": self.chain_fbank,
        }
        return [name for name, enabled in chosen.items() if enabled]

    @property
    def chain_fbank(self) -> bool:
        """Whether a second TDNN-F is trained, on log-mel energies."""
        return self.chain and self.chain_features == "both"

    @property
    def first_chain_features(self) -> Literal["fmllr_features", "fbank"]:
        """The folder of the features of the first TDNN-F."""
        return "fbank" if self.chain_features == "fbank" else "fmllr_features"

    @property
    def needs_adapted(self) -> bool:
        """Whether a network uses the features of the speaker-adapted GMMs."""
        return self.adapted or (self.chain and self.chain_features != "fbank")


def _small_lstm(hidden: int, epochs: int) -> CrossEntropyConfig:
    """Return the settings of a three-layer LSTM that one core can train in minutes."""
    model = LstmConfig(hidden=hidden, layers=3, dropout=0.2)
    network = small_network(model, epochs, ChunkConfig(chunks_per_batch=32))
    return replace(network, perturb=ANY_VOLUME_AND_SPEAKER)


def _small_shards(kind: str) -> ExtractConfig:
    """Return settings for shards of six minutes: an hour of speech keeps several processes busy."""
    return ExtractConfig(FrontendConfig(kind), hours_per_shard=0.1)


def _small_systems(
    hours: float,
    leaves: int,
    gaussians: int,
    senones: int,
    biphones: int,
    chain_epochs: int,
    iterations: int = 20,
) -> dict[str, Any]:
    """Return the settings for about an hour of speech by section, except those of the LSTM."""
    tree = TreeConfig(max_leaves=leaves)
    # Realign at a quarter, a half and three quarters of EM; add Gaussians in the first three.
    quarter = iterations // 4
    realign = (quarter, 2 * quarter, 3 * quarter)
    em = EmConfig(iterations, realign, gaussians, grow_until=3 * quarter)
    blstm = BlstmConfig(hidden=256, layers=3, dropout=0.3)
    return {
        "mono": SHORT_MONO,
        "tri": TriphoneConfig(tree, em),
        "lda_mllt": LdaMlltConfig(tree, em),
        "sat": SatConfig(tree, em),
        "senones": TreeConfig(max_leaves=senones),
        # Left biphones, as in Kaldi's chain recipes.
        "chain_tree": TreeConfig(max_leaves=biphones, context=("left",)),
        "lfmmi": replace(lattice_free(hours, chain_epochs), perturb=ANY_VOLUME_AND_SPEAKER),
        "blstm": small_network(
            blstm, epochs=6, chunks=replace(BIDIRECTIONAL_CHUNKS, chunks_per_batch=32)
        ),
        "sequence": SMALL_SEQUENCE,
        "cepstra": _small_shards("plp"),
        "fbank": _small_shards("fbank"),
    }


def demo() -> Config:
    """Return the profile for the offline demo corpus, which takes minutes on two cores."""
    gmms = _small_systems(
        hours=1.2,
        leaves=400,
        gaussians=4000,
        senones=250,
        biphones=250,
        chain_epochs=12,
        iterations=12,
    )
    return Config(
        corpus=SyntheticConfig(),
        ce=_small_lstm(hidden=256, epochs=16),
        chain=True,
        neural=True,
        nbest=NbestConfig(count=100),
        lstm_lm=SMALL_LSTM_LM,
        **gmms
        | {
            "mono": replace(SHORT_MONO, max_utterances=600),
            "sequence": replace(SMALL_SEQUENCE, epochs=2),
        },
    )


def mini() -> Config:
    """Return the profile for a few hours of LibriSpeech on a CPU: mini LibriSpeech by default."""
    return Config(
        corpus=CorpusConfig("librispeech"),
        # Words of the text, and further words of cmudict, which reduce the OOV rate to a third.
        lang=LangConfig(words="lexicon", g2p_for_lm_words=True),
        # Keep 0.4 of 1.4 million n-grams, so that graphs take less than 6 GB to build.
        lm=NgramConfig(prune=5e-7),
        augment=THREE_SPEEDS,
        ce=_small_lstm(hidden=320, epochs=6),
        chain=True,
        # The best system makes 12 % fewer errors with the LSTM language model; with one trained for
        # 4 epochs, which takes half the time, 9 % fewer.
        neural=True,
        lstm_lm=NeuralLmConfig(epochs=8),
        nbest=NbestConfig(count=100),
        # With 3,000 active states and a vocabulary of 20,000 words, the WER is two points higher.
        # In rescoring, a beam of 10 makes 4 errors fewer (of 1,861) than a beam of 6, but its
        # lattices are 2.6 times as large.
        gmm_decode=DecodeConfig(
            acoustic_scale=0.08,
            scales=(0.06, 0.08, 0.1, 0.12),
            penalties=(-2.0, -1.0, 0.0),
            beam=Beam(search=13.0, output=4.0, max_active=7000),
            rescoring=RescoreLimits(beam=6.0),
        ),
        decode=replace(HybridConfig.decode, beam=WIDE_BEAM),
        lattice_lm=NgramConfig(order=2, min_counts=(1, 3), mix_transcripts=False),
        lattice_text="lm",
        # Errors of two seeds with the 4-gram: 1,424 and 1,410 with 400 biphones, 1,377 and 1,391
        # with 1,000.
        **_small_systems(
            hours=1.6,
            leaves=1000,
            gaussians=10_000,
            senones=400,
            biphones=1000,
            chain_epochs=8,
        )
        | {"sequence": HIGH_RATES},
    )


def an4() -> Config:
    """Return the profile for AN4, some 50 minutes of letters and digits: set corpus.root."""
    gmms = _small_systems(
        hours=0.5, leaves=250, gaussians=2000, senones=250, biphones=250, chain_epochs=7
    )
    return Config(
        corpus=CorpusConfig("an4", dev_speakers=8, test_speakers=9),
        augment=SEVEN_SPEEDS,
        chain=True,
        # The utterances of AN4 are too short to estimate speaker transforms: single utterances are
        # recognised with log-mel energies.
        chain_features="both",
        # Epochs on whole utterances do not improve the network here and would be discarded.
        ce=replace(_small_lstm(hidden=256, epochs=6), whole_utterances=WholeUtteranceConfig()),
        **gmms
        | {
            "mono": MonophoneConfig(),
            "sequence": HIGH_RATES,
            # The network almost memorises the training data, so that boosting helps: 120 errors
            # instead of 134.
            "lfmmi": replace(gmms["lfmmi"], boost=0.5),
        },
    )


def kaldi() -> Config:
    """Return the profile for your Kaldi data directories train, dev and test in corpus.root."""
    # Not `lang.words=lexicon`: graphs of all words of a large lexicon take minutes and gigabytes.
    return replace(
        mini(), corpus=CorpusConfig("kaldi"), lang=LangConfig(), lstm_lm=NeuralLmConfig()
    )


def full() -> Config:
    """Return the profile for LibriSpeech's 960 hours and the paper's 5 x 768 network (C6, C7)."""
    return Config(
        corpus=CorpusConfig("librispeech", train="train-clean-*,train-other-*"),
        lang=LangConfig(vocabulary_size=200_000),
        tri=TriphoneConfig(TreeConfig(max_leaves=4200), EmConfig(gaussians=40_000)),
        lda_mllt=LdaMlltConfig(TreeConfig(max_leaves=5000), EmConfig(gaussians=100_000)),
        sat=SatConfig(TreeConfig(max_leaves=7000), EmConfig(gaussians=150_000)),
        align=CorpusAlignConfig(rounds=2),
        ce=CrossEntropyConfig(
            whole_utterances=WholeUtteranceConfig(epochs=2), perturb=ANY_VOLUME_AND_SPEAKER
        ),
    )


PROFILES = {"demo": demo, "mini": mini, "an4": an4, "kaldi": kaldi, "full": full}
