"""Settings of trainings: optimizer, learning rates, epochs, how data are cut, criteria."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from toolkit.config.fields import (
    BatchFrames,
    BatchSize,
    ListLength,
    NonNegative,
    NonNegativeInt,
    NumContextFrames,
    NumEpochs,
    NumThreads,
    Positive,
    PositiveInt,
    Range,
    Settings,
    Share,
    ShareBelowOne,
)
from toolkit.config.settings import NO_EFFECT_ON_RESULTS
from toolkit.fsa.config import Criterion, PhoneNgramConfig
from toolkit.models.config import BlstmConfig, CtcConfig, LstmConfig, TdnnfConfig, WordLstmConfig
from toolkit.parallel.config import ParallelConfig

Amp = Literal["fp32", "bf16", "fp16", "auto"]
"""Name of a precision, see `TrainerConfig.amp`."""
OptimizerName = Literal["adam", "adamw", "sgd", "adadelta", "adadelta_tensorflow"]
LossPer = Literal["utterances", "labels"]
EvaluatorKind = Literal["swap", "in_place", "resident", "process", "elsewhere"]
"""Kind of evaluator, see `StatesConfig.evaluator`."""
ScheduleName = Literal["exponential", "cosine", "noam"]
LIBRARY_RATE = {
    "adam": 1e-3,
    "adamw": 1e-3,
    "sgd": 1e-2,
    "adadelta": 1.0,
    "adadelta_tensorflow": 1e-3,
}
"""The libraries' default learning rates (for `sgd` that of Keras, as torch has none). With 1
AdaDelta is as published, without a learning rate (A18); TensorFlow's steps are a thousandth."""


PassCount = Annotated[int, Range(1, 1_000_000)]
"""A number of passes over the data, at least 1."""


@dataclass(frozen=True)
class TrainerConfig(Settings):
    """How a model is optimised, whatever the objective."""

    epochs: PassCount = 10
    """Passes over the data; 10 for cross entropy on chunks (C7)."""
    optimizer: OptimizerName = "adam"
    """`adam` with torch's defaults, `adamw` with `weight_decay`, `sgd` with momentum, or AdaDelta
    (A18) with torch's defaults (`adadelta`) or TensorFlow's (`adadelta_tensorflow`)."""
    initial_rate: Positive | None = 1e-3
    """Learning rate after the warm-up, the highest one; C7 gives no values. None: the library's
    default for the optimizer, see `LIBRARY_RATE`."""
    final_rate: Positive | None = 1e-4
    """Learning rate of the last step; None: the same as the first, for a constant rate. Not used by
    the schedule `noam`."""
    schedule: ScheduleName = "exponential"
    """How the rate falls after the warm-up: `exponential` (C7), half a period of a `cosine`, or
    with the inverse square root of the step (`noam`, which needs `warmup_steps`)."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up to `initial_rate`."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay of `adamw`: a step takes the learning rate times this share off the
    weights. On matrices and filters alone, not on biases and normalisations."""
    accumulate: PositiveInt = 1
    """Batches whose gradients are added up for one optimizer step, for larger batches than fit into
    memory. Rates, checkpoints and `warmup_steps` count steps."""
    momentum: ShareBelowOne = 0.9
    """Momentum of `sgd`."""
    max_gradient_norm: Positive = 5.0
    """Gradient clipping: larger norms (of the mean loss per frame) are scaled down to this."""
    amp: Amp = "fp32"
    """Precision: float32; autocast to bfloat16 (`bf16`), up to twice as fast, while weights,
    optimizer and loss stay float32; to float16 with a scaled loss (`fp16`), for GPUs without
    bfloat16 (capability 7). `auto`: what the device is fastest in, which the log names."""
    tf32: bool | None = None
    """Whether a GPU's products of float32 have 10 bits (TF32), faster from capability 8 on. None:
    torch's own choice, TF32 in LSTMs and convolutions alone."""
    threads: Annotated[int, Range(1, 100_000)] | None = None
    """CPU threads; None: one per core, see `toolkit.processes.devices`. Networks of a few million
    weights train fastest with one, especially beside other programs. The last bits of results
    depend on it."""
    average_epochs: PassCount = 1
    """Number of last epochs whose weights are averaged; the average is kept if it scores
    better than the best epoch. 1: no averaging."""
    prefer_average: bool = False
    """Keep the average unless it scores less than each of its epochs, though some may score better:
    of many scores on few held-out speakers the best is so by chance, too."""
    seed: NonNegativeInt = 0
    """Random seed of initial weights, data order and dropout."""
    checkpoint_seconds: NonNegative = field(default=300.0, metadata=NO_EFFECT_ON_RESULTS)
    """Seconds between two checkpoints, at most; there is one after every epoch as well."""
    parallel: ParallelConfig = ParallelConfig()
    """Data-parallel training, when torchrun starts several processes."""

    def check(self) -> None:
        """Check settings that only some optimizers and schedules have."""
        if self.weight_decay and (self.optimizer != "adamw" or self.parallel.method == "asgd"):
            raise ValueError(
                f"weight_decay is {self.weight_decay}, which needs optimizer=adamw and a method "
                "other than asgd"
            )
        if self.schedule == "noam" and not self.warmup_steps:
            raise ValueError("schedule is 'noam', which needs warmup_steps above 0")

    def rates(self) -> tuple[float, float]:
        """The learning rates after the warm-up and at the end."""
        first = LIBRARY_RATE[self.optimizer] if self.initial_rate is None else self.initial_rate
        return first, first if self.final_rate is None else self.final_rate


