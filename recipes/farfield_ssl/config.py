"""The far-field recipe's settings: a section per verb, a function per profile."""

from dataclasses import dataclass, field, replace
from typing import Any

from local.farfield_config import FarfieldConfig
from local.synthetic import SyntheticConfig
from recipes.unlabelled import ExecutorSection, TargetsSection
from toolkit.align.corpus import CorpusAlignConfig
from toolkit.align.lda_mllt import LdaMlltConfig
from toolkit.align.monophone import MonophoneConfig
from toolkit.align.training import EmConfig
from toolkit.align.triphone import TriphoneConfig
from toolkit.corpus.config import CheckConfig, CorpusConfig
from toolkit.decode.denominators import LatticeConfig
from toolkit.decode.first_pass import DecodeConfig
from toolkit.features.augment import AugmentConfig
from toolkit.features.enhance import EnhanceConfig
from toolkit.features.extract import ExtractConfig
from toolkit.features.frontend import FrontendConfig
from toolkit.fsa.search import Beam
from toolkit.hmm.tree_build import TreeConfig
from toolkit.lang.config import LangConfig, NgramConfig
from toolkit.models.blstm import BlstmConfig
from toolkit.models.lstm import LstmConfig
from toolkit.pipeline.prepare import PrepareConfig
from toolkit.pipeline.steps.repartition import RepartitionConfig
from toolkit.pipeline.steps.sample import SelectConfig
from toolkit.ssl.calibration import CalibrationConfig
from toolkit.ssl.choice_of_k import ChoiceConfig
from toolkit.ssl.scheduled import ScheduledConfig
from toolkit.ssl.self_training import SelfTrainingConfig
from toolkit.train.chunks import ChunkConfig
from toolkit.train.cross_entropy import CrossEntropyConfig
from toolkit.train.sequence import SequenceConfig
from toolkit.train.sequence_data import SequenceDataConfig
from toolkit.train.whole_utterances import WholeUtteranceConfig

ALIGNER = "lda_mllt"
"""The GMM system whose alignments are the targets of baseline and teacher."""
SYSTEMS = ("teacher", "student_ce", "student_smbr", "self_training")
"""What is compared with the baseline."""
PARTS = {
    "labelled data and its targets": range(1, 13),
    "baseline": range(13, 16),
    "teacher": range(16, 19),
    "unlabelled features": (20,),
    "targets": (22,),
    "student": range(23, 26),
    "self-training": (27, 28),
    "decoding": (19, 26, 29),
}
"""Stages by the part of the processing that they belong to (C34)."""


SHORT_MONO = MonophoneConfig(
    EmConfig(
        iterations=24,
        realign=(*range(1, 7), 8, 10, 12, 15, 18, 21),
        gaussians=1000,
        grow_until=18,
        min_occupancy=3.0,
    ),
    max_utterances=400,
)
"""Half of Kaldi's realignments, in less than half the time."""


