"""Aligns recordings of any length with their words, window by window, with confidences."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from toolkit.align.config import NO_GAPS, AlignConfig, LongConfig
from toolkit.align.force_align import (
    TrainingGraph,
    TranscriptGraphs,
    UtteranceAlignment,
    force_align,
)
from toolkit.errors import ToolkitError
from toolkit.fsa.lexicon import GAP, GapScores
from toolkit.hmm.phone_sets import base_phone_groups
from toolkit.hmm.senones import Senones

BLOCK_FRAMES = 1500
"""Frames scored at a time; with 15,000 Gaussians, this takes 90 MB."""
SCALE = 0.5
"""Factor on log-likelihoods in phone posteriors."""
SAMPLE_STEP = 3
"""Every third frame is a sample: all pdfs are scored there, not only those of a window's words.
With HMMs of three states, every phone has at least one sample."""


def samples_among(begin: int, end: int) -> range:
    """Return the sample numbers among frames begin ... end - 1; sample n is frame 3 n + 1."""
    first_samples = [(frame + SAMPLE_STEP - 2) // SAMPLE_STEP for frame in (begin, end)]
    return range(*first_samples)


class PhonePosteriors:
    """Computes the posterior probabilities of phones in each frame.

    A phone's likelihood is the sum over its pdfs, raised to the power `scale`: neighbouring frames
    are correlated, so that unscaled posteriors would be nearly all 0 or 1. All phones have the same
    prior. Phones that share a pdf count as one, the first of them.

    Args:
      senones: the acoustic model's senones.
      scale: factor on log-likelihoods.
    """

    def __init__(self, senones: Senones, scale: float = SCALE) -> None:
        self._scale = scale
        first = torch.zeros(1 + len(senones.topology.phones), dtype=torch.int64)
        for family in base_phone_groups(senones.topology):
            first[list(family)] = family[0]
        self.phone_of_pdf = first[senones.phone_of_pdf]
        self.pdfs = torch.arange(senones.num_pdfs)
        self.size = 1 + int(self.phone_of_pdf.max())
        self._member = (self.phone_of_pdf[:, None] == torch.arange(self.size)).float()

    def __call__(self, log_likelihoods: Tensor) -> Tensor:
        """Convert log-likelihoods of all pdfs [T, P] to phone posteriors [T, size]."""
        # p(phone | x) ~ (sum over its pdfs of p(x | pdf)) ^ scale, relative to the best pdf.
        best = log_likelihoods.max(dim=1, keepdim=True).values
        likelihoods = (log_likelihoods - best).exp_() @ self._member
        shares = likelihoods.pow_(self._scale)
        return shares / shares.sum(dim=1, keepdim=True)


class RecordingScores:
    """Scores of a recording, computed window by window to limit the memory.

    Args:
      features: (first frame, end frame) -> [frames, D].
      log_likelihoods: (x [n, D], pdfs [L]) -> [n, L].
      num_frames: T, at least 2.
      posteriors: computes the phone posteriors.
    """

    def __init__(
        self,
        features: Callable[[int, int], Tensor],
        log_likelihoods: Callable[[Tensor, Tensor], Tensor],
        num_frames: int,
        posteriors: PhonePosteriors,
    ) -> None:
        self.num_frames = num_frames
        self._features = features
        self._log_likelihoods = log_likelihoods
        self._of_phones = posteriors
        self._posteriors = torch.zeros(len(samples_among(0, num_frames)), posteriors.size)

    def window(self, begin: int, end: int, pdfs: Tensor, gap_level: float) -> Tensor:
        """Return log-likelihoods [end - begin, L + 1] of pdfs [L] and gaps; keep the posteriors.

        A frame of a gap is `gap_level` below the best pdf.
        """
        columns = torch.empty(end - begin, len(pdfs) + 1)
        for first in range(begin, end, BLOCK_FRAMES):
            behind = min(first + BLOCK_FRAMES, end)
            scores = self._log_likelihoods(self._features(first, behind), self._of_phones.pdfs)
            block = columns[first - begin : behind - begin]
            block[:, :-1] = scores[:, pdfs]
            block[:, -1] = scores.max(dim=1).values - gap_level
            samples = torch.tensor(samples_among(first, behind), dtype=torch.int64)
            sampled = scores[SAMPLE_STEP * samples + 1 - first]
            self._posteriors[samples] = self._of_phones(sampled)
        return columns

    def log_posteriors(self, begin: int, pdfs: Tensor) -> Tensor:
        """Return log p(phone | x) at the sampled frames of a span aligned to `pdfs`."""
        samples = torch.tensor(samples_among(begin, begin + len(pdfs)), dtype=torch.int64)
        aligned = pdfs[SAMPLE_STEP * samples + 1 - begin].long()
        phones = self._of_phones.phone_of_pdf[aligned]
        # The floor replaces posteriors that underflow.
        return self._posteriors[samples, phones].clamp(min=1e-30).log()


def span_confidences(log_posteriors: Tensor, starts: list[int], ends: list[int]) -> list[float]:
    """Return the geometric means of posteriors over spans of frames.

    Args:
      log_posteriors: one at every sample of a recording.
      starts: first frame of each span.
      ends: the frame after each span, greater than its start.

    Returns:
      A confidence within [0, 1] for each span; without a sample, it is that of the next sample.
    """
    # Means over spans from cumulative sums.
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), log_posteriors.double().cumsum(0)])
    spans = [samples_among(start, end) for start, end in zip(starts, ends, strict=True)]
    first = torch.tensor([span.start for span in spans]).clamp(max=len(log_posteriors) - 1)
    behind = torch.tensor([span.stop for span in spans]).maximum(first + 1)
    return ((sums[behind] - sums[first]) / (behind - first)).exp().clamp(0, 1).tolist()


SHORT_GAP, SHORT_JUMP = 150, 3
"""Frames of a gap, and words left out in a row, up to which the model is assumed to be wrong, not
the text."""
MIN_SPOKEN = 0.5
"""If a smaller share of a text's words is found, text and audio do not seem to belong together."""
LEAD_WORDS = 5
"""Words that a window repeats when it cannot begin at a pause. The window's first phone lacks its
left context, and it takes some phones until the path agrees with that of the previous window."""