@dataclass(frozen=True)
class PerturbConfig(Settings):
    """Changes of training features as they are loaded; held-out utterances stay as they are.

    They cost nothing, as features are stored raw. The changes of an utterance depend on its id.
    """

    volume: tuple[Positive, Positive] | None = None
    """Range of the factors by which the samples are multiplied, drawn uniformly; only for log-mel
    energies. Kaldi's perturb_data_dir_volume.sh draws from 1/8 to 2. None: the volume stays."""
    unknown_speakers: Share = 0.0
    """Share of the utterances that are normalised as if their speakers were unknown: from the prior
    mean, without the speaker's earlier utterances."""


@dataclass(frozen=True)
class CorpusTrainerConfig(TrainerConfig):
    """How a model is optimised on stored utterances, some of which are held out for validation."""

    valid_utterances: NonNegativeInt = 100
    """Training utterances held out for validation: from eight speakers on all utterances of about
    ten speakers, of more if these have fewer, at most an eighth; with fewer speakers at most a
    tenth of the utterances. They are chosen by a checksum of their ids, so that every training
    holds out the same, and their augmented copies are left out. 0: none. Not used when validation
    data is given."""
    valid_seed: NonNegativeInt = 0
    """Seed of the choice of what is held out, to be the same in all trainings of a run."""
    max_excluded: Share = 0.2
    """Largest share of unusable utterances; with more, training fails."""
    perturb: PerturbConfig = PerturbConfig()
    """Changes of the training features, for recordings of any volume and of unknown speakers."""


@dataclass(frozen=True)
class ChunkConfig(Settings):
    """How utterances are cut and shuffled."""

    frames: BatchFrames = 32
    """Scored low-rate frames (30 ms) per chunk; 32 (C7). The state is zero at its start."""
    left_context: NumContextFrames = 0
    """Low-rate frames before the chunk that are computed but not scored; none in the paper."""
    right_context: NumContextFrames = 0
    """Low-rate frames after the chunk that are computed but not scored, beyond the look-ahead;
    for bidirectional models."""
    chunks_per_batch: BatchSize = 64
    """Chunks per batch."""
    shuffle_frames: PositiveInt = 4_000_000
    """Raw frames (10 ms) of the shards that are loaded and shuffled together; with 64 values per
    frame 4 million are 11 hours in 0.5 GB, and up to twice as many are in memory. A corpus with
    fewer frames is loaded once and shuffled as a whole."""


