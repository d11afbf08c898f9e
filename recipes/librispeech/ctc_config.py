"""The CTC recipe's settings, a section per step, and its profiles."""

from dataclasses import dataclass, field, replace
from typing import Literal

from local.synthetic.config import SyntheticConfig
from recipes.steps.settings import SEVEN_SPEEDS, SMALL_LSTM_LM, THREE_SPEEDS
from toolkit.config.fields import ListLength, NonNegativeInt, PositiveInt, check_fields
from toolkit.corpus.config import CheckConfig, CorpusConfig
from toolkit.decode.config import (
    BeamTuneConfig,
    CtcDecodeConfig,
    EvaluationConfig,
    GraphConfig,
    NeuralRescoringConfig,
    TuneConfig,
    WordsConfig,
)
from toolkit.features.config import PRESETS, AugmentConfig, ExtractConfig, Scope
from toolkit.lang.config import NgramConfig, Rules, UnitsConfig
from toolkit.models.config import CtcConfig
from toolkit.parallel.config import ParallelConfig
from toolkit.train.config import (
    CtcTrainingConfig,
    NeuralLmConfig,
    ReaderConfig,
    RecordConfig,
    UtteranceMaskConfig,
)
from toolkit.tta.config import EQUAL_BATCH_WER, Dataset, TtaConfig


@dataclass(frozen=True)
class Config:
    """All settings of a run; a stage becomes stale if a setting that it reads changes."""

    corpus: CorpusConfig = CorpusConfig()
    """The corpus and its splits."""
    check: CheckConfig = CheckConfig(frames_per_phone=2)
    """What counts as a fault of the data. A letter needs at least one output frame, which is two
    input frames (A12)."""
    normaliser: Rules | None = None
    """Rules that turn transcripts and text into words: English, letters of any alphabet, or
    as-given (see `LangConfig.normaliser`). None: transcripts are taken as they are, in upper case,
    and the language model's text is English."""
    tags: Literal["drop", "keep"] | None = None
    """How tags in brackets, such as [laughter], are treated; see `LangConfig.tags`."""
    units: UnitsConfig = UnitsConfig()
    """The network's output units: characters (A16), or word pieces."""
    lm: NgramConfig = NgramConfig()
    """The language model of the dictionary-constrained search."""
    dictionary_size: NonNegativeInt = 0
    """How many of the most frequent words of the language model's text join the training words in
    the dictionary; the paper uses only the training words (A21)."""
    features: ExtractConfig = ExtractConfig(PRESETS["fbank80-mfcc13"])
    """80 log-mel energies and 13 MFCCs, 93 values per frame (A1)."""
    prior_frames: NonNegativeInt = 200
    """Weight, in frames, of the global mean in the running mean of a speaker."""
    normalisation: Scope | None = None
    """Statistics that normalise the features. `causal`: of the speaker's frames so far. `whole`:
    also of the rest of the file, and with its variance; streaming is then impossible. `global`: of
    the training data alone. None: `whole` for bidirectional networks, which wait for the end of the
    file anyway, and `causal` for others."""
    augment: AugmentConfig = AugmentConfig()
    """Augmented copies of the training utterances; none in the paper."""
    records: RecordConfig = RecordConfig()
    """Record files, and the longest utterance (A6, A7)."""
    readers: ReaderConfig = ReaderConfig()
    """Batches, and the processes that make them (A8, A10)."""
    devices: PositiveInt | None = None
    """Number of processes that must train together, one per GPU, so that batches have the intended
    size; None: any number."""
    evaluation_width: ListLength = 256
    """Beam width of the evaluation after each epoch (A24)."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """The search of the evaluation after each epoch, and how many utterances it recognises
    (A21)."""
    train: CtcTrainingConfig = field(default_factory=CtcTrainingConfig)
    """Network, optimizer and states (A12-A24)."""
    decode: CtcDecodeConfig = CtcDecodeConfig()
    """The searches of the final table (A21, A24)."""
    neural: bool = False
    """Also train an LSTM language model, and use it to rescore the n-best lists of the search with
    dictionary and n-grams."""
    lstm_lm: NeuralLmConfig = field(default_factory=NeuralLmConfig)
    """The LSTM language model of `neural` and its training."""
    lstm_rescoring: NeuralRescoringConfig = NeuralRescoringConfig()
    """Rescoring with the LSTM language model."""
    bundle: BeamTuneConfig = BeamTuneConfig()
    """The beams that are tried for the bundle of `toolkit transcribe`."""
    detect_speech: bool = True
    """Add a speech detector to the bundle: an utterance without speech then has no words."""
    dataset: Dataset | None = None
    """Description of the corpus and its difficulty, for the time-to-accuracy page (A4)."""
    sweep: tuple[ListLength, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    """Beam widths of the sweep on the first development split, LibriSpeech's dev-clean (A31)."""
    tta: TtaConfig = TtaConfig()
    """Target error rates and rules of the time to accuracy (A26)."""

    @property
    def scope(self) -> Scope:
        """Statistics that normalise the features, see `normalisation`."""
        # A user's own network class may lack the field `bidirectional`.
        both_ways = getattr(self.train.model, "bidirectional", False)
        return self.normalisation or ("whole" if both_ways else "causal")

    def refuse_contradictions(self) -> None:
        """Check that there is audio, from which this recipe extracts its features.

        Called when all settings are known.

        Raises:
          ValueError: the corpus has features instead of audio.
        """
        if self.corpus.features == "kaldi":
            raise ValueError(
                "a corpus with `corpus.features=kaldi` has no audio, but this recipe extracts its "
                "features from audio: use recipes/librispeech/run.py"
            )

    def __post_init__(self) -> None:
        check_fields(self)  # not inherited from `Settings`: its method `check` is a section here
        if not self.sweep:
            raise ValueError("`sweep` is empty: give at least one beam width")
        if self.neural and self.decode.words.mode == "words":
            raise ValueError(
                "`neural` rescores a search with n-grams, but `decode.words.mode=words` searches "
                "without n-grams: set another mode"
            )
        # Records leave out utterances with fewer output frames than labels: they must count frames
        # as the network does.
        records, model, masks = self.records, self.train.model, self.train.specaugment
        if (records.window, records.stride) != (model.frames_needed, model.subsampling):
            raise ValueError(
                f"`records.window` is {records.window} and `records.stride` is {records.stride}, "
                f"but the network needs {model.frames_needed} and {model.subsampling}: set these "
                "values"
            )
        # Warping and masks of cepstra act on mel filters: the features must have them.
        frontend = self.features.frontend
        if masks.warp or masks.cepstra:
            if frontend.kind not in ("fbank", "fbank_mfcc"):
                raise ValueError(
                    "`train.specaugment.warp` and `train.specaugment.cepstra` need features with "
                    f"mel bins, and {frontend.kind} has none: set both to 0"
                )
            if min(masks.mel_bins, frontend.dimension) != frontend.mel_bins:
                raise ValueError(
                    f"`train.specaugment.mel_bins` is {masks.mel_bins}, but the front end has "
                    f"{frontend.mel_bins} mel bins: set it to {frontend.mel_bins}"
                )