@dataclass(frozen=True)
class RecordingAlignment:
    """The alignment of a recording: phones and words with their frames."""

    states: Tensor
    """[T] int32, the state id of every frame; a pause that was cut starts again at the cut."""
    log_likelihoods: Tensor
    """[T] log-likelihood of each frame, unscaled; in gaps, that of silence."""
    log_posteriors: Tensor
    """Log of the posterior of the aligned phone at every sample (see `samples_among`)."""
    num_frames: int = 0
    """Number of 10 ms frames aligned so far; T in the end."""
    phones: list[int] = field(default_factory=list)
    """The ids of the phones in order, including silences and gaps (`GAP`)."""
    phone_frames: list[int] = field(default_factory=list)
    """The frame in which each phone begins; it ends where the next begins."""
    words: list[int] = field(default_factory=list)
    """The aligned words: their positions in the transcript, ascending."""
    word_phones: list[int] = field(default_factory=list)
    """For each aligned word, the position of its first phone in `phones`."""
    beam: float = 0.0
    """The widest search beam that was needed."""

    def frame_phones(self) -> Tensor:
        """Return the id of each frame's phone [T]."""
        starts = torch.tensor([*self.phone_frames, self.num_frames])
        return torch.tensor(self.phones).repeat_interleave(starts.diff())

    def lacks_single_words(self, num_words: int) -> bool:
        """Whether words of the transcript are left out, but only few in a row and in short gaps.

        At least `MIN_SPOKEN` of the words must be found, unless there are only few.

        Args:
          num_words: number of words of the transcript.
        """
        bounds = [*self.phone_frames, self.num_frames]
        longest = gap = 0
        for phone, start, end in zip(self.phones, bounds, bounds[1:], strict=False):
            gap = gap + end - start if phone == GAP else 0
            longest = max(longest, gap)
        following = [*self.words, num_words]
        jumps = [end - begin - 1 for begin, end in zip([-1, *self.words], following, strict=True)]
        enough_words = len(self.words) >= MIN_SPOKEN * num_words or num_words <= SHORT_JUMP
        return enough_words and longest < SHORT_GAP and 0 < max(jumps) <= SHORT_JUMP

    def word_ends(self, silence: int) -> list[int]:
        """Return, for each aligned word, the position in `phones` after its last phone."""
        ends = []
        following = [*self.word_phones[1:], len(self.phones)]
        for _, end in zip(self.word_phones, following, strict=False):
            while self.phones[end - 1] in (silence, GAP):
                end -= 1
            ends.append(end)
        return ends