@dataclass(frozen=True)
class WholeUtteranceConfig(Settings):
    """The epochs on whole utterances, after those on chunks."""

    epochs: NumEpochs = 0
    """Passes over the data; 2 in the paper (C7)."""
    initial_rate: Positive = 1e-4
    """Learning rate of the first step. It falls as `schedule` says, or exponentially where that is
    `noam`."""
    final_rate: Positive = 5e-5
    """Learning rate of the last step."""
    batch_frames: BatchFrames = 4096
    """Low-rate frames (30 ms) per batch, padding included: two minutes, twice those of 64 chunks.
    A longer utterance is a batch of its own."""
    max_frames: BatchFrames = 1000
    """Low-rate frames above which an utterance is cut into pieces of about equal length, each of
    which starts with a zero state like an utterance: 30 s."""


@dataclass(frozen=True)
class SpecAugmentConfig(Settings):
    """SpecAugment masks; none by default, as in the paper.

    Frequency masks are for spectra: in other features, such as those of speaker-adapted GMMs,
    neighbouring dimensions have nothing in common.
    """

    frequency_masks: NonNegativeInt = 0
    """Number of frequency masks per row, the same for all its frames; 2 are common."""
    frequency_width: NonNegativeInt = 12
    """Largest width of a frequency mask in mel bins; widths are drawn from 0 to this."""
    time_masks: NonNegative = 0.0
    """Mean number of time masks per second of a row; try 1 for chunks of a second."""
    time_width: NonNegativeInt = 5
    """Largest width of a time mask in low-rate frames (30 ms); widths are drawn from 0 to this."""

    @property
    def active(self) -> bool:
        """Whether anything is masked."""
        return self.frequency_masks * self.frequency_width > 0 or (
            self.time_masks * self.time_width > 0
        )


KNEE = 0.8
"""Share of the upper edge up to which frequencies are multiplied by the factor; from there on a
straight line leads to the edge, as in Kaldi's VTLN."""


@dataclass(frozen=True)
class UtteranceMaskConfig(SpecAugmentConfig):
    """Masks and warping of batches, in frames of 10 ms; none by default."""

    time_width: NonNegativeInt = 15
    """Largest width of a time mask in frames of 10 ms; widths are drawn from 0 to this."""
    mel_bins: Annotated[int, Range(1, 10_000)] = 80
    """Number of first columns to which frequency masks apply; cepstra beside them (A1) are not
    masked, and tell what is under the masks."""
    cepstra: Share = 0.0
    """Probability that the columns after `mel_bins`, the cepstra, are masked in an utterance."""
    warp: Annotated[float, Range(0, below=1 / KNEE - 1)] = 0.0
    """Largest change of an utterance's frequencies (vocal tract length perturbation), drawn evenly
    from both directions; 0.1 is 10 %. Cepstra stay as they are."""

    def check(self) -> None:
        """Check that there are bins to warp."""
        if self.warp and self.mel_bins < 2:
            raise ValueError("warp needs at least 2 mel_bins")

    @property
    def active(self) -> bool:
        """Whether anything is changed."""
        return super().active or self.cepstra > 0 or self.warp > 0


def check_context(chunks: "ChunkConfig | LfmmiChunkConfig", model: Any) -> None:
    """Raise a ValueError where chunks lack the context that the network's outputs depend on."""
    needed = getattr(model, "context", 0)
    context = min(chunks.left_context, chunks.right_context)
    if context < needed:
        raise ValueError(
            f"chunks have {context} frames of context on each side, but the network's outputs "
            f"depend on {needed}: raise chunks.left_context and chunks.right_context"
        )