@dataclass(frozen=True)
class Config:
    """All settings of a run; a stage is stale when a section that it reads has changed."""

    corpus: CorpusConfig = CorpusConfig()
    """The clean corpus that is put into rooms."""
    rooms: FarfieldConfig = FarfieldConfig()
    """Amounts of labelled and unlabelled speech, placements, rooms and noise (C1, C32)."""
    check: CheckConfig = CheckConfig()
    """What counts as a fault of the data."""
    lang: LangConfig = LangConfig()
    """Lexicon and vocabulary."""
    lm: NgramConfig = NgramConfig()
    """The n-gram language model of the decoding graph."""
    rescoring: NgramConfig = NgramConfig(order=4)
    """The larger one that rescores lattices (C2: 4-gram); its text is by default `lm.text`."""
    cepstra: ExtractConfig = ExtractConfig(FrontendConfig("plp"))
    """Features of the GMMs: 13 PLP cepstra (C4)."""
    fbank: ExtractConfig = ExtractConfig(FrontendConfig("fbank"))
    """Features of the networks: 64 log-mel energies (C5)."""
    prior_frames: int = 200
    """Frames that the global mean weighs in the causal mean of a speaker (Kaldi: 200)."""
    augment: AugmentConfig = AugmentConfig()
    """Copies of the labelled utterances, for baseline and teacher; none in the paper."""
    mono: MonophoneConfig = MonophoneConfig()
    """The monophone GMMs."""
    tri: TriphoneConfig = TriphoneConfig()
    """Triphone GMMs on deltas."""
    lda_mllt: LdaMlltConfig = LdaMlltConfig()
    """Triphone GMMs on LDA + MLLT features (C4)."""
    align: CorpusAlignConfig = CorpusAlignConfig()
    """Alignment of the labelled data."""
    senones: TreeConfig = TreeConfig(max_leaves=3183)
    """The tree of the low frame rate (C3)."""
    baseline: CrossEntropyConfig = field(default_factory=CrossEntropyConfig)
    """The LSTM on labelled data (C6, C7); the student is one of the same size."""
    teacher: CrossEntropyConfig = field(
        default_factory=lambda: CrossEntropyConfig(model=BlstmConfig())
    )
    """The BLSTM on labelled data (C9)."""
    lattice_lm: NgramConfig = NgramConfig(order=2)
    """The weak language model of the denominator lattices, by default of the transcripts."""
    lattices: LatticeConfig = LatticeConfig()
    """The denominator lattices (C8)."""
    sequence: SequenceConfig = SequenceConfig()
    """Training on the lattices (C8)."""
    decode: DecodeConfig = DecodeConfig(
        acoustic_scale=0.4,
        scales=(0.2, 0.25, 0.3, 0.4, 0.5),
        penalties=(-2.0, -1.0, 0.0, 1.0),
        beam=Beam(search=15.0, output=6.0, max_active=4000),
    )
    """Decoding with the networks, 33 frames per second."""
    executor: ExecutorSection = field(default_factory=ExecutorSection)
    """Who runs the data pipeline's steps: this machine's processes, or Spark."""
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    """What is selected of the lake, its order and statistics (C16 to C19); the front end is that of
    `fbank`."""
    targets: TargetsSection = TargetsSection()
    """What is kept of the teacher's posteriors (C11)."""
    repartition: RepartitionConfig = RepartitionConfig()
    """Shards to train on (C21)."""
    student: ScheduledConfig = field(default_factory=ScheduledConfig)
    """The LSTM on the teacher's targets and on labelled data in turn (C10, C12); of the baseline's
    size."""
    calibration: CalibrationConfig = CalibrationConfig()
    """On how much the teacher's calibration is measured."""
    choice_of_k: ChoiceConfig = ChoiceConfig()
    """On how much numbers of logits are tried."""
    self_training: SelfTrainingConfig = SelfTrainingConfig()
    """What is kept of the unlabelled speech that the teacher has recognised (C13)."""
    self_trained: CrossEntropyConfig = field(default_factory=CrossEntropyConfig)
    """The LSTM on that and on labelled speech; of the student's size."""
    enhance: EnhanceConfig = EnhanceConfig()
    """The front end of the array version of the test sets (C1)."""


def _network(
    model: LstmConfig | BlstmConfig, epochs: int, chunks: ChunkConfig
) -> CrossEntropyConfig:
    """A network that one core can train in minutes."""
    return CrossEntropyConfig(
        epochs=epochs,
        initial_rate=2e-3,
        final_rate=1e-4,
        amp="auto",
        threads=1,
        average_epochs=3,
        model=model,
        chunks=chunks,
        whole=WholeUtteranceConfig(epochs=2),
    )


def _shards(kind: str) -> ExtractConfig:
    """Shards of three minutes, so that half an hour keeps several processes busy."""
    return ExtractConfig(FrontendConfig(kind), hours_per_shard=0.05)


