"""Training settings: optimizer, learning rates, epochs, how data are cut, criteria."""

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
"""The libraries' default learning rates (Keras's for `sgd`, as torch has none). With a rate of 1,
AdaDelta is as published, without a learning rate (A18); TensorFlow's steps are a thousandth of
that."""


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
    """Highest learning rate, reached after the warm-up; the paper has no values (C7). None: the
    library's default for the optimizer, see `LIBRARY_RATE`."""
    final_rate: Positive | None = 1e-4
    """Learning rate of the last step. None: the same as `initial_rate`, for a constant rate. Not
    used by the schedule `noam`."""
    schedule: ScheduleName = "exponential"
    """How the rate falls after the warm-up: `exponential` (C7), half a period of a `cosine`, or
    with the inverse square root of the step (`noam`, which needs `warmup_steps`)."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up to `initial_rate`."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay of `adamw`: each step multiplies the weights by 1 minus the learning
    rate times this. It applies to matrices and filters, not to biases and normalisations."""
    accumulate: PositiveInt = 1
    """Batches whose gradients are added up for one optimizer step, for larger batches than fit into
    memory. Rates, checkpoints and `warmup_steps` count steps."""
    momentum: ShareBelowOne = 0.9
    """Momentum of `sgd`."""
    max_gradient_norm: Positive = 5.0
    """Largest norm of the gradient (of the mean loss per frame); a larger one is scaled down to
    this."""
    amp: Amp = "fp32"
    """Precision. `fp32`: float32. `bf16`: autocast to bfloat16, up to twice as fast, while weights,
    optimizer and loss stay float32. `fp16`: autocast to float16 with a scaled loss, for GPUs
    without bfloat16 (compute capability 7). `auto`: the fastest on the device, named in the log."""
    tf32: bool | None = None
    """Whether a GPU multiplies float32 with a mantissa of 10 bits (TF32), which is faster from
    compute capability 8 on. None: torch's own choice, TF32 only in LSTMs and convolutions."""
    threads: Annotated[int, Range(1, 100_000)] | None = None
    """CPU threads; None: one per core, see `toolkit.processes.devices`. Networks of a few million
    weights train fastest with one thread, especially beside other programs. The last bits of the
    results depend on the number of threads."""
    average_epochs: PassCount = 1
    """Number of last epochs whose weights are averaged; the average is kept if it scores no lower
    than the best epoch. 1: no averaging."""
    prefer_average: bool = False
    """Keep the average unless every averaged epoch scores better: with few held-out speakers, the
    best of many scores is partly due to chance."""
    seed: NonNegativeInt = 0
    """Random seed of initial weights, data order and dropout."""
    checkpoint_seconds: NonNegative = field(default=300.0, metadata=NO_EFFECT_ON_RESULTS)
    """Longest time between two checkpoints, in seconds; one is also written after every epoch."""
    parallel: ParallelConfig = ParallelConfig()
    """Data-parallel training, when torchrun starts several processes."""

    def check(self) -> None:
        """Check the settings that only some optimizers and schedules use."""
        if self.weight_decay and (self.optimizer != "adamw" or self.parallel.method == "asgd"):
            raise ValueError(
                f"`weight_decay` is {self.weight_decay}, which needs `optimizer=adamw` and a "
                "`parallel.method` other than `asgd`"
            )
        if self.schedule == "noam" and not self.warmup_steps:
            raise ValueError("`schedule` is 'noam', which needs `warmup_steps` above 0")

    def rates(self) -> tuple[float, float]:
        """Return the learning rates after the warm-up and at the last step."""
        first = LIBRARY_RATE[self.optimizer] if self.initial_rate is None else self.initial_rate
        return first, first if self.final_rate is None else self.final_rate


@dataclass(frozen=True)
class PerturbConfig(Settings):
    """Changes of training features as they are loaded; held-out utterances stay as they are.

    They cost nothing, as features are stored raw. The changes of an utterance depend on its id.
    """

    volume: tuple[Positive, Positive] | None = None
    """Range from which a factor for all samples of an utterance is drawn uniformly; only for
    log-mel energies. Kaldi's perturb_data_dir_volume.sh draws from 1/8 to 2. None: the volume
    stays."""
    unknown_speakers: Share = 0.0
    """Share of the utterances that are normalised as if their speakers were unknown: from the prior
    mean, without the speaker's earlier utterances."""