@dataclass(frozen=True)
class WindowCut:
    """How much of a window's path is accepted, and where the next window begins."""

    end: int
    """The frame after the accepted part."""
    phones: int
    """Number of phones that begin before `end`."""
    words: int
    """Number of words that begin before `end`."""
    resume: int
    """The frame at which the next window begins, at most `end`."""
    lead: int = 0
    """Number of words between `resume` and `end`."""


def find_cut(
    path: UtteranceAlignment, silence: int, margin: int, must_cut: bool
) -> WindowCut | None:
    """Find where to cut a window off from the next one; None if more audio is needed to decide.

    The cut is at the last pause after which the window has at least `margin` speech frames; without
    such a pause, at the last such beginning of a word. If nearly all of the window is silence, the
    cut is within the silence. Gaps are pauses, too: no speech that is aligned.

    Args:
      path: the path through the window.
      silence: id of the silence phone.
      margin: speech frames that must follow the cut.
      must_cut: whether there must be a cut, however short the accepted part.
    """
    size = len(path.states)
    starts = [*path.phone_frames, size]
    first_phones = set(path.word_phones)
    # Pauses and beginnings of words that `margin` speech frames follow, the latest first.
    pauses, words, speech = [], [], 0
    for i in reversed(range(len(path.phones))):
        pause = path.phones[i] in (silence, GAP)
        speech += 0 if pause else starts[i + 1] - starts[i]
        if speech >= margin and starts[i] > 0:
            if pause:
                pauses.append(i)
            elif i in first_phones:
                words.append(i)
    earliest = 1 if must_cut else size // 3
    if pauses and starts[pauses[0]] >= size // 3:
        return _before(path, pauses[0], lead=0)
    if words and starts[words[0]] >= earliest:
        return _before(path, words[0], lead=min(LEAD_WORDS, len(words) - 1))
    if pauses and starts[pauses[0]] >= earliest:
        return _before(path, pauses[0], lead=0)
    if not must_cut:
        return None
    # Forced, and hardly any speech: cut in the middle of the longest pause or later.
    longest = max(range(len(path.phones)), key=lambda i: (starts[i + 1] - starts[i], -i))
    middle = (starts[longest] + starts[longest + 1]) // 2
    frame = max(1, middle, starts[longest + 1] - margin)
    return WindowCut(frame, longest + 1, bisect_left(path.word_phones, longest + 1), frame)


def _before(path: UtteranceAlignment, phone: int, lead: int) -> WindowCut:
    """Return the cut before a phone; the next window repeats the last `lead` words."""
    words = bisect_left(path.word_phones, phone)
    resume = path.word_frames[words - lead] if lead else path.phone_frames[phone]
    return WindowCut(path.phone_frames[phone], phone, words, resume, lead)


def cut_at_end(path: UtteranceAlignment) -> WindowCut:
    """Return the cut after the last frame of the last window."""
    return WindowCut(len(path.states), len(path.phones), len(path.word_phones), len(path.states))


