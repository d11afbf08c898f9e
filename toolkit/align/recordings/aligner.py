"""The aligner: times of the words and phones of a recording, from an aligner bundle."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from toolkit.align.ctm import CtmEntry
from toolkit.align.gmm.lda_mllt import speech_mask
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.graphs import TrainingGraphCompiler, check_phones
from toolkit.align.recordings.bundle import (
    INDEPENDENT,
    LANG,
    SETTINGS,
    AlignerError,
    AlignerSettings,
    extend_lang,
    find_bundle,
)
from toolkit.align.recordings.confidence import (
    BLOCK_FRAMES,
    SAMPLE_STEP,
    PhonePosteriors,
    RecordingScores,
    span_confidences,
)
from toolkit.align.recordings.joining import RecordingAlignment
from toolkit.align.recordings.long import LongConfig, align_long
from toolkit.config.convert import read_plain
from toolkit.features.frontend import Frontend
from toolkit.features.silence import counted_frames
from toolkit.features.stream import extract_file
from toolkit.hmm.fmllr import FmllrStatistics
from toolkit.lang.lang import Lang
from toolkit.lang.letters import UnknownNormaliserError
from toolkit.lang.lexicon import Pronunciation, without_positions

DELTA_REACH = 4
"""Frames on either side that deltas and delta-deltas look at."""
FRAME_SHIFT = 0.01
"""Seconds between frames."""


class _System:
    """A GMM system that aligns cepstra given in memory."""

    def __init__(self, folder: Path, lang: Lang, config: LongConfig) -> None:
        self.config = config
        system = GmmSystem.load(folder, folder)
        self.frontend, self.gmm, self.senones = system.features.frontend, system.gmm, system.senones
        self.cepstra = system.cepstra
        self.compiler = TrainingGraphCompiler(lang, self.senones)
        self.posteriors = PhonePosteriors(self.senones)

    def features(
        self, cepstra: Tensor, mean: Tensor, begin: int, end: int, transform: Tensor | None = None
    ) -> Tensor:
        """Features [end - begin, D] of raw cepstra [T, F], as those of the whole recording."""
        reach = DELTA_REACH + self.frontend.splice
        first = max(0, begin - reach)
        x = self.frontend(cepstra[first : end + reach], mean, transform)
        return x[begin - first : end - first]

    def align(
        self, cepstra: Tensor, mean: Tensor, words: Sequence[str], transform: Tensor | None = None
    ) -> RecordingAlignment:
        scores = RecordingScores(
            lambda begin, end: self.features(cepstra, mean, begin, end, transform),
            self.gmm.log_likelihoods,
            len(cepstra),
            self.posteriors,
        )
        return align_long(scores, words, self.compiler, self.config)


class Aligner:
    """Aligns recordings with their words, by a bundle that `write_aligner_bundle` made.

    Args:
      bundle: the folder.
      config: search and windows.
      pronunciations: of words that the bundle's lexicon lacks.

    Raises:
      AlignerError: the folder is no bundle, its words were normalised by other rules, or its files
        come from different bundles.
      GraphMismatchError: its lexicon has other phones than its systems.
    """

    def __init__(
        self,
        bundle: Path,
        config: LongConfig | None = None,
        pronunciations: Iterable[tuple[str, Pronunciation]] = (),
    ) -> None:
        bundle = find_bundle(bundle)
        settings = read_plain(
            bundle / SETTINGS, AlignerSettings, AlignerError, "make the bundle again"
        )
        frontend = settings.frontend
        lang = Lang.load(bundle / LANG)
        try:
            lang.policy  # noqa: B018
        except UnknownNormaliserError as error:
            raise AlignerError(f"{bundle}: {error}: make the bundle again") from error
        lang = extend_lang(lang, {word: [phones] for word, phones in pronunciations})
        self.config = config or LongConfig()
        self.frontend = Frontend(frontend)
        self._system = _System(bundle, lang, self.config)
        self._independent = (
            _System(bundle / INDEPENDENT, lang, self.config)
            if (bundle / INDEPENDENT).is_dir()
            else None
        )
        for folder, system in ((bundle, self._system), (bundle / INDEPENDENT, self._independent)):
            if system is None:
                continue
            check_phones(bundle / LANG, lang, system.senones)
            if system.cepstra != frontend.dimension:
                raise AlignerError(
                    f"{bundle / SETTINGS}: a front end of {frontend.dimension} cepstra, {folder}"
                    f" models {system.cepstra:g}: restore the bundle or make it again"
                )
        self._lang = lang
        self._silence = self._system.senones.topology.silence

    @property
    def adapts(self) -> bool:
        """Whether the system needs a transform for each speaker (see `adaptation_statistics`)."""
        return self._independent is not None

    def cepstra(self, audio: Path, channel: int | None = None) -> Tensor:
        """Raw cepstra [T, F] of a file of any format, rate and length.

        Args:
          audio: the file.
          channel: its channel, from 0; None: the mean of all.

        Raises:
          AudioError, FrontendError: the file cannot be read, or is shorter than a window.
        """
        return extract_file(audio, self.frontend, channel)

    def adaptation_statistics(
        self, cepstra: Tensor, mean: Tensor, words: Sequence[str]
    ) -> FmllrStatistics:
        """Accumulate a recording's statistics for its speaker's fMLLR (see `estimate_fmllr`).

        The recording is aligned with the speaker-independent system; frames of speech count.

        Args and errors: as `align`.
        """
        system = self._system
        states = self._independent.align(cepstra, mean, words).states.long()
        speech = speech_mask(states, system.senones.topology)
        speech &= counted_frames(cepstra, self.frontend.config.kind)
        pdfs = system.senones.pdfs(states)
        statistics = FmllrStatistics.zeros(system.gmm.means.shape[1])
        for begin in range(0, len(states), BLOCK_FRAMES):
            block = slice(begin, begin + BLOCK_FRAMES)
            x = system.features(cepstra, mean, begin, min(block.stop, len(states)))
            statistics.accumulate(system.gmm, x[speech[block]], pdfs[block][speech[block]])
        return statistics

    def align(
        self, cepstra: Tensor, mean: Tensor, words: Sequence[str], transform: Tensor | None = None
    ) -> RecordingAlignment:
        """Align one recording.

        Args:
          cepstra: [T, F] raw.
          mean: [F] over all recordings of the speaker.
          words: the normalised transcript, one word at least.
          transform: [D, D+1] the speaker's fMLLR.

        Raises:
          NoPathError: no path leads through audio and words.
        """
        return self._system.align(cepstra, mean, words, transform)

    def confidence(self, alignment: RecordingAlignment) -> float:
        """Geometric mean of the phones' posteriors over the frames of speech; 0 without speech."""
        sampled = alignment.states[SAMPLE_STEP // 2 :: SAMPLE_STEP].long()
        speech = speech_mask(sampled, self._system.senones.topology)
        found = alignment.log_posteriors[speech].double()
        return float(found.mean().exp()) if len(found) else 0.0

    def entries(
        self,
        utterance: str,
        words: Sequence[str],
        alignment: RecordingAlignment,
        channel: str = "1",
    ) -> tuple[list[CtmEntry], list[CtmEntry]]:
        """Words and phones in seconds, with confidences: geometric means of phone posteriors.

        A word ends where the next one or a silence begins. Phones are written without the marks of
        position-dependent ones. `channel` is that of the entries.
        """
        starts = alignment.phone_frames
        ends = [*starts[1:], alignment.num_frames]
        word_starts = [starts[phone] for phone in alignment.word_phones]
        word_ends = [ends[phone - 1] for phone in alignment.word_ends(self._silence)]
        symbols = tuple(self._lang.phones.symbol(phone) for phone in alignment.phones)
        phones = without_positions(symbols) if self._lang.position_dependent else symbols
        posteriors = alignment.log_posteriors
        return (
            _entries(utterance, channel, word_starts, word_ends, words, posteriors),
            _entries(utterance, channel, starts, ends, phones, posteriors),
        )


def _entries(
    utterance: str,
    channel: str,
    starts: list[int],
    ends: list[int],
    tokens: Sequence[str],
    log_posteriors: Tensor,
) -> list[CtmEntry]:
    confidences = span_confidences(log_posteriors, starts, ends)
    return [
        CtmEntry(
            utterance, channel, start * FRAME_SHIFT, (end - start) * FRAME_SHIFT, token, confidence
        )
        for start, end, token, confidence in zip(starts, ends, tokens, confidences, strict=True)
    ]