def _small(leaves: int, gaussians: int, senones: int, hidden: int) -> dict[str, Any]:
    """The models of an hour or two of speech."""
    tree = TreeConfig(max_leaves=leaves)
    em = EmConfig(iterations=12, realign=(3, 6, 9), gaussians=gaussians, grow_until=9)
    lstm = LstmConfig(hidden=hidden, layers=3, dropout=0.2)
    blstm = BlstmConfig(hidden=3 * hidden // 4, layers=3, dropout=0.2)
    chunks = ChunkConfig(batch=32)
    return {
        "cepstra": _shards("plp"),
        "fbank": _shards("fbank"),
        "mono": SHORT_MONO,
        "tri": TriphoneConfig(tree, em),
        "lda_mllt": LdaMlltConfig(tree, em),
        "senones": TreeConfig(max_leaves=senones),
        "baseline": _network(lstm, 14, chunks),
        "teacher": _network(blstm, 14, replace(chunks, left_context=8, right_context=8)),
        "sequence": SequenceConfig(
            epochs=2,
            threads=1,
            initial_rate=1e-4,
            final_rate=4e-5,
            data=SequenceDataConfig(batch=8),
        ),
        "prepare": PrepareConfig(SelectConfig(hours_per_file=0.25)),
        "repartition": RepartitionConfig(hours=0.05),
        "student": ScheduledConfig(
            epochs=8,
            whole=WholeUtteranceConfig(epochs=2, initial_rate=2e-4, final_rate=1e-4),
            hours=1.25,
            initial_rate=2e-3,
            final_rate=2e-4,
            amp="auto",
            threads=1,
            average_epochs=3,
            model=lstm,
            chunks=chunks,
        ),
        "self_trained": _network(lstm, 6, chunks),
    }


def demo() -> Config:
    """Offline, made-up voices: half an hour labelled, five times as much unlabelled."""
    return Config(
        corpus=SyntheticConfig(
            train_hours=3.2,
            dev_hours=0.1,
            test_hours=0.6,
            snr_db=(40.0, 40.0),
            t60_seconds=(0.05, 0.05),
            direct_to_reverberant_db=(30.0, 30.0),
        ),
        rooms=FarfieldConfig(
            labelled_hours=0.5,
            unlabelled_hours=2.6,
            val_hours=0.1,
            test_hours=0.12,
            labelled_speakers=0.25,
            shared_speakers=True,
        ),
        **_small(leaves=250, gaussians=2000, senones=200, hidden=256),
    )


def mini() -> Config:
    """A few hours of LibriSpeech: set corpus.root, or mini LibriSpeech is downloaded."""
    return Config(
        corpus=CorpusConfig("librispeech"),
        rooms=FarfieldConfig(
            labelled_hours=0.4,
            unlabelled_hours=5.0,
            val_hours=0.15,
            test_hours=0.075,
            array_hours=0.025,
            labelled_speakers=0.4,
            shared_speakers=True,
        ),
        lm=NgramConfig(min_counts=(1, 2, 2)),
        rescoring=NgramConfig(order=4, min_counts=(1, 1, 2, 2)),
        **_small(leaves=500, gaussians=5000, senones=300, hidden=320),
    )


def full() -> Config:
    """LibriSpeech's 960 hours and the paper's networks and schedule (C6, C7, C9, C12)."""
    whole = WholeUtteranceConfig(epochs=2)
    return Config(
        corpus=CorpusConfig(
            "librispeech", train="train-clean-*,train-other-*", dev="dev-clean", test="test-clean"
        ),
        rooms=FarfieldConfig(
            labelled_hours=100.0,
            unlabelled_hours=850.0,
            val_hours=1.0,
            test_hours=1.0,
            array_hours=0.5,
            train_rooms=1000,
            test_rooms=20,
        ),
        lang=LangConfig(vocabulary_size=200_000),
        tri=TriphoneConfig(TreeConfig(max_leaves=4200), EmConfig(gaussians=40_000)),
        lda_mllt=LdaMlltConfig(TreeConfig(max_leaves=5000), EmConfig(gaussians=100_000)),
        align=CorpusAlignConfig(rounds=2),
        baseline=CrossEntropyConfig(whole=whole),
        teacher=CrossEntropyConfig(model=BlstmConfig(), whole=whole),
        student=ScheduledConfig(hours=None),
        self_trained=CrossEntropyConfig(whole=whole),
    )


PROFILES = {"demo": demo, "mini": mini, "full": full}