@dataclass(frozen=True)
class CorpusTrainerConfig(TrainerConfig):
    """How a model is optimised on stored utterances, some of which are held out for validation."""

    valid_utterances: NonNegativeInt = 100
    """Number of training utterances held out for validation. With eight or more speakers, whole
    speakers are held out, until there are at least ten with at least this many utterances in total.
    A speaker is passed over if held-out speakers would then have more than an eighth of all
    utterances. With fewer speakers, at most a tenth of the utterances is held out. The choice
    depends on a checksum of the ids, so that every training holds out the same utterances.
    Augmented copies of held-out utterances are left out. 0: none. Not used when validation data is
    given."""
    valid_seed: NonNegativeInt = 0
    """Seed for the choice of what is held out; use the same for all networks of a run."""
    max_excluded: Share = 0.2
    """Largest share of unusable utterances; with more, training fails."""
    perturb: PerturbConfig = PerturbConfig()
    """Changes of the training features, for recordings of any volume and of unknown speakers."""


@dataclass(frozen=True)
class ChunkConfig(Settings):
    """How utterances are cut and shuffled."""

    frames: BatchFrames = 32
    """Scored low-rate frames (30 ms) per chunk; 32 (C7). The state of an LSTM is zero at the start
    of a chunk or, if there is one, of its left context."""
    left_context: NumContextFrames = 0
    """Low-rate frames before the chunk that are computed but not scored; none in the paper."""
    right_context: NumContextFrames = 0
    """Low-rate frames after the chunk that are computed but not scored, beyond the look-ahead;
    for bidirectional models."""
    chunks_per_batch: BatchSize = 64
    """Chunks per batch."""
    shuffle_frames: PositiveInt = 4_000_000
    """Raw frames (10 ms) of the shards that are loaded and shuffled together. 4 million frames of
    64 values are 11 hours and take 0.5 GB; up to twice as many are in memory. A corpus with fewer
    frames is loaded once and shuffled as a whole."""


@dataclass(frozen=True)
class WholeUtteranceConfig(Settings):
    """The epochs on whole utterances, after those on chunks."""

    epochs: NumEpochs = 0
    """Passes over the data; 2 in the paper (C7)."""
    initial_rate: Positive = 1e-4
    """Learning rate of the first step. It falls as set by `schedule`, or exponentially if
    `schedule` is `noam`."""
    final_rate: Positive = 5e-5
    """Learning rate of the last step."""
    batch_frames: BatchFrames = 4096
    """Low-rate frames (30 ms) per batch, padding included. 4,096 are two minutes, twice as many as
    in 64 chunks of 32. A longer utterance is a batch of its own."""
    max_frames: BatchFrames = 1000
    """Low-rate frames above which an utterance is cut into pieces of about equal length; 1,000 are
    30 s. Each piece starts with a zero state, as an utterance does."""


@dataclass(frozen=True)
class SpecAugmentConfig(Settings):
    """SpecAugment masks; none by default, as in the paper.

    Frequency masks are for spectra: in other features, such as those of speaker-adapted GMMs,
    neighbouring dimensions have nothing in common.
    """

    frequency_masks: NonNegativeInt = 0
    """Number of frequency masks per row (chunk or utterance), each over all its frames; 2 are
    common."""
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
"""Frequencies up to this share of the upper edge are multiplied by the warping factor; from there
on a straight line leads to the edge, as in Kaldi's VTLN."""


@dataclass(frozen=True)
class UtteranceMaskConfig(SpecAugmentConfig):
    """Masks and warping of batches, in frames of 10 ms; none by default."""

    time_width: NonNegativeInt = 15
    """Largest width of a time mask in frames of 10 ms; widths are drawn from 0 to this."""
    mel_bins: Annotated[int, Range(1, 10_000)] = 80
    """Number of leading columns, the mel bins, to which frequency masks apply. The cepstra after
    them (A1) are not covered by frequency masks, and reveal what is under the masks."""
    cepstra: Share = 0.0
    """Probability that all cepstra of an utterance, the columns after `mel_bins`, are masked."""
    warp: Annotated[float, Range(0, below=1 / KNEE - 1)] = 0.0
    """Largest relative change of an utterance's frequencies (vocal tract length perturbation), up
    or down, drawn uniformly; 0.1 is 10 %. Cepstra stay as they are."""

    def check(self) -> None:
        """Check that there are bins to warp."""
        if self.warp and self.mel_bins < 2:
            raise ValueError("`warp` needs at least 2 `mel_bins`")

    @property
    def active(self) -> bool:
        """Whether anything is changed."""
        return super().active or self.cepstra > 0 or self.warp > 0