@dataclass(frozen=True)
class FrameTrainingConfig(CorpusTrainerConfig):
    """Training of a network on shuffled chunks, then on whole utterances."""

    model: LstmConfig | BlstmConfig | TdnnfConfig = field(default_factory=LstmConfig)
    """The network; its input and output sizes are taken from the data."""
    chunks: ChunkConfig = field(default_factory=ChunkConfig)
    """How utterances are cut into chunks and shuffled."""
    whole_utterances: WholeUtteranceConfig = field(default_factory=WholeUtteranceConfig)
    """Epochs on whole utterances after those on chunks."""
    specaugment: SpecAugmentConfig = field(default_factory=SpecAugmentConfig)
    """SpecAugment's masks on the training batches; none by default, nor in the paper."""

    def check(self) -> None:
        """Check that chunks have the context that the network needs."""
        super().check()
        check_context(self.chunks, self.model)

    def whole_phase(self) -> TrainerConfig:
        """Return the settings of the epochs on whole utterances, which have no warm-up."""
        return replace(
            self,
            epochs=self.whole_utterances.epochs,
            average_epochs=min(self.average_epochs, self.whole_utterances.epochs),
            initial_rate=self.whole_utterances.initial_rate,
            final_rate=self.whole_utterances.final_rate,
            warmup_steps=0,
            schedule="exponential" if self.schedule == "noam" else self.schedule,
        )


@dataclass(frozen=True)
class CrossEntropyConfig(FrameTrainingConfig):
    """Cross entropy training; in the paper 10 epochs on chunks, then 2 on whole utterances (C7)."""


@dataclass(frozen=True)
class NeuralLmConfig(TrainerConfig):
    """The network, its text and its training."""

    epochs: PassCount = 4
    """Passes over the text; the epoch with the lowest perplexity of held-out text is kept."""
    initial_rate: Positive | None = 3e-3
    """Learning rate of the first step; it decays exponentially."""
    final_rate: Positive | None = 3e-4
    """Learning rate of the last step."""
    max_gradient_norm: Positive = 1.0
    """Gradient clipping: larger norms (of the mean loss per word) are scaled down to this."""
    model: WordLstmConfig = field(default_factory=WordLstmConfig)
    """The network; its vocabulary is taken from the text."""
    vocabulary_size: Annotated[int, Range(1, 100_000_000)] | None = 20_000
    """Most frequent words of the text that the network tells apart; the recogniser's others share
    the probability of <UNK>. None: all that occur."""
    words_per_batch: BatchSize = 1000
    """Words per step."""
    samples: ListLength = 2000
    """Words drawn for a step as competitors of the right ones; a vocabulary that is not larger is
    computed whole."""
    held_out: Annotated[int, Range(2)] = 50
    """One sentence in this many is held out for validation."""


@dataclass(frozen=True)
class LatticeBatchConfig(Settings):
    """Selection of the utterances, and batch size."""

    utterances_per_batch: BatchSize = 4
    """Utterances of similar length per step (Kaldi's train_mpe.sh: 1)."""
    max_frames: BatchFrames = 2000
    """Low-rate frames (30 ms) above which an utterance is left out; 2,000 are one minute, as
    Kaldi's 6,000 of 10 ms."""


@dataclass(frozen=True)
class SequenceConfig(CorpusTrainerConfig):
    """Training on lattices, from a network that cross entropy trained."""

    epochs: PassCount = 3
    """Passes over the data; 3 (C7, C8). Kaldi: 4."""
    initial_rate: Positive = 5e-5
    """Learning rate at the start, for `adam` and means per frame (Kaldi's 1e-5 of train_mpe.sh is
    for plain SGD and sums over an utterance). On AN4 2e-4 without smoothing raised the criterion
    further, and insertions with it."""
    final_rate: Positive = 2e-5
    """Learning rate of the last step."""
    criterion: Criterion = Criterion()
    """The criterion that is maximised."""
    smoothing: Share = 0.1
    """Weight h of the cross entropy with the references: the loss is (1 - h) times minus the
    criterion plus h times the cross entropy, both per frame (f-smoothing; Su et al. 2013). 0.1
    kept the held-out cross entropy from rising at these rates (Kaldi's xent_regularize: 0.1)."""
    batches: LatticeBatchConfig = LatticeBatchConfig()
    """Utterances per step and their longest."""


