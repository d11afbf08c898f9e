"""Paths through windows of a recording, cut where they are reliable and joined together."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace

from torch import Tensor

from toolkit.fsa.alignment import UtteranceAlignment

LEAD_WORDS = 5
"""Words that a window repeats when it cannot begin at a pause: its first phone lacks the left
context, and the path needs some phones to agree with that of the whole recording."""


@dataclass(frozen=True)
class RecordingAlignment:
    """The alignment of a recording: phones and words with their frames."""

    states: Tensor
    """[T] int32, the state id of every frame; a pause that was cut begins anew at the cut."""
    log_likelihoods: Tensor
    """[T] of each frame, unscaled."""
    log_posteriors: Tensor
    """Log of the posterior of the aligned phone at every sample (see `samples_among`)."""
    num_frames: int = 0
    """Frames aligned so far, in the end T, in steps of 10 ms."""
    phones: list[int] = field(default_factory=list)
    """The phones in order, silences among them."""
    phone_frames: list[int] = field(default_factory=list)
    """The frame in which each phone begins; it ends where the next begins."""
    word_phones: list[int] = field(default_factory=list)
    """For each word of the transcript the position of its first phone in `phones`."""
    beam: float = 0.0
    """The widest search beam that was needed."""

    def word_ends(self, silence: int) -> list[int]:
        """For each word the position in `phones` behind its last phone."""
        following = [*self.word_phones[1:], len(self.phones)]
        return [phone - (self.phones[phone - 1] == silence) for phone in following]


@dataclass(frozen=True)
class Cut:
    """How much of a window's path is accepted, and where the next window begins."""

    end: int
    """The frame after the accepted part."""
    phones: int
    """Phones that begin before it."""
    words: int
    """Words that begin before it."""
    resume: int
    """The frame at which the next window begins, at most `end`."""
    lead: int = 0
    """The words between `resume` and `end`."""


def find_cut(path: UtteranceAlignment, silence: int, margin: int, forced: bool) -> Cut | None:
    """Find where to cut a window off from the next one; None: more audio is needed to decide.

    The cut is at the last pause that is followed by `margin` frames of speech in the window, or
    else at the last such beginning of a word, or, where nearly all of the window is silence, within
    that silence.

    Args:
      path: the path through the window.
      silence: the silence phone.
      margin: frames of speech that must follow the cut.
      forced: whether there must be a cut, however short the accepted part.
    """
    size = len(path.states)
    starts = [*path.phone_frames, size]
    first_phones = set(path.word_phones)
    pauses, words, speech = [], [], 0
    for i in reversed(range(len(path.phones))):
        speech += (starts[i + 1] - starts[i]) * (path.phones[i] != silence)
        if speech >= margin and starts[i] > 0:
            if path.phones[i] == silence:
                pauses.append(i)
            elif i in first_phones:
                words.append(i)
    least = 1 if forced else size // 3
    if pauses and starts[pauses[0]] >= size // 3:
        return _before(path, pauses[0], lead=0)
    if words and starts[words[0]] >= least:
        return _before(path, words[0], lead=min(LEAD_WORDS, len(words) - 1))
    if pauses and starts[pauses[0]] >= least:
        return _before(path, pauses[0], lead=0)
    if not forced:
        return None
    pause = max(range(len(path.phones)), key=lambda i: (starts[i + 1] - starts[i], -i))
    middle = (starts[pause] + starts[pause + 1]) // 2
    frame = max(1, middle, starts[pause + 1] - margin)
    return Cut(frame, pause + 1, bisect_left(path.word_phones, pause + 1), frame)


def _before(path: UtteranceAlignment, phone: int, lead: int) -> Cut:
    words = bisect_left(path.word_phones, phone)
    resume = path.word_frames[words - lead] if lead else path.phone_frames[phone]
    return Cut(path.phone_frames[phone], phone, words, resume, lead)


def cut_at_end(path: UtteranceAlignment) -> Cut:
    """The end of the last window."""
    return Cut(len(path.states), len(path.phones), len(path.word_phones), len(path.states))


def join(
    done: RecordingAlignment,
    path: UtteranceAlignment,
    begin: int,
    lead: int,
    cut: Cut,
    silence: int,
) -> tuple[RecordingAlignment, int]:
    """Continue an alignment by the path through the next window.

    The path takes over at the last word of the lead that begins in the same frame in both, or else
    where the window begins.

    Args:
      done: what came before; its lists are not changed.
      path: through the window.
      begin: the window's first frame.
      lead: the last words of `done` that the window repeats.
      cut: how much of the path to take.
      silence: the silence phone.

    Returns:
      The longer alignment, whose tensors are those of `done`, and the frame of the joint, from
      which on the caller must fill them.
    """
    repeated = done.word_phones[len(done.word_phones) - lead :]
    before = [*(done.phone_frames[phone] for phone in repeated), done.num_frames]
    joint, first, word = begin, 0, 0
    for i in range(1, min(lead, cut.words, len(path.word_phones) - 1) + 1):
        if begin + path.word_frames[i] == before[i]:
            joint, first, word = before[i], path.word_phones[i], i
    kept = bisect_left(done.phone_frames, joint)
    words = done.word_phones[: bisect_left(done.word_phones, kept)]
    if kept and done.phones[kept - 1] == silence == path.phones[first]:
        # One pause on both sides of the joint.
        first += 1
    shift = kept - first
    longer = replace(
        done,
        num_frames=begin + cut.end,
        phones=done.phones[:kept] + path.phones[first : cut.phones],
        phone_frames=done.phone_frames[:kept]
        + [begin + frame for frame in path.phone_frames[first : cut.phones]],
        word_phones=words + [shift + phone for phone in path.word_phones[word : cut.words]],
        beam=max(done.beam, path.beam),
    )
    return longer, joint
