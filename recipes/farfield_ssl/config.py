"""The far-field recipe's settings, a section per step, and its profiles."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from local.farfield.config import FarfieldConfig, Placement
from local.synthetic.config import SyntheticConfig
from recipes.steps.settings import (
    SHORT_MONO,
    SMALL_SEQUENCE,
    WIDE_BEAM,
    HybridConfig,
    lattice_free,
    small_network,
)
from toolkit.align.config import CorpusAlignConfig, EmConfig, LdaMlltConfig, TriphoneConfig
from toolkit.config.settings import NO_EFFECT_ON_RESULTS
from toolkit.corpus.config import CorpusConfig
from toolkit.decode.config import DecodeConfig
from toolkit.features.config import EnhanceConfig, ExtractConfig, FrontendConfig
from toolkit.hmm.config import TreeConfig
from toolkit.lang.config import LangConfig, NgramConfig
from toolkit.models.config import BlstmConfig, LstmConfig
from toolkit.parallel.config import ParallelConfig
from toolkit.pipeline.config import (
    CacheConfig,
    ExecutorSection,
    PrepareConfig,
    RepartitionConfig,
    SelectConfig,
    TargetsSection,
)
from toolkit.ssl.config import (
    CalibrationConfig,
    ChoiceConfig,
    RecognisedPhonesConfig,
    ScheduledConfig,
    SelfTrainingConfig,
)
from toolkit.train.config import (
    ChunkConfig,
    CrossEntropyConfig,
    LfmmiConfig,
    SequenceConfig,
    WholeUtteranceConfig,
)

ALIGNER = "lda_mllt"
"""The GMM system whose alignments are the targets of the baseline and the teacher."""
SYSTEMS = {
    "ce": ("teacher", "student_ce", "student_smbr", "self_training"),
    "lfmmi": ("chain_teacher", "chain_student"),
}
"""The systems that are compared with the baseline, by `objective`."""
PARTS = {
    "clean speech and rooms": (1, 2),
    "labelled data and its targets": range(3, 13),
    "baseline": range(14, 17),
    "teacher": (17, 18, 19, 31),
    "unlabelled features and targets": (21, 23, 34),
    "judging the teacher": (22,),
    "student": (24, 25, 26, 35),
    "self-training": (28, 29),
    "decoding": (13, 20, 27, 30, 32, 33, 36),
    "front end on arrays": (37, 38),
}
"""Numbers of the stages in each part of the processing, for the breakdown of time (C34). The last
stage, which sums the times, is left out."""


@dataclass(frozen=True)
class Config(HybridConfig):
    """All settings of a run; a stage becomes stale if a setting that it reads changes."""

    objective: Literal["ce", "lfmmi"] = "ce"
    """Training criterion of teacher and student. `ce`: cross entropy and sMBR; the student learns
    from the teacher's posteriors (C9 to C14). `lfmmi`: lattice-free MMI; the student learns from
    the words of the teacher's lattices. The baseline is the same with both."""
    rooms: FarfieldConfig = FarfieldConfig()
    """Amounts of labelled and unlabelled speech, placements, rooms and noise (C1, C32)."""
    baseline: CrossEntropyConfig = field(default_factory=CrossEntropyConfig)
    """The LSTM trained on labelled data (C6, C7); the student has the same size."""
    teacher: CrossEntropyConfig = field(
        default_factory=lambda: CrossEntropyConfig(model=BlstmConfig())
    )
    """The BLSTM trained on labelled data (C9)."""
    executor: ExecutorSection = field(default_factory=ExecutorSection)
    """The executor of the data pipeline: processes of this machine, or Spark."""
    storage: str | None = None
    """Where the pipeline keeps the lake and its intermediate data: a folder on another disk, or an
    address such as s3://bucket/folder, where the training shards stay, too. None: the run
    directory."""
    cache: CacheConfig = field(default=CacheConfig(), metadata=NO_EFFECT_ON_RESULTS)
    """Local copies of the training shards in `storage`."""
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    """Selection from the lake, order and statistics (C16 to C19). The front end is that of `fbank`;
    the normaliser uses `prior_frames`, too."""
    targets: TargetsSection = TargetsSection()
    """How much of the teacher's posteriors is kept (C11)."""
    repartition: RepartitionConfig = RepartitionConfig()
    """Shards to train on (C21)."""
    student: ScheduledConfig = field(default_factory=ScheduledConfig)
    """The LSTM trained on the teacher's targets and labelled data in turn (C10, C12); it has the
    baseline's size."""
    calibration: CalibrationConfig = CalibrationConfig()
    """Measurement of the teacher's calibration."""
    choice_of_k: ChoiceConfig = ChoiceConfig()
    """Comparison of how many logits to keep per frame."""
    self_training: SelfTrainingConfig = SelfTrainingConfig()
    """Selection from the unlabelled speech that the teacher has recognised (C13)."""
    self_trained: CrossEntropyConfig = field(default_factory=CrossEntropyConfig)
    """The LSTM trained on recognised and labelled speech; it has the student's size."""
    recognised_phones: RecognisedPhonesConfig = RecognisedPhonesConfig()
    """The part of the teacher's lattices that the student of `lfmmi` is trained on."""
    lfmmi_student: LfmmiConfig = field(default_factory=lambda: lattice_free(hours=1000, epochs=6))
    """The student of objective `lfmmi`, trained on recognised and labelled speech. The settings of
    its teacher are in the section `lfmmi`."""
    decode: DecodeConfig = replace(HybridConfig.decode, scales=(0.15, *HybridConfig.decode.scales))
    """Decoding with the networks, 33 frames per second. After rescoring, acoustic scales of 0.2 or
    below are best for several networks."""
    enhance: EnhanceConfig = EnhanceConfig()
    """The front end of the test sets' array recordings (C1)."""

    def refuse_contradictions(self) -> None:
        """Check that the corpus has audio and known speakers, which the simulation of rooms needs.

        Called when all settings are known.

        Raises:
          ValueError: the corpus has features instead of audio, or its speakers are to be clustered.
        """
        if self.corpus.features == "kaldi":
            raise ValueError(
                "a corpus with `corpus.features=kaldi` has no audio, but this recipe needs audio "
                "to simulate rooms: use recipes/librispeech/run.py"
            )
        if self.corpus.speakers == "auto":
            raise ValueError(
                "this recipe needs the speakers before `corpus.speakers=auto` can cluster the "
                "recordings: give a corpus that names its speakers"
            )

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems that are compared with the baseline, for this `objective`."""
        return SYSTEMS[self.objective]


def _shards(kind: str) -> ExtractConfig:
    """Return settings for shards of three minutes: half an hour keeps several processes busy."""
    return ExtractConfig(FrontendConfig(kind), hours_per_shard=0.05)


def _small(leaves: int, gaussians: int, senones: int, hidden: int) -> dict[str, Any]:
    """Return the settings of models for an hour or two of speech, by section."""
    # A third of Kaldi's iterations: realign at each quarter, add Gaussians in the first three.
    tree = TreeConfig(max_leaves=leaves)
    em = EmConfig(iterations=12, realign=(3, 6, 9), gaussians=gaussians, grow_until=9)
    lstm = LstmConfig(hidden=hidden, layers=3, dropout=0.2)
    blstm = BlstmConfig(hidden=3 * hidden // 4, layers=3, dropout=0.2)
    chunks = ChunkConfig(chunks_per_batch=32)
    return {
        "cepstra": _shards("plp"),
        "fbank": _shards("fbank"),
        "mono": replace(SHORT_MONO, max_utterances=400),
        "tri": TriphoneConfig(tree, em),
        "lda_mllt": LdaMlltConfig(tree, em),
        "senones": TreeConfig(max_leaves=senones),
        "baseline": small_network(lstm, 14, chunks),
        "teacher": small_network(blstm, 14, replace(chunks, left_context=8, right_context=8)),
        "sequence": replace(SMALL_SEQUENCE, epochs=2),
        "prepare": PrepareConfig(SelectConfig(hours_per_file=0.25)),
        "repartition": RepartitionConfig(hours=0.05),
        "student": ScheduledConfig(
            epochs=8,
            whole_utterances=WholeUtteranceConfig(epochs=2, initial_rate=2e-4, final_rate=1e-4),
            hours_per_sub_epoch=1.25,
            initial_rate=2e-3,
            final_rate=2e-4,
            amp="auto",
            threads=1,
            average_epochs=3,
            model=lstm,
            chunks=chunks,
        ),
        "self_trained": small_network(lstm, 6, chunks),
        "chain_tree": TreeConfig(max_leaves=senones, context=("left",)),
        "lfmmi": lattice_free(hours=0.5, epochs=24),
        "lfmmi_student": lattice_free(hours=0.5, epochs=8),
    }


def demo() -> Config:
    """Return the offline profile with synthetic voices: half an hour labelled, 2.6 h unlabelled."""
    return Config(
        # Clean voices: the recipe adds rooms and noise itself.
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


# Spot, T60 in s, metres to talker and noise, SNR in dB, share of playback, echo ratio in dB.
NEAR = {
    "dp1": Placement(
        "centre", (0.15, 0.2), (0.4, 0.8), (2.0, 4.0), (25.0, 35.0), 0.1, (20.0, 30.0)
    ),
    "dp2": Placement(
        "table", (0.15, 0.25), (0.6, 1.2), (2.0, 4.0), (20.0, 30.0), 0.1, (15.0, 25.0)
    ),
    "dp3": Placement("wall", (0.2, 0.3), (0.8, 1.5), (1.5, 3.0), (16.0, 26.0), 0.2, (10.0, 20.0)),
    "dp4": Placement("shelf", (0.25, 0.35), (1.0, 1.8), (1.0, 2.5), (12.0, 22.0), 0.2, (8.0, 18.0)),
    "dp5": Placement("corner", (0.3, 0.4), (1.2, 2.2), (0.8, 2.0), (8.0, 18.0), 0.3, (5.0, 15.0)),
}
"""Milder placements for the profile mini. At the usual placements, the error rates of all systems
are above 90 % with an hour of labelled audiobooks."""


def mini() -> Config:
    """Return the profile for a few hours of LibriSpeech: mini LibriSpeech by default."""
    return Config(
        corpus=CorpusConfig("librispeech"),
        rooms=FarfieldConfig(
            labelled_hours=0.5,
            unlabelled_hours=5.0,
            val="val*",
            test="dev*",
            val_hours=0.15,
            test_hours=0.2,
            array_hours=0.05,
            labelled_speakers=0.5,
            shared_speakers=True,
            test_placements=5,
            **NEAR,
        ),
        # Without rare longer n-grams, for smaller graphs.
        lm=NgramConfig(min_counts=(1, 2, 2)),
        rescoring=NgramConfig(order=4, min_counts=(1, 1, 2, 2)),
        decode=replace(Config.decode, beam=WIDE_BEAM),
        **_small(leaves=500, gaussians=5000, senones=300, hidden=320),
    )


def full() -> Config:
    """Return the profile for LibriSpeech's 960 hours, as in the paper (C6, C7, C9, C12).

    The rest of the labelled speakers' speech is used as unlabelled speech, because the other
    speakers have only 575 h. Under torchrun the student is trained with BMUF (C12), and the
    networks on labelled data with synchronous SGD; a single process needs no parallel method.

    The paper trains on labelled data with GTC (C8, C9, C14). Here the optimizer is Adam, which GTC
    impairs: after two processes have trained the demo's LSTM for 600 steps, the frame accuracy is
    38.3 % with GTC and 53.6 % without. With plain SGD, the paper's optimizer, and GTC it is 31.6 %.
    """
    whole, ssgd = WholeUtteranceConfig(epochs=2), ParallelConfig("ssgd")
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
            shared_speakers=True,
            train_rooms=1000,
            test_rooms=20,
        ),
        lang=LangConfig(vocabulary_size=200_000),
        tri=TriphoneConfig(TreeConfig(max_leaves=4200), EmConfig(gaussians=40_000)),
        lda_mllt=LdaMlltConfig(TreeConfig(max_leaves=5000), EmConfig(gaussians=100_000)),
        align=CorpusAlignConfig(rounds=2),
        baseline=CrossEntropyConfig(whole_utterances=whole, parallel=ssgd),
        teacher=CrossEntropyConfig(model=BlstmConfig(), whole_utterances=whole, parallel=ssgd),
        sequence=SequenceConfig(parallel=ssgd),
        student=ScheduledConfig(hours_per_sub_epoch=None, parallel=ParallelConfig("bmuf")),
        self_trained=CrossEntropyConfig(whole_utterances=whole, parallel=ssgd),
    )


PROFILES = {"demo": demo, "mini": mini, "full": full}