def check_context(chunks: "ChunkConfig | LfmmiChunkConfig", model: Any) -> None:
    """Raise a ValueError if chunks lack the context that the network's outputs depend on."""
    needed = getattr(model, "context", 0)
    context = min(chunks.left_context, chunks.right_context)
    if context < needed:
        raise ValueError(
            f"chunks have {context} frames of context on each side, but the network's outputs "
            f"depend on {needed}: raise `chunks.left_context` and `chunks.right_context`"
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
    """Training of a neural language model: the network, its text, the optimisation."""

    epochs: PassCount = 4
    """Passes over the text; the epoch with the lowest perplexity of held-out text is kept."""
    initial_rate: Positive | None = 3e-3
    """Learning rate of the first step; it decays exponentially."""
    final_rate: Positive | None = 3e-4
    """Learning rate of the last step."""
    max_gradient_norm: Positive = 1.0
    """Largest norm of the gradient (of the mean loss per word); a larger one is scaled down to
    this."""
    model: WordLstmConfig = field(default_factory=WordLstmConfig)
    """The network; its vocabulary is taken from the text."""
    vocabulary_size: Annotated[int, Range(1, 100_000_000)] | None = 20_000
    """Number of words in the network's vocabulary, the most frequent ones of the text. The
    recogniser's other words share the probability of <UNK>. None: all words that occur."""
    words_per_batch: BatchSize = 1000
    """Words per step."""
    samples: ListLength = 2000
    """Number of words drawn for a step as competitors of the correct ones. If the vocabulary has no
    more words than this, the softmax is over the whole vocabulary."""
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
    """Learning rate at the start, for `adam` and a mean loss per frame (1e-5 in Kaldi's
    train_mpe.sh is for plain SGD and a loss summed over an utterance). On AN4, 2e-4 without
    smoothing raised the criterion further, but also the number of insertions."""
    final_rate: Positive = 2e-5
    """Learning rate of the last step."""
    criterion: Criterion = Criterion()
    """The criterion that is maximised."""
    smoothing: Share = 0.1
    """Weight h of the cross entropy with the references: the loss is h times the cross entropy
    minus (1 - h) times the criterion, both per frame (f-smoothing; Su et al. 2013). 0.1 kept the
    held-out cross entropy from rising at these rates (Kaldi's xent_regularize: 0.1)."""
    batches: LatticeBatchConfig = LatticeBatchConfig()
    """Utterances per step, and the longest utterance."""


@dataclass(frozen=True)
class LfmmiChunkConfig(Settings):
    """How utterances are cut, and batch size."""

    max_frames: BatchFrames = 50
    """Low-rate frames (30 ms) above which an utterance is cut into chunks of about equal length; 50
    are 1.5 s, as in Kaldi, whose chunks overlap instead."""
    left_context: NumContextFrames = 13
    """Low-rate frames before a chunk that are computed but not scored; an LSTM's state comes from
    them (Kaldi: 0.4 s). At the beginning of an utterance they repeat its first frame."""
    right_context: NumContextFrames = 0
    """Low-rate frames after the chunk that are computed but not scored, beyond the look-ahead; for
    bidirectional models."""
    batch_frames: BatchFrames = 3200
    """Scored low-rate frames per batch, padding included."""
    shuffle_frames: PositiveInt = 4_000_000
    """Raw frames that are loaded and shuffled together, see `ChunkConfig`."""


def check_views(consistency: float, masks: SpecAugmentConfig) -> None:
    """Raise a ValueError if the two views that should agree would be identical."""
    if consistency and not masks.active:
        raise ValueError(
            f"`consistency` is {consistency}, which needs masks (`specaugment`): without them the "
            "two views are identical"
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
    """Number of 10 ms frames by which a phone may begin earlier or end later than aligned (Kaldi:
    5)."""
    leak: NonNegative = 0.1
    """Coefficient of the leaky HMM (Kaldi: 0.1)."""
    cross_entropy: NonNegative = 0.1
    """Weight of the cross entropy of a second output layer (Kaldi's xent_regularize: 0.1)."""
    l2: NonNegative = 5e-5
    """Weight of half the squared norm of a frame's outputs (Kaldi's l2_regularize: 5e-5)."""
    boost: NonNegative = 0.0
    """Boost of boosted MMI: added to the log-likelihood of a wrong 30 ms frame in the
    denominator."""

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
    """Utterances per file; 64 in the paper (A7). A file is the unit of parallel work and of
    resuming."""
    max_seconds: Positive = 16.7
    """Length in seconds above which an utterance is left out; 16.7 in the paper (A6), which is
    1,670 frames."""
    window: PositiveInt = 11
    """Receptive field of the model's outputs in frames; 11 in the paper (A12). An utterance with
    fewer outputs than CTC needs for its labels is left out."""
    stride: PositiveInt = 2
    """Frames from one output of the model to the next, the subsampling factor; 2 in the paper
    (A12)."""
    max_excluded: Share = 0.05
    """Largest share of utterances left out for reasons other than their length; with more, writing
    fails."""


@dataclass(frozen=True)
class ReaderConfig(Settings):
    """Batches of whole utterances, and the processes that read them."""

    utterances_per_batch: BatchSize = 24
    """Utterances per batch of one training process; 24, 60 or 150 per GPU in the paper (A10)."""
    readers: NumThreads = field(default=8, metadata=NO_EFFECT_ON_RESULTS)
    """Number of reader processes; 8 or 16 in the paper (A10). `toolkit tta readers` finds the best
    number for a machine. 0: the training process reads, in one prefetching thread."""
    buffer: Annotated[int, Range(1, 100_000)] = field(default=40, metadata=NO_EFFECT_ON_RESULTS)
    """Number of batches in the buffer, in float16: those being read, those that are ready and those
    being trained on; 40 or 100 in the paper (A10)."""
    pad_to: BatchFrames | None = None
    """Frames to which every batch is padded, for hardware that needs a fixed shape; 1,670 in the
    paper (A8). None: the length of the batch's longest utterance."""
    order: Literal["shuffled", "buckets"] = "shuffled"
    """`shuffled`, or `buckets`: batches of utterances of similar length, in random order, which
    without `pad_to` avoids most of the padding."""
    shortest_first: NonNegativeInt = 0
    """Number of initial epochs that go from the shortest utterance to the longest (1 in Deep Speech
    2; none in the paper)."""


@dataclass(frozen=True)
class StatesConfig(Settings):
    """Intervals of sentence generation and checkpoints, and the evaluator of epochs."""

    sentences_every: PositiveInt = 50
    """Iterations between two recognitions of training sentences; 50 (A22)."""
    checkpoint_every: PositiveInt = 250
    """Iterations between two checkpoints; 250 (A22). One is also written at the end of every epoch,
    for the evaluation, and after `checkpoint_seconds` if that is earlier. Asynchronous methods
    (`asgd`, `adpsgd`, `hadpsgd`) write checkpoints only at the ends of epochs, except with
    the pattern `delayed`."""
    evaluator: EvaluatorKind = "swap"
    """Evaluator of an epoch (A22, A23). `swap`: this process, after swapping the training model on
    the device for the evaluation model. `in_place`: this process, with the training model itself.
    The other kinds work while training continues. `resident`: one process for the whole training.
    `process`: a new process for each epoch. `elsewhere`: `toolkit ctc evaluate` on the same run
    directory, for example on another machine with the same storage."""


@dataclass(frozen=True)
class CtcTrainingConfig(TrainerConfig):
    """Training with CTC; the defaults are the paper's values where it gives them."""

    epochs: PassCount = 50
    """Passes over the data; the paper trained for 3,400 minutes (A35)."""
    optimizer: OptimizerName = "adadelta"
    """AdaDelta (A18), by default with torch's constants and learning rate; see `TrainerConfig`."""
    initial_rate: Positive | None = None
    """Learning rate after the warm-up; None: the library's default for the optimizer."""
    final_rate: Positive | None = None
    """Learning rate of the last step; None: the same as the first."""
    max_gradient_norm: Positive = 100.0
    """Largest norm of the gradient (of the mean loss, see `loss_per`); a larger one is scaled down
    to this."""
    model: CtcConfig = field(default_factory=CtcConfig)
    """The network; its input and output sizes are taken from the data and the units."""
    loss_per: LossPer = "utterances"
    """Divisor of a batch's loss: the number of its utterances, or of their labels."""
    states: StatesConfig = StatesConfig()
    """Intervals of sentence generation and checkpoints, and the evaluator (A22, A23)."""
    specaugment: UtteranceMaskConfig = UtteranceMaskConfig()
    """SpecAugment masks on the training batches; none by default, as in the paper."""
    consistency: NonNegative = 0.0
    """Weight of CR-CTC's regularisation: the outputs for two differently masked views of an
    utterance should agree; 0.2 in the CR-CTC paper. It needs masks and doubles the computation of a
    step. 0: one view."""
    log_every: PositiveInt = 10
    """Iterations between two `step` events (loss, throughput) of the run log (A27, A35, A37); each
    epoch ends with one as well."""

    def check(self) -> None:
        """Check the masks of the two views."""
        super().check()
        check_views(self.consistency, self.specaugment)