def join(
    joined: RecordingAlignment,
    path: UtteranceAlignment,
    begin: int,
    word: int,
    cut: WindowCut,
    silence: int,
) -> tuple[RecordingAlignment, int]:
    """Extend an alignment by the path through the next window.

    The path takes over at the last repeated word that begins in the same frame in both alignments,
    or else where the window begins.

    Args:
      joined: the alignment before the window; its lists are not changed.
      path: the path through the window.
      begin: the window's first frame.
      word: position of the window's first word in the transcript.
      cut: how much of the path to take.
      silence: id of the silence phone.

    Returns:
      The longer alignment, which shares the tensors of `joined`, and the frame of the joint. From
      this frame on, the caller must fill in the tensors.
    """
    path_words = [word + number - 1 for number in path.words]
    joined_starts = {
        position: joined.phone_frames[phone]
        for position, phone in zip(joined.words, joined.word_phones, strict=True)
        if position >= word
    }
    if joined_starts:
        joined_starts[joined.words[-1] + 1] = joined.num_frames
    joint, first, first_word = begin, 0, 0
    # The joint is the last repeated word that begins in the same frame in both alignments. The
    # window's first word lacks its left context.
    for i in range(1, min(cut.words + 1, len(path_words))):
        frame = begin + path.word_frames[i]
        if joined_starts.get(path_words[i]) == frame:
            joint, first, first_word = frame, path.word_phones[i], i
    num_kept = bisect_left(joined.phone_frames, joint)
    words_kept = bisect_left(joined.word_phones, num_kept)
    last_phone, next_phone = joined.phones[num_kept - 1 : num_kept], path.phones[first : first + 1]
    if last_phone == next_phone and next_phone in ([silence], [GAP]):
        # One pause lies on both sides of the joint: count it once.
        first += 1
    # Phone `first` of the path becomes phone `num_kept` of the whole.
    shift = num_kept - first
    longer = replace(
        joined,
        num_frames=begin + cut.end,
        phones=joined.phones[:num_kept] + path.phones[first : cut.phones],
        phone_frames=joined.phone_frames[:num_kept]
        + [begin + frame for frame in path.phone_frames[first : cut.phones]],
        words=joined.words[:words_kept] + path_words[first_word : cut.words],
        word_phones=joined.word_phones[:words_kept]
        + [shift + phone for phone in path.word_phones[first_word : cut.words]],
        beam=max(joined.beam, path.beam),
    )
    return longer, joint


MAX_STATES = 32_000_000
"""Maximum of frames times states in a search; at some 30 bytes each, this bounds its memory."""
PHONE_RATE = 0.2
"""Highest rate of speech, in phones per frame; it limits the words that a window is first given."""
MOST_PHONES = 4
"""How many times as much text as a recording can hold is looked at; the end of a longer text is
left out, so that a book does not take all memory."""


class NoPathError(ToolkitError):
    """Raised when no path through the words' graph fits the audio."""


@dataclass(frozen=True)
class _WindowStart:
    """The beginning of a window."""

    done: RecordingAlignment
    """The alignment by the windows before it."""
    begin: int = 0
    """The window's first frame."""
    word: int = 0
    """Position of its first word in the transcript; `done` may already have this word."""


@dataclass
class _WindowPath:
    """The best path through a window."""

    aligned: UtteranceAlignment
    """Phones and words, frames counted from the window's beginning."""
    log_likelihoods: Tensor
    """[frames] log-likelihood of each frame's pdf."""


MOST_WORDS = 0.9
"""Share of the words that must be found, or else the next of `LongConfig.gap_levels` is tried."""
ADVANTAGE = 2.0
"""Log-likelihood per frame of speech by which the result of a higher level must exceed the text's
words in reverse order."""


