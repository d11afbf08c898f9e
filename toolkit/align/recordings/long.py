"""Alignment of recordings of any length, window by window in bounded memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from toolkit.align.graphs import TrainingGraphCompiler
from toolkit.align.recordings.confidence import RecordingScores, samples_among
from toolkit.align.recordings.joining import RecordingAlignment, cut_at_end, find_cut, join
from toolkit.errors import ToolkitError
from toolkit.fsa.alignment import AlignConfig, TrainingGraph, UtteranceAlignment, force_align
from toolkit.hmm.senones import Senones

MAX_STATES = 16_000_000
"""Frames times states that a search may hold: at some 30 bytes each, this bounds its memory."""
PHONE_RATE = 0.2
"""Highest rate of speech, in phones per frame: bounds the words a window is first given."""


class NoPathError(ToolkitError):
    """No path through the graph of the words fits the audio."""


@dataclass(frozen=True)
class LongConfig:
    """How a long recording is cut into windows; frames are 10 ms."""

    search: AlignConfig = AlignConfig()
    """The search within a window."""
    window: int = 6000
    """Frames of a window; recordings up to a quarter longer are aligned in one piece."""
    longest: int = 18000
    """Frames to which a window may grow when it holds too little speech for a reliable cut."""
    margin: int = 400
    """Frames of speech that must follow in a window for the path before them to be accepted."""

    def __post_init__(self) -> None:
        if not 0 < 2 * self.margin < self.window <= self.longest:
            raise ValueError("need 0 < 2 * margin < window <= longest")


@dataclass(frozen=True)
class _WindowStart:
    """Where a window begins, and the alignment up to there."""

    done: RecordingAlignment
    """The alignment by the windows before it."""
    begin: int = 0
    """Its first frame."""
    lead: int = 0
    """The words at its beginning that `done` has already."""


@dataclass
class _WindowPath:
    """The path through a window."""

    aligned: UtteranceAlignment
    """Phones and words, frames counted from the window's beginning."""
    log_likelihoods: Tensor
    """[frames] of each frame's pdf."""


def align_long(
    scores: RecordingScores,
    words: Sequence[str],
    compiler: TrainingGraphCompiler,
    config: LongConfig,
) -> RecordingAlignment:
    """Align a recording with its transcript, however long it is.

    A window of the audio is aligned with the next words, its end open. Its path is accepted up to
    the last pause, or else the last beginning of a word, that `margin` frames of speech follow in
    the window; there, or some words before, the next window begins. A window without that much
    speech grows. The last window must reach the last word.

    Memory: a window's frames times its pdfs, and the posteriors [T, phones].

    Args:
      scores: the acoustic model on the recording, of one frame at least.
      words: the transcript, at least one word.
      compiler: lexicon and HMMs.
      config: search and windows.

    Raises:
      NoPathError: says from when on no path leads through the rest, and the likely cause.
    """
    num_frames, silence = scores.num_frames, compiler.senones.topology.silence
    empty = RecordingAlignment(
        states=torch.zeros(num_frames, dtype=torch.int32),
        log_likelihoods=torch.zeros(num_frames),
        log_posteriors=torch.zeros(len(samples_among(0, num_frames))),
    )
    starts, size = [_WindowStart(empty)], config.window
    while True:
        start = starts[-1]
        begin, done = start.begin, start.done
        last = num_frames - begin <= size * 5 // 4
        end = num_frames if last else begin + size
        rest = words[len(done.word_phones) - start.lead :]
        window = _align_window(scores, begin, end, rest, compiler, config)
        if window is None:
            # Words may have been aligned too late: retry from the window before.
            if len(starts) == 1 or num_frames - starts[-2].begin > config.longest:
                raise NoPathError(_reason(begin, end, rest, last, compiler, config))
            starts.pop()
            size = num_frames - starts[-1].begin
            continue
        path, full = window.aligned, size >= config.longest
        cut = cut_at_end(path) if last else find_cut(path, silence, config.margin, full)
        if cut is None:
            size = min(2 * size, config.longest)
            continue
        longer, joint = join(done, path, begin, start.lead, cut, silence)
        taken, behind = slice(joint - begin, cut.end), begin + cut.end
        longer.states[joint:behind] = path.states[taken]
        longer.log_likelihoods[joint:behind] = window.log_likelihoods[taken]
        samples = samples_among(joint, behind)
        posteriors = scores.log_posteriors(joint, path.pdfs[taken])
        longer.log_posteriors[samples.start : samples.stop] = posteriors
        if last:
            return longer
        starts.append(_WindowStart(longer, begin + cut.resume, cut.lead))
        size = config.window


def _align_window(
    scores: RecordingScores,
    begin: int,
    end: int,
    rest: Sequence[str],
    compiler: TrainingGraphCompiler,
    config: LongConfig,
) -> _WindowPath | None:
    """Align all remaining words in the last window, else as many as the audio may hold."""
    last = end == scores.num_frames
    if last and compiler.min_frames(rest) > end - begin:
        return None
    budget = PHONE_RATE * (end - begin)
    while True:
        prefix = rest if last else _prefix(rest, budget, compiler)
        graph = compiler.compile(prefix, open_end=not last)
        window = scores.window(begin, end, graph.pdfs)
        path = _search(window, graph, compiler.senones, config.search)
        if path is None:
            return None
        if len(path.word_phones) < len(prefix) or len(prefix) == len(rest):
            columns = torch.searchsorted(graph.pdfs, path.pdfs.long())
            return _WindowPath(path, window.gather(1, columns[:, None])[:, 0])
        budget *= 2


def _search(
    window: Tensor, graph: TrainingGraph, senones: Senones, config: AlignConfig
) -> UtteranceAlignment | None:
    """Search with ever wider beams, but never with more states than fit into memory."""
    most = MAX_STATES // len(window)
    for beam in config.beams():
        once = replace(config, beam=beam.search, retries=(), max_active=min(beam.max_active, most))
        path = force_align(window, graph, senones, once)
        if path is not None:
            return path
    return None


def _prefix(rest: Sequence[str], budget: float, compiler: TrainingGraphCompiler) -> Sequence[str]:
    """The first words, up to the one that exceeds `budget` phones."""
    phones = 0
    for count, word in enumerate(rest, 1):
        phones += min(map(len, compiler.lang.pronunciation_ids(word)))
        if phones > budget:
            return rest[:count]
    return rest


def _reason(
    begin: int,
    end: int,
    rest: Sequence[str],
    last: bool,
    compiler: TrainingGraphCompiler,
    config: LongConfig,
) -> str:
    needed = compiler.min_frames(rest)
    where = f"from {begin / 100:.2f} s on: " if begin else ""
    if last and needed > end - begin:
        return (
            f"{where}{(end - begin) / 100:.2f} s of audio, the {len(rest)} words"
            f"{' left' if begin else ''} need at least {needed / 100:.2f} s"
        )
    beam = config.search.beams()[-1].search
    return f"{where}no path within beam {beam:g}; are these the words spoken?"