@dataclass(frozen=True)
class LfmmiChunkConfig(Settings):
    """How utterances are cut, and batch size."""

    max_frames: BatchFrames = 50
    """Low-rate frames (30 ms) above which an utterance is cut into chunks of about equal length:
    1.5 s, as in Kaldi, where they overlap instead."""
    left_context: NumContextFrames = 13
    """Low-rate frames before a chunk that are computed but not scored, from which the state of an
    LSTM comes (Kaldi: 0.4 s); at the begin of an utterance its first frame repeated."""
    right_context: NumContextFrames = 0
    """Low-rate frames after the chunk that are computed but not scored, beyond the look-ahead; for
    bidirectional models."""
    batch_frames: BatchFrames = 3200
    """Scored low-rate frames per batch, padding included."""
    shuffle_frames: PositiveInt = 4_000_000
    """Raw frames that are loaded and shuffled together, see `ChunkConfig`."""


def check_views(consistency: float, masks: SpecAugmentConfig) -> None:
    """Raise a ValueError where the two views that should agree would be the same."""
    if consistency and not masks.active:
        raise ValueError(
            f"consistency is {consistency}, needs masks (specaugment), in which the views differ"
        )


@dataclass(frozen=True)
class LfmmiConfig(CorpusTrainerConfig):
    """Training of a network with lattice-free MMI."""

    model: LstmConfig | BlstmConfig | TdnnfConfig = field(default_factory=LstmConfig)
    """The network; its input and output sizes are taken from the data."""
    chunks: LfmmiChunkConfig = field(default_factory=LfmmiChunkConfig)
    """How utterances are cut and batched."""
    ngram: PhoneNgramConfig = field(default_factory=PhoneNgramConfig)
    """The phone n-gram of the denominator."""
    tolerance: NonNegativeInt = 5
    """10 ms frames by which a phone may begin earlier or end later than aligned (Kaldi: 5)."""
    leak: NonNegative = 0.1
    """Coefficient of the leaky HMM (Kaldi: 0.1)."""
    cross_entropy: NonNegative = 0.1
    """Weight of the cross entropy of a second output layer (Kaldi's xent_regularize: 0.1)."""
    l2: NonNegative = 5e-5
    """Weight of half the squared norm of a frame's outputs (Kaldi's l2_regularize: 5e-5)."""
    boost: NonNegative = 0.0
    """Boost of boosted MMI: log-likelihood that a wrong frame of 30 ms gains in the denominator."""

    specaugment: SpecAugmentConfig = SpecAugmentConfig()
    """SpecAugment's masks on the training batches; none by default."""
    consistency: NonNegative = 0.0
    """Weight of the divergence between the outputs for two differently masked views of each chunk,
    see `LfmmiLoss`. It needs masks and doubles the computation of a step. 0: one view."""

    def check(self) -> None:
        """Check the masks of the two views, and the context of the chunks."""
        super().check()
        check_views(self.consistency, self.specaugment)
        check_context(self.chunks, self.model)


@dataclass(frozen=True)
class RecordConfig(Settings):
    """Selection of the utterances, and size of the record files."""

    per_file: PositiveInt = 64
    """Utterances per file (A7: 64), the unit of parallel work and of resuming."""
    max_seconds: Positive = 16.7
    """Longer utterances are left out (A6: 16.7, which is 1,670 frames)."""
    window: PositiveInt = 11
    """Receptive field of the model's outputs in frames (A12: 11). An utterance with fewer outputs
    than CTC needs for its labels is left out."""
    stride: PositiveInt = 2
    """Frames from one output of the model to the next, the subsampling factor (A12: 2)."""
    max_excluded: Share = 0.05
    """Largest share of utterances left out for another reason than their length; with more,
    writing fails."""