def _small_training(
    hidden: int,
    epochs: int,
    stride: int,
    dropout: float,
    specaugment: UtteranceMaskConfig,
    warmup_steps: int = 100,
) -> CtcTrainingConfig:
    """Return a network of one convolution and three BLSTMs that one core can train in minutes.

    It uses Adam, since AdaDelta needs longer, and 25 or 33 output frames per second instead of the
    paper's 50, to save computation in the LSTMs. Each utterance is seen in two views that are
    masked differently and have to agree (CR-CTC), which suits so little data.
    """
    return CtcTrainingConfig(
        epochs=epochs,
        optimizer="adam",
        initial_rate=3e-3,
        final_rate=1.5e-4,
        warmup_steps=warmup_steps,
        amp="auto",
        threads=1,
        average_epochs=3,
        consistency=0.2,
        model=CtcConfig(
            channels=(256,),
            strides=(stride,),
            hidden=hidden,
            lstm_layers=3,
            bidirectional=True,
            dropout=dropout,
        ),
        specaugment=specaugment,
    )


SMALL_READERS = ReaderConfig(
    utterances_per_batch=16, readers=1, buffer=8, order="buckets", shortest_first=1
)
"""One reader process makes batches of 16 utterances of similar length."""


def demo() -> Config:
    """Return the profile for the offline demo corpus, which takes minutes on two cores."""
    return Config(
        corpus=SyntheticConfig(),
        dataset=Dataset("Made-up voices", "continuous", "independent", "medium", "low"),
        augment=THREE_SPEEDS,
        records=RecordConfig(stride=4),
        readers=SMALL_READERS,
        lm=NgramConfig(order=4),
        train=_small_training(
            hidden=160,
            epochs=8,
            stride=4,
            dropout=0.2,
            # Synthetic voices differ in their formants, which warping shifts.
            specaugment=UtteranceMaskConfig(
                frequency_masks=1, time_masks=1.0, warp=0.1, cepstra=0.5
            ),
        ),
        evaluation_width=64,
        evaluation=EvaluationConfig("words+lm", lm_weight=1.5, word_bonus=1.0),
        decode=CtcDecodeConfig(widest=4096, tune_width=512),
        neural=True,
        lstm_lm=SMALL_LSTM_LM,
        sweep=(1, 4, 16, 64, 256, 512),
        tta=TtaConfig(cer=(20.0, 15.0, 12.0), wer=(60.0, 50.0, 40.0)),
    )


