"""The GMM aligner of a run's bundle: GMMs, lexicon and pronunciation model in one folder."""

import json
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from toolkit.align.config import COMPLETE_TEXTS, NO_GAPS, LongConfig
from toolkit.align.ctm_textgrid import TimedToken
from toolkit.align.em import speech_mask
from toolkit.align.folder import (
    UNALIGNED,
    UNFIT,
    RecordingTimes,
    SpeakerAdaptation,
    UnrelatedTextError,
)
from toolkit.align.force_align import TranscriptGraphs, check_phones
from toolkit.align.inputs import Recording
from toolkit.align.recording import (
    BLOCK_FRAMES,
    MIN_SPOKEN,
    SAMPLE_STEP,
    PhonePosteriors,
    RecordingAlignment,
    RecordingScores,
    align_at_level,
    align_long,
    span_confidences,
)
from toolkit.config.fields import read_plain
from toolkit.corpus.tags import is_event_tag
from toolkit.errors import ToolkitError
from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend
from toolkit.features.silence import counted_frames, fill_digital_silence
from toolkit.features.stream import extract_file
from toolkit.fsa.lexicon import GAP
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.hmm.transforms import FmllrStatistics
from toolkit.lang.g2p import G2p, spellable
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon, Pronunciation, without_positions
from toolkit.lang.tables import word_table
from toolkit.lang.text_policy import UnknownPolicyError
from toolkit.storage.files import write_atomically

SETTINGS = "aligner.json"
SPEAKER_INDEPENDENT = "independent"
LANG = "lang"
G2P = "g2p.npz"
SYSTEM_FILES = ("gmm.safetensors", "topology.json", "tree.json", "features.json")
PROJECTION = "projection.safetensors"


class AlignerError(ToolkitError):
    """Raised when a folder is not a complete aligner bundle."""


@dataclass(frozen=True)
class AlignerSettings:
    """The fields of a bundle's `aligner.json`."""

    frontend: FrontendConfig
    """The front end of the systems' cepstra."""


def write_aligner_bundle(
    system: Path,
    lang: Path,
    frontend: FrontendConfig,
    out: Path,
    lexicon: Lexicon | None = None,
    independent: Path | None = None,
) -> None:
    """Copy a GMM system and its lexicon into `out`, a folder that can be moved anywhere.

    Args:
      system: the folder of a GMM system.
      lang: the folder of the lexicon that it was trained with. The G2P model in the folder is
        copied; if there is none, a model is trained.
      frontend: the front end of the system's cepstra.
      out: the bundle; `final/aligner` of a run.
      lexicon: more words to include, such as a whole dictionary; pronunciations with phones that
        the system lacks are left out, and words in `lang` keep their pronunciations.
      independent: for a system trained with fMLLR, the folder of the speaker-independent system,
        from whose alignments the transforms of new speakers are estimated.
    """
    _copy_system(system, out)
    if independent is not None:
        _copy_system(independent, out / SPEAKER_INDEPENDENT)
    trained_lang = Lang.load(lang)
    bundled = extend_lang(trained_lang, _usable(trained_lang, lexicon or Lexicon()))
    bundled.save(out / LANG)
    if (lang / G2P).exists():
        shutil.copyfile(lang / G2P, out / G2P)
    elif any(map(spellable, bundled.vocabulary)):
        pronunciations = {
            w: [without_positions(p) for p in bundled.lexicon[w]] for w in bundled.vocabulary
        }
        G2p.train(Lexicon(pronunciations)).save(out / G2P)
    settings = AlignerSettings(frontend)
    write_atomically(out / SETTINGS, json.dumps(asdict(settings), indent=1) + "\n")


def _copy_system(source: Path, target: Path) -> None:
    """Copy the files of a GMM system."""
    target.mkdir(parents=True, exist_ok=True)
    for name in SYSTEM_FILES:
        shutil.copyfile(source / name, target / name)
    if (source / PROJECTION).exists():
        shutil.copyfile(source / PROJECTION, target / PROJECTION)