@dataclass(frozen=True)
class ReaderConfig(Settings):
    """Batches of whole utterances and the reader processes."""

    utterances_per_batch: BatchSize = 24
    """Utterances per batch of one training process (A10: 24, 60 or 150 per GPU)."""
    readers: NumThreads = field(default=8, metadata=NO_EFFECT_ON_RESULTS)
    """Reader processes (A10: 8 or 16; `toolkit tta readers` finds the number for a machine).
    0 reads in the training process, in one prefetching thread."""
    buffer: Annotated[int, Range(1, 100_000)] = field(default=40, metadata=NO_EFFECT_ON_RESULTS)
    """Number of batches being read, ready or trained on (A10: 40 or 100), in float16."""
    pad_to: BatchFrames | None = None
    """Frames to which every batch is padded (A8: 1,670), for hardware that needs a fixed shape;
    None: the length of the batch's longest utterance."""
    order: Literal["shuffled", "buckets"] = "shuffled"
    """`shuffled`, or `buckets`: batches of utterances of similar length, in random order, which
    without `pad_to` avoids most of the padding."""
    shortest_first: NonNegativeInt = 0
    """Number of first epochs that are sorted from the shortest utterance to the longest (1 in Deep
    Speech 2; none in the paper)."""


@dataclass(frozen=True)
class StatesConfig(Settings):
    """Intervals between the states of a training, and the evaluator of its epochs."""

    sentences_every: PositiveInt = 50
    """Iterations between two recognitions of training sentences; 50 (A22)."""
    checkpoint_every: PositiveInt = 250
    """Iterations between two checkpoints; 250 (A22). There is one at the end of every epoch as
    well, which evaluation starts from, and after `checkpoint_seconds` if that is earlier.
    Asynchronous methods (`asgd`, `adpsgd`, `hadpsgd`) write checkpoints at ends of epochs only,
    except with delay by one."""
    evaluator: EvaluatorKind = "swap"
    """Evaluator of an epoch (A22, A23). `swap`: this process, after the training model on the
    device was swapped for the evaluation model. `in_place`: this process, with the training model
    itself. The others evaluate while training continues. `resident`: one process for the whole
    training. `process`: a new process for each epoch. `elsewhere`: `toolkit ctc evaluate` on the
    same run directory, such as on another machine with the same storage."""


@dataclass(frozen=True)
class CtcTrainingConfig(TrainerConfig):
    """Training with CTC; the defaults are the paper's, where it gives them."""

    epochs: PassCount = 50
    """Passes over the data; the paper trained for 3,400 minutes (A35)."""
    optimizer: OptimizerName = "adadelta"
    """AdaDelta (A18), by default with torch's constants and learning rate; see `TrainerConfig`."""
    initial_rate: Positive | None = None
    """Learning rate after the warm-up; None: the library's default for the optimizer."""
    final_rate: Positive | None = None
    """Learning rate of the last step; None: the same as the first."""
    max_gradient_norm: Positive = 100.0
    """Gradient clipping: larger norms (of the mean loss, see `loss_per`) are scaled to this."""
    model: CtcConfig = field(default_factory=CtcConfig)
    """The network; its input and output sizes are taken from the data and the units."""
    loss_per: LossPer = "utterances"
    """Divisor of a batch's loss: its number of utterances, or of their labels."""
    states: StatesConfig = StatesConfig()
    """Intervals of sentence generation and checkpoints, and the evaluator (A22, A23)."""
    specaugment: UtteranceMaskConfig = UtteranceMaskConfig()
    """SpecAugment masks on the training batches; none by default, as in the paper."""
    consistency: NonNegative = 0.0
    """Weight of CR-CTC's regularisation: the outputs for two differently masked views of an
    utterance should agree; 0.2 in its paper. It needs masks and doubles the computation of a step.
    0: one view."""
    log_every: PositiveInt = 10
    """Iterations between two `step` events (loss, throughput) of the run log (A27, A35, A37); each
    epoch ends with one as well."""

    def check(self) -> None:
        """Check the masks of the two views."""
        super().check()
        check_views(self.consistency, self.specaugment)