def _on_seven_speeds(
    corpus: CorpusConfig, dataset: Dataset | None, epochs: int, frequency_masks: int
) -> Config:
    """Return the settings of `an4` for another corpus: training on its speech at seven speeds.

    After so many passes over the data, the weights of the last epochs are averaged, for example of
    the last 7 of 20.
    """
    train = _small_training(
        hidden=192,
        epochs=epochs,
        stride=3,
        dropout=0.3,
        specaugment=UtteranceMaskConfig(frequency_masks=frequency_masks, time_masks=1.0),
        warmup_steps=200,
    )
    return replace(
        demo(),
        corpus=corpus,
        dataset=dataset,
        augment=SEVEN_SPEEDS,
        lm=NgramConfig(),
        evaluation=EvaluationConfig("words+lm", lm_weight=0.4, word_bonus=1.0),
        records=RecordConfig(stride=3),
        train=replace(train, average_epochs=2 + epochs // 4, prefer_average=True),
    )


def an4() -> Config:
    """Return the profile for AN4, some 50 minutes of letters and digits: set corpus.root."""
    corpus = CorpusConfig("an4", dev_speakers=8, test_speakers=9)
    dataset = Dataset("AN4", "connected", "independent", "small")
    config = _on_seven_speeds(corpus, dataset, epochs=20, frequency_masks=2)
    # N-grams predict little in letters and digits, and the 600 words of dev are too few to tune
    # weights.
    weights = {"lm_weight": config.evaluation.lm_weight, "word_bonus": config.evaluation.word_bonus}
    decode = CtcDecodeConfig(
        words=WordsConfig(width=512, **weights),
        graph=GraphConfig(**weights),
        tune=TuneConfig(untuned_within=2.0),
    )
    return replace(config, decode=decode, neural=False)


def kaldi() -> Config:
    """Return the profile for your Kaldi data directories train, dev and test in corpus.root."""
    # More speech than AN4's half hour needs fewer passes and less masking.
    config = _on_seven_speeds(CorpusConfig("kaldi"), None, epochs=12, frequency_masks=1)
    return replace(config, lstm_lm=NeuralLmConfig())


def full() -> Config:
    """Return the profile for LibriSpeech's 960 hours and the paper's network (A5-A24)."""
    return Config(
        corpus=CorpusConfig("librispeech", train="train-clean-*,train-other-*"),
        dataset=Dataset("LibriSpeech", "continuous", "independent", "very large", "low"),
        readers=ReaderConfig(pad_to=1670),
        evaluation=EvaluationConfig("words+lm"),
    )


def _platform(devices: int, batch: int, readers: int, buffer: int) -> Config:
    """Return `full` with the batch and the GPUs of one of the paper's machines.

    Args:
      devices: GPUs, each with a process and a copy of the model (A9).
      batch: utterances per step, on all GPUs together.
      readers: number of reader processes on the machine.
      buffer: number of whole batches that are being read or ready.
    """
    base = full()
    return replace(
        base,
        devices=devices,
        readers=replace(
            base.readers,
            # Settings are per process, the paper's figures per machine.
            utterances_per_batch=batch // devices,
            readers=readers // devices,
            buffer=buffer,
        ),
        train=replace(base.train, amp="fp32", parallel=ParallelConfig("ssgd")),
    )


def sys1() -> Config:
    """Return the profile for Sys1$ of the paper: four RTX 2070, 96 utterances (A10)."""
    return _platform(devices=4, batch=96, readers=8, buffer=40)


def sys2() -> Config:
    """Return the profile for Sys2$ of the paper: four GTX 1080 Ti, 240 utterances."""
    return _platform(devices=4, batch=240, readers=16, buffer=100)


def sys10() -> Config:
    """Return the profile for Sys10$ of the paper: two V100, 300 utterances."""
    return _platform(devices=2, batch=300, readers=16, buffer=100)


EQUAL_BATCH = 96
"""Utterances per step in the study of equal batches (A34)."""


def _equal(config: Config) -> Config:
    """Return a platform's settings with the batch, beam and targets of the equal-batch study."""
    return replace(
        config,
        readers=replace(config.readers, utterances_per_batch=EQUAL_BATCH // config.devices),
        evaluation_width=64,
        tta=TtaConfig(wer=EQUAL_BATCH_WER),
    )


PROFILES = {
    "demo": demo,
    "an4": an4,
    "kaldi": kaldi,
    "full": full,
    "sys1": sys1,
    "sys2": sys2,
    "sys10": sys10,
    "sys1-equal": lambda: _equal(sys1()),
    "sys2-equal": lambda: _equal(sys2()),
    "sys10-equal": lambda: _equal(sys10()),
}