def _usable(lang: Lang, lexicon: Lexicon) -> Lexicon:
    """Return the words of `lexicon` that `lang` lacks but whose phones it has."""
    # Phones are position-dependent (_B, _I, _E, _S) if those of `lang` are.
    marked = lexicon.with_positions() if lang.position_dependent else lexicon
    phones = set(lang.real_phones)
    usable = Lexicon()
    for word in sorted(marked.keys() - lang.lexicon.keys()):
        pronunciations = [p for p in marked[word] if phones.issuperset(p)]
        if pronunciations:
            usable[word] = pronunciations
    return usable


def find_bundle(model: Path) -> Path:
    """Return the aligner bundle that a folder is or contains.

    Raises:
      AlignerError: the folder neither is nor contains a bundle.
    """
    for folder in (model, model / "aligner", model / "final" / "aligner"):
        if (folder / SETTINGS).is_file():
            return folder
    raise AlignerError(
        f"{model} has no aligner: there is no {SETTINGS} in this folder or in {model / 'aligner'}. "
        "A recipe's last stage writes an aligner to exp/<profile>/final/aligner"
    )


def extend_lang(lang: Lang, added: Mapping[str, Sequence[Pronunciation]]) -> Lang:
    """Return `lang` with more words; its phones and their ids do not change."""
    lexicon = Lexicon({word: list(pronunciations) for word, pronunciations in lang.lexicon.items()})
    for word, pronunciations in added.items():
        lexicon[word] = list(pronunciations)
    return replace(lang, lexicon=lexicon, words=word_table(lexicon))


@dataclass(frozen=True)
class GmmAlignerFiles:
    """The files of a GMM aligner; implements `toolkit.align.folder.AlignerFiles`."""

    bundle: Path
    """The folder that `write_aligner_bundle` made."""
    pronunciations: tuple[tuple[str, Pronunciation], ...] = ()
    """Words that the bundle's lexicon lacks, with guessed pronunciations, sorted."""
    unpronounced: frozenset[str] = frozenset()
    """Words without a pronunciation, and tags, which are aligned as spoken noise."""
    complete_texts: bool = False
    """Whether texts have all words that were spoken, and no others: no gaps."""
    unit_tier: ClassVar[str] = "phones"
    by_speaker: ClassVar[bool] = True

    @classmethod
    def find(cls, model: Path, complete_texts: bool = False) -> "GmmAlignerFiles":
        """Return the aligner that a folder is or contains.

        Args:
          model: the folder.
          complete_texts: see the field.

        Raises:
          AlignerError: the folder neither is nor contains an aligner.
        """
        return cls(find_bundle(model), complete_texts=complete_texts)

    @property
    def needs_speakers(self) -> bool:
        """Whether the system was trained with fMLLR."""
        return (self.bundle / SPEAKER_INDEPENDENT).is_dir()

    def spoken(self, recording: Recording) -> tuple[list[str], str]:
        """Normalise a recording's text; return its words and tags, and the removed text."""
        return recording.spoken(_lang(self.bundle).policy)

    def tags(self, words: Collection[str]) -> frozenset[str]:
        """Return the words that are tags and that the lexicon lacks."""
        lexicon = _lang(self.bundle).lexicon
        return frozenset(word for word in words if is_event_tag(word) and word not in lexicon)

    def with_pronunciations(self, words: Collection[str]) -> "GmmAlignerFiles":
        """Return these files with guessed pronunciations of words outside the lexicon."""
        lang = _lang(self.bundle)
        missing = sorted(set(words) - lang.lexicon.keys())
        spelled = [word for word in missing if not is_event_tag(word)]
        if not spelled or not (self.bundle / G2P).exists():
            return replace(self, pronunciations=(), unpronounced=frozenset(missing))
        # One pronunciation per word, guessed from its spelling; words without letters have none.
        guesses = G2p.load(self.bundle / G2P).guess(spelled)
        lexicon = Lexicon({word: [guess.phones] for word, guess in guesses.items()})
        pronounced = _usable(lang, lexicon)
        pairs = tuple((word, pronounced[word][0]) for word in sorted(pronounced))
        unpronounced = frozenset(missing).difference(pronounced)
        return replace(self, pronunciations=pairs, unpronounced=unpronounced)

    def guessed(self, words: Collection[str]) -> tuple[list[str], list[str]]:
        """Return the words with guessed pronunciations and those without any, sorted."""
        guessed = [word for word, _ in self.pronunciations if word in words]
        return guessed, sorted(self.unpronounced.intersection(words))

    def open(self) -> "GmmAligner":
        """Load the models and return the aligner."""
        config = COMPLETE_TEXTS if self.complete_texts else None
        return GmmAligner(self.bundle, config, self.pronunciations)