def align_long(
    scores: RecordingScores,
    words: Sequence[str],
    compiler: TranscriptGraphs,
    config: LongConfig,
) -> RecordingAlignment:
    """Align a recording of any length with its transcript, which may lack words or have others.

    If few words are found, either the text is another one, or the model does not fit the speech. In
    the second case, most of them are found if gaps are less likely, and the text fits better than
    its words in reverse order. If only single words are left out, all words are aligned, without
    gaps.

    Args:
      scores: the acoustic model on the recording.
      words: the transcript, at least one word.
      compiler: lexicon and HMMs.
      config: search, windows and gaps.

    Raises:
      NoPathError: no path is within the beam; the message says from which time on.
    """
    first, *higher = config.gap_levels
    alignment = align_at_level(scores, words, compiler, config, first)
    for level in higher:
        if len(alignment.words) >= MOST_WORDS * len(words):
            break
        with suppress(NoPathError):
            retried = align_at_level(scores, words, compiler, config, level)
            if len(retried.words) >= MOST_WORDS * len(words) and _fits_better_than_reversed(
                retried, scores, words, compiler, config
            ):
                alignment = retried
    if alignment.lacks_single_words(len(words)):
        # A word that sounds unlike its model is better placed badly than not at all.
        with suppress(NoPathError):
            return align_at_level(scores, words, compiler, config, NO_GAPS)
    return alignment


def _fits_better_than_reversed(
    alignment: RecordingAlignment,
    scores: RecordingScores,
    words: Sequence[str],
    compiler: TranscriptGraphs,
    config: LongConfig,
) -> bool:
    """Whether an alignment fits better than one of the words in reverse order, by `ADVANTAGE`.

    True without this comparison for texts that read alike in both directions, and for recordings
    that are longer than a window, which hardly have most words of another text.
    """
    backward_words = words[::-1]
    if scores.num_frames > config.window or list(backward_words) == list(words):
        return True
    try:
        backward = align_at_level(scores, backward_words, compiler, config, NO_GAPS)
    except NoPathError:
        return True
    phones = alignment.frame_phones()
    speech = (phones != compiler.senones.topology.silence) & (phones != GAP)
    advantage = alignment.log_likelihoods[speech] - backward.log_likelihoods[speech]
    return float(advantage.mean()) >= ADVANTAGE


def align_at_level(
    scores: RecordingScores,
    words: Sequence[str],
    compiler: TranscriptGraphs,
    config: LongConfig,
    gap_level: float,
) -> RecordingAlignment:
    """Align a recording with its transcript, window by window.

    Between words there may be gaps: audio whose words the transcript lacks, and words that nobody
    spoke. A window of the audio is aligned with the next words, and may end anywhere in them. Its
    path is accepted up to the last pause or gap after which the window has at least `margin` speech
    frames; without such a pause, up to the last such beginning of a word. The next window begins
    there, or some words before. A window without that much speech grows. The last window must reach
    the last word, or jump over it.

    Memory holds a window's frames times its pdfs, and the posteriors [T / 3, phones].

    Args:
      scores: the acoustic model on the recording.
      words: the transcript, at least one word.
      compiler: lexicon and HMMs.
      config: search, windows and gaps.
      gap_level: how far below the best pdf's log-likelihood a frame of a gap is.

    Raises:
      NoPathError: no path is within the beam; the message says from which time on.
    """
    num_frames, silence = scores.num_frames, compiler.senones.topology.silence
    empty = RecordingAlignment(
        states=torch.zeros(num_frames, dtype=torch.int32),
        log_likelihoods=torch.zeros(num_frames),
        log_posteriors=torch.zeros(len(samples_among(0, num_frames))),
    )
    starts, size = [_WindowStart(empty)], config.window
    while True:
        done, begin, word = starts[-1].done, starts[-1].begin, starts[-1].word
        last = num_frames - begin <= size * 5 // 4
        end = num_frames if last else begin + size
        words_left = words[word:]
        window = _align_window(scores, begin, end, words_left, compiler, config, gap_level)
        if window is None:
            # Words may have been aligned too late: retry from the window before.
            if len(starts) == 1 or num_frames - starts[-2].begin > config.longest:
                without_gaps = last and gap_level == NO_GAPS
                needed = compiler.min_frames(words_left) if without_gaps else 0
                raise NoPathError(_reason(begin, end, len(words_left), needed, config))
            starts.pop()
            size = num_frames - starts[-1].begin
            continue
        path, full = window.aligned, size >= config.longest
        # Accept the path up to a cut; without a cut, the window grows.
        cut = cut_at_end(path) if last else find_cut(path, silence, config.margin, full)
        if cut is None:
            size = min(2 * size, config.longest)
            continue
        # Fill in the frames from the joint on.
        longer, joint = join(done, path, begin, word, cut, silence)
        accepted, behind = slice(joint - begin, cut.end), begin + cut.end
        longer.states[joint:behind] = path.states[accepted]
        longer.log_likelihoods[joint:behind] = window.log_likelihoods[accepted]
        samples = samples_among(joint, behind)
        posteriors = scores.log_posteriors(joint, path.pdfs[accepted])
        longer.log_posteriors[samples.start : samples.stop] = posteriors
        if last:
            return longer
        if cut.lead:
            word += path.words[cut.words - cut.lead] - 1
        elif longer.words:
            word = longer.words[-1] + 1
        starts.append(_WindowStart(longer, begin + cut.resume, word))
        size = config.window