@lru_cache(maxsize=1)
def _lang(bundle: Path) -> Lang:
    """Load the lexicon of a bundle, once per process."""
    return Lang.load(bundle / LANG)


DELTA_REACH = 4
"""Frames on either side that deltas and delta-deltas look at."""
FRAME_SHIFT = 0.01
"""Seconds between frames."""
LOWEST_CONFIDENCE = 0.01
"""If the confidence of a recording is lower, its alignment fails. Right texts had at least 0.016
even with models of other speakers, rooms and texts; most wrong texts of a few words have less."""
MIN_GAP = 30
"""Frames of the shortest gap that is a token; shorter ones are pauses without a token."""


class _System:
    """A GMM system that aligns cepstra held in memory."""

    def __init__(self, folder: Path, lang: Lang, config: LongConfig) -> None:
        self.config = config
        system = GmmSystem.load(folder, folder)
        self.frontend, self.gmm, self.senones = system.features.frontend, system.gmm, system.senones
        self.cepstra = system.cepstra
        self.compiler = TranscriptGraphs(lang, self.senones)
        self.posteriors = PhonePosteriors(self.senones)

    def features(
        self, cepstra: Tensor, mean: Tensor, begin: int, end: int, transform: Tensor | None = None
    ) -> Tensor:
        """Compute the GMM features [end - begin, D] of a span of raw cepstra [T, F]."""
        # Deltas and splicing need `reach` frames on either side, which are cut off again below.
        reach = DELTA_REACH + self.frontend.splice
        first = max(0, begin - reach)
        x = self.frontend(cepstra[first : end + reach], mean, transform)
        return x[begin - first : end - first]

    def align(
        self,
        cepstra: Tensor,
        mean: Tensor,
        words: Sequence[str],
        transform: Tensor | None = None,
        unfit: bool = False,
    ) -> RecordingAlignment:
        """Align the cepstra of a recording with its words.

        Args:
          cepstra: [T, F], raw.
          mean: [F] mean of the raw cepstra.
          words: the normalised transcript, at least one word.
          transform: the speaker's transform.
          unfit: whether the model may not fit the speech: if less than `MIN_SPOKEN` of the words is
            found, all of them are aligned.
        """
        scores = RecordingScores(
            lambda begin, end: self.features(cepstra, mean, begin, end, transform),
            self.gmm.log_likelihoods,
            len(cepstra),
            self.posteriors,
        )
        alignment = align_long(scores, words, self.compiler, self.config)
        if unfit and len(alignment.words) < MIN_SPOKEN * len(words):
            return align_at_level(scores, words, self.compiler, self.config, NO_GAPS)
        return alignment


class GmmAligner:
    """Aligns recordings with their words, using a bundle written by `write_aligner_bundle`.

    Args:
      bundle: the folder of the bundle.
      config: search and windows.
      pronunciations: the pronunciations of words that the bundle's lexicon lacks.

    Raises:
      AlignerError: the folder is not a bundle, its words were normalised by other rules, or its
        files come from different bundles.
      GraphMismatchError: the phones of its lexicon and of its systems differ.
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
        except UnknownPolicyError as error:
            raise AlignerError(f"{bundle}: {error}: make the bundle again") from error
        lang = extend_lang(lang, {word: [phones] for word, phones in pronunciations})
        self.config = config or LongConfig()
        self.frontend = Frontend(frontend)
        self._system = _System(bundle, lang, self.config)
        self._independent = (
            _System(bundle / SPEAKER_INDEPENDENT, lang, self.config)
            if (bundle / SPEAKER_INDEPENDENT).is_dir()
            else None
        )
        for folder, system in (
            (bundle, self._system),
            (bundle / SPEAKER_INDEPENDENT, self._independent),
        ):
            if system is None:
                continue
            check_phones(bundle / LANG, lang, system.senones)
            # If the files come from different runs, the dimensions may differ.
            if system.cepstra != frontend.dimension:
                raise AlignerError(
                    f"{bundle / SETTINGS}: the front end computes {frontend.dimension} cepstra, "
                    f"but the models in {folder} need {system.cepstra:g}: restore the bundle or "
                    "make it again"
                )
        self._lang = lang
        self._silence = self._system.senones.topology.silence

    def features(self, audio: Path, channel: int | None = None) -> Tensor:
        """Compute the raw cepstra [T, F] of an audio file of any format, rate and length.

        Args:
          audio: the audio file.
          channel: its channel, from 0; None for the mean of all channels.

        Raises:
          AudioError, FrontendError: the file cannot be read, or is shorter than a window.
        """
        return extract_file(audio, self.frontend, channel)

    def feature_sum(self, features: Tensor) -> tuple[Tensor, int]:
        """Return the float64 sum [F] and the number of frames that are not digital silence."""
        # Float64: sums of hours of frames are exact enough for any order of recordings.
        counted = features[counted_frames(features, self.frontend.config.kind)]
        return counted.sum(dim=0, dtype=torch.float64), len(counted)

    def speaker_statistics(
        self, features: Tensor, mean: Tensor, words: Sequence[str]
    ) -> FmllrStatistics:
        """Accumulate a recording's fMLLR statistics for its speaker (see `estimate_fmllr`).

        The recording is aligned with the speaker-independent system; only speech frames count.

        Args:
          features: [T, F] raw cepstra.
          mean: [F] mean of the raw cepstra over all recordings of the speaker.
          words: the normalised transcript, at least one word.

        Raises:
          NoPathError: the words have no path through the audio.
        """
        system = self._system
        # Align without a transform; only speech that is not digital silence counts.
        counted = counted_frames(features, self.frontend.config.kind)
        cepstra = fill_digital_silence(features, counted)
        states = self._independent.align(cepstra, mean, words, unfit=True).states.long()
        speech = speech_mask(states, system.senones.topology) & counted
        pdfs = system.senones.pdfs(states)
        statistics = FmllrStatistics.zeros(system.gmm.means.shape[1])
        # Block by block: a recording may last hours.
        for begin in range(0, len(states), BLOCK_FRAMES):
            block = slice(begin, begin + BLOCK_FRAMES)
            x = system.features(cepstra, mean, begin, min(block.stop, len(states)))
            statistics.accumulate(system.gmm, x[speech[block]], pdfs[block][speech[block]])
        return statistics

    def align(
        self, features: Tensor, words: Sequence[str], speaker: SpeakerAdaptation | None
    ) -> RecordingTimes:
        """Align one recording with its words; see `toolkit.align.folder.Aligner`.

        Args:
          features: [T, F] raw cepstra.
          words: the normalised transcript, at least one word.
          speaker: mean and transform of the speaker.

        Raises:
          NoPathError: the words have no path through the audio.
        """
        # [D, D + 1] fMLLR and [F] mean of the speaker.
        transform = None if speaker.transform is None else torch.tensor(speaker.transform)
        mean = torch.tensor(speaker.mean)
        counted = counted_frames(features, self.frontend.config.kind)
        cepstra = fill_digital_silence(features, counted)
        alignment = self._system.align(cepstra, mean, words, transform)
        confidence = self._confidence(alignment)
        # It is 0 if all words are aligned as noise.
        if 0 < confidence < LOWEST_CONFIDENCE and self.config != COMPLETE_TEXTS:
            raise UnrelatedTextError(
                f"text and audio do not seem to belong together: the confidence is {confidence:.4f}"
                f", but usually at least {LOWEST_CONFIDENCE}. {UNFIT}"
            )
        timed_words, phones = self._timed_tokens(words, alignment)
        aligned = set(alignment.words)
        in_text = alignment.frame_phones() != GAP
        return RecordingTimes(
            words=timed_words,
            units=phones,
            log_likelihood_per_frame=float(
                alignment.log_likelihoods[in_text].mean(dtype=torch.float64)
            ),
            confidence=confidence,
            retried=alignment.beam > self.config.search.beam,
            unspoken=[position for position in range(len(words)) if position not in aligned],
        )

    def _confidence(self, alignment: RecordingAlignment) -> float:
        """Return the geometric mean of the phone posteriors over speech; 0 if there is none."""
        # The samples are frames 3 n + 1.
        sampled = alignment.states[SAMPLE_STEP // 2 :: SAMPLE_STEP].long()
        speech = speech_mask(sampled, self._system.senones.topology)
        log_posteriors = alignment.log_posteriors[speech].double()
        return float(log_posteriors.mean().exp()) if len(log_posteriors) else 0.0

    def _timed_tokens(
        self, words: Sequence[str], alignment: RecordingAlignment
    ) -> tuple[list[TimedToken], list[TimedToken]]:
        """Return words and phones with times in seconds and confidences.

        A word ends where the next one, a silence or a gap begins; a gap is a token of both.
        Position marks (_B, _I, _E, _S) are removed from phones.
        """
        # A phone ends where the next one begins; a word ends after its last phone except silence.
        starts = alignment.phone_frames
        ends = [*starts[1:], alignment.num_frames]
        word_ends = [ends[phone - 1] for phone in alignment.word_ends(self._silence)]
        timed_words = [
            (starts[phone], end, words[position])
            for position, phone, end in zip(
                alignment.words, alignment.word_phones, word_ends, strict=True
            )
        ]
        # A jump over words is a gap of its own: gaps in a row are one. A short one, which a jump
        # may need, lacks no speech.
        gaps: list[tuple[int, int, str]] = []
        phones: list[tuple[int, int, str]] = []
        for start, end, phone in zip(starts, ends, alignment.phones, strict=True):
            if phone != GAP:
                symbols = (self._lang.phones.symbol(phone),)
                if self._lang.position_dependent:
                    symbols = without_positions(symbols)
                phones.append((start, end, symbols[0]))
            elif gaps and gaps[-1][1] == start:
                gaps[-1] = (gaps[-1][0], end, UNALIGNED)
            else:
                gaps.append((start, end, UNALIGNED))
        gaps = [gap for gap in gaps if gap[1] - gap[0] >= MIN_GAP]
        posteriors = alignment.log_posteriors
        return (
            _timed_tokens(sorted(timed_words + gaps), posteriors),
            _timed_tokens(sorted(phones + gaps), posteriors),
        )


def _timed_tokens(
    tokens: Sequence[tuple[int, int, str]], log_posteriors: Tensor
) -> list[TimedToken]:
    """Make tokens from spans of frames (start, end, token).

    Their confidences are mean posteriors; that of a gap is 0.
    """
    if not tokens:
        return []
    starts, ends, _ = map(list, zip(*tokens, strict=True))
    confidences = span_confidences(log_posteriors, starts, ends)
    return [
        TimedToken(
            token, start * FRAME_SHIFT, end * FRAME_SHIFT, 0.0 if token == UNALIGNED else confidence
        )
        for (start, end, token), confidence in zip(tokens, confidences, strict=True)
    ]