def _align_window(
    scores: RecordingScores,
    begin: int,
    end: int,
    words_left: Sequence[str],
    compiler: TranscriptGraphs,
    config: LongConfig,
    gap_level: float,
) -> _WindowPath | None:
    """Align a window with the words that it may hold; align the last window with all words left.

    With gaps, at most `MOST_PHONES` times as much text as the recording can hold is looked at:
    nobody spoke the rest.

    Returns:
      The path; None if there is none.
    """
    last = end == scores.num_frames
    if gap_level < NO_GAPS:
        words_left = _prefix(words_left, MOST_PHONES * PHONE_RATE * scores.num_frames, compiler)
    elif last and compiler.min_frames(words_left) > end - begin:
        return None
    gaps = GapScores(config.gap_entry, config.gap_jump) if gap_level < NO_GAPS else None
    budget = PHONE_RATE * (end - begin)
    # A path that reaches the last word of the prefix may need more words: double the budget.
    while True:
        prefix = words_left if last else _prefix(words_left, budget, compiler)
        graph = compiler.compile(prefix, open_end=not last, gaps=gaps)
        window = scores.window(begin, end, graph.pdfs, gap_level)
        path = _search(window, graph, compiler.senones, config.search)
        if path is None:
            return None
        if gaps is None:  # no word is left out
            path = replace(path, words=list(range(1, len(path.words) + 1)))
        if not path.words or path.words[-1] < len(prefix) or len(prefix) == len(words_left):
            columns = torch.searchsorted(graph.pdfs, path.pdfs.long())
            return _WindowPath(path, window.gather(1, columns[:, None])[:, 0])
        budget *= 2


def _search(
    window: Tensor, graph: TrainingGraph, senones: Senones, config: AlignConfig
) -> UtteranceAlignment | None:
    """Search with ever wider beams, as long as the states fit into memory."""
    max_active = MAX_STATES // len(window)
    for beam in config.beams():
        once = replace(
            config, beam=beam.search, retries=(), max_active=min(beam.max_active, max_active)
        )
        (path,) = force_align([window], [graph], senones, once)
        if path is not None:
            return path
    return None


def _prefix(words: Sequence[str], budget: float, compiler: TranscriptGraphs) -> Sequence[str]:
    """Return the first words, up to and including the one that exceeds `budget` phones."""
    phones = 0
    for count, word in enumerate(words, 1):
        phones += min(map(len, compiler.lang.pronunciation_ids(word)))
        if phones > budget:
            return words[:count]
    return words


def _reason(begin: int, end: int, num_words: int, needed: int, config: LongConfig) -> str:
    """Explain why no path fits a window: too little audio for the words, or no path in the beam."""
    where = f"from {begin / 100:.2f} s on: "
    if needed > end - begin:
        return (
            f"{where}{(end - begin) / 100:.2f} s of audio, but the {num_words} words left need at "
            f"least {needed / 100:.2f} s"
        )
    beam = config.search.beams()[-1].search
    return f"{where}no path within beam {beam:g}; are these the words spoken?"
