"""L, the transducer from phones to words, and the linear graphs of transcripts.

A transcript's graph has all pronunciations of its words; silence is optional between them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.fsa.fst import EPSILON, Arc, Fst, fst_from_arcs
from toolkit.lang.probabilities import EntryProbabilities, LexiconProbabilities

LOG_HALF = math.log(0.5)


def lexicon_transducer(
    entries: Sequence[tuple[int, Sequence[int]]],
    silence: int,
    word_disambig: int,
    phone_disambig: int,
    silence_disambig: int,
    silence_score: float = LOG_HALF,
) -> Fst:
    """Return L with optional silence at the start and after each word (make_lexicon_fst).

    Args:
      entries: (word id, phone ids) with the disambiguation symbols already appended.
      silence: the id of the silence phone.
      word_disambig: the word id of `#0`, which L passes through for G's back-off arcs.
      phone_disambig: the phone id of `#0`.
      silence_disambig: a phone-side symbol after each optional silence, so that L∘G is
        determinisable.
      silence_score: log of the probability of a silence, log 0.5 by default; the absence of a
        silence has the same score.
    """
    score = silence_score
    # The fixed states, and the number of states so far.
    start, between_words, before_silence, after_silence, count = 0, 1, 2, 3, 4
    arcs: list[Arc] = [
        (start, between_words, EPSILON, EPSILON, score),
        (start, before_silence, EPSILON, EPSILON, score),
        (before_silence, after_silence, silence, EPSILON, 0.0),
        (after_silence, between_words, silence_disambig, EPSILON, 0.0),
    ]
    for word, phones in entries:
        source = between_words
        for i, phone in enumerate(phones):
            output = word if i == 0 else EPSILON
            if i < len(phones) - 1:
                arcs.append((source, count, phone, output, 0.0))
                source, count = count, count + 1
            else:
                arcs.append((source, between_words, phone, output, score))
                arcs.append((source, before_silence, phone, output, score))
    arcs.append((between_words, between_words, phone_disambig, word_disambig, 0.0))
    return fst_from_arcs(arcs, [between_words])


def weighted_lexicon_transducer(
    entries: Sequence[tuple[int, Sequence[int]]],
    weights: Sequence[EntryProbabilities],
    ends: LexiconProbabilities,
    silence: int,
    word_disambig: int,
    phone_disambig: int,
    silence_disambig: int,
) -> Fst:
    """Return L with probabilities of pronunciations and of silence around them.

    Like Kaldi's make_lexicon_fst_silprob, but `silence_disambig` comes after a silence; in Kaldi it
    takes the place of a silence. The scores of sentences are those of `LexiconProbabilities`.

    Args:
      entries: see `lexicon_transducer`.
      weights: the probabilities of each entry.
      ends: the probabilities of silence at the start and end of an utterance.
      silence, word_disambig, phone_disambig, silence_disambig: see `lexicon_transducer`.
    """
    # Words begin in `after_word` (also at the start) or in `after_silence`.
    start, after_word, before_silence, in_silence, after_silence, count = 0, 1, 2, 3, 4, 5
    arcs: list[Arc] = [
        (start, after_word, EPSILON, EPSILON, math.log1p(-ends.start)),
        (start, before_silence, EPSILON, EPSILON, math.log(ends.start)),
        (before_silence, in_silence, silence, EPSILON, 0.0),
        (in_silence, after_silence, silence_disambig, EPSILON, 0.0),
    ]
    for (word, phones), weight in zip(entries, weights, strict=True):
        score = math.log(weight.pronunciation)
        source_scores = {
            after_word: score + math.log(weight.no_silence_before),
            after_silence: score + math.log(weight.silence_before),
        }
        word_end_scores = {
            after_word: math.log1p(-weight.silence_after),
            before_silence: math.log(weight.silence_after),
        }
        for i, phone in enumerate(phones):
            output = EPSILON if i else word
            inner_scores, count = {count: 0.0}, count + 1
            target_scores = word_end_scores if i == len(phones) - 1 else inner_scores
            arcs += [
                (source, target, phone, output, source_score + target_score)
                for source, source_score in source_scores.items()
                for target, target_score in target_scores.items()
            ]
            source_scores = inner_scores
    for state in (after_word, after_silence):
        arcs.append((state, state, phone_disambig, word_disambig, 0.0))
    finals = {
        after_word: math.log(ends.no_silence_at_end),
        after_silence: math.log(ends.silence_at_end),
    }
    return fst_from_arcs(arcs, finals)


class LexiconSizeError(ToolkitError):
    """Raised for a lexicon that is too large for transcript graphs."""


Pronunciations = Sequence[Sequence[int]]

# Bounds on ids, so that a word and a phone fit into one label of 31 bits.
MAX_PHONES, MAX_WORDS = 2048, 2**20
GAP = MAX_PHONES - 1
"""The id that stands for a gap in output labels (see `GapScores`); no phone has it."""
GAP_LABEL = GAP
"""The output label of a gap."""
LONGEST_COUNTED_JUMP = 16
"""Most words for which jumps in a gap are charged, a power of two: a jump over a hundred words must
not leave the beam."""


@dataclass(frozen=True)
class GapScores:
    """Scores of gaps, in which audio and transcript do not match.

    A gap between two words is audio whose words the transcript lacks: it takes frames and writes
    `GAP`. From a gap, the path may also jump over words that nobody spoke. Like the garbage models
    of keyword spotters and torchaudio's `<star>` token, gaps keep the words on either side in
    place.
    """

    entry: float
    """Score of entering a gap, at most 0."""
    jump: float
    """Score of each of the first `LONGEST_COUNTED_JUMP` words that are jumped over in a gap, at
    most 0; further words are free."""


def pack_label(phone: int, word: int = 0) -> int:
    """Pack a phone, and at a word's first phone the word, into the output label of an arc.

    Raises:
      LexiconSizeError: an id that is too high.
    """
    if not (phone < GAP and word < MAX_WORDS):
        raise LexiconSizeError(
            f"the lexicon contains the phone id {phone} and the word id {word}, but alignment "
            f"supports fewer than {GAP:,} phones and {MAX_WORDS:,} words: make the lexicon "
            "smaller (`lang.words`, `lang.vocabulary_size`)"
        )
    return word * MAX_PHONES + phone


def unpack_label(label: int) -> tuple[int, int]:
    """Return the phone and the word (0: none) of a label from `pack_label`."""
    return label % MAX_PHONES, label // MAX_PHONES


def transcript_graph(
    words: Sequence[int],
    pronunciations: Sequence[Pronunciations],
    silence: int,
    gaps: GapScores | None = None,
) -> Fst:
    """Return a transcript's graph: all pronunciations, optional silence between words.

    Args:
      words: the word ids of the transcript.
      pronunciations: the pronunciations of each word, in phone ids.
      silence: the id of the silence phone, allowed at both ends and between any two words.
      gaps: allow gaps where silence is allowed, with these scores.

    Returns:
      An acyclic transducer without input epsilons; each arc's output label says which phone and
      word begin there (`pack_label`). Pronunciations and silence are equally likely.
    """
    arcs: list[Arc] = []
    # Each word boundary has two states: `after_word` (no silence read) and `after_silence`.
    after_word, after_silence, count = 0, 1, 2
    arcs.append((after_word, after_silence, silence, pack_label(silence), 0.0))
    boundaries = [(after_word, after_silence)]
    for word, variants in zip(words, pronunciations, strict=True):
        next_after_word, next_after_silence = count, count + 1
        count += 2
        for phones in variants:
            inner_states = list(range(count, count + len(phones) - 1))
            count += len(inner_states)
            phone_states = [*inner_states, next_after_word]
            for source in (after_word, after_silence):
                arcs.append((source, phone_states[0], phones[0], pack_label(phones[0], word), 0.0))
            for i, phone in enumerate(phones[1:]):
                arcs.append((phone_states[i], phone_states[i + 1], phone, pack_label(phone), 0.0))
        arcs.append((next_after_word, next_after_silence, silence, pack_label(silence), 0.0))
        after_word, after_silence = next_after_word, next_after_silence
        boundaries.append((after_word, after_silence))
    finals = [after_word, after_silence]
    if gaps:
        arcs, last_gaps = _with_gaps(arcs, boundaries, count, silence, gaps)
        finals += last_gaps
    return fst_from_arcs(arcs, finals)


def _with_gaps(
    arcs: list[Arc],
    boundaries: Sequence[tuple[int, int]],
    count: int,
    silence: int,
    gaps: GapScores,
) -> tuple[list[Arc], tuple[int, int]]:
    """Add gaps to a transcript's graph.

    In its context, a gap is a silence. What marks it is the label `GAP`. Each word boundary gets
    two states for gaps. In the first, jumps are charged for each word. A jump that is charged for
    `LONGEST_COUNTED_JUMP` words leads to the second, where further jumps are free. So jumping over
    more words never scores higher than jumping over fewer.

    Args:
      arcs: the graph's arcs.
      boundaries: the states before and after the silence of each word boundary.
      count: the number of states.
      silence: the id of the silence phone.
      gaps: the scores.

    Returns:
      All arcs, and the states after a gap at the transcript's end.
    """
    after_silences = {after: i for i, (_, after) in enumerate(boundaries)}
    size = len(boundaries)
    # What may follow a silence may follow a gap, too.
    gap_arcs: list[Arc] = [
        (first_gap + after_silences[source], *arc)
        for source, *arc in arcs
        if source in after_silences
        for first_gap in (count, count + size)
    ]
    for i, (before_silence, after_silence) in enumerate(boundaries):
        gap, far_gap = count + i, count + size + i
        gap_arcs += [
            (source, gap, silence, GAP_LABEL, gaps.entry)
            for source in (before_silence, after_silence)
        ]
        gap_arcs += [
            (source, after_silence, silence, pack_label(silence), 0.0) for source in (gap, far_gap)
        ]
        # A sum of few powers of two jumps over any number of words.
        words = 1
        while i + words < size:
            if words <= LONGEST_COUNTED_JUMP:
                target = far_gap if words == LONGEST_COUNTED_JUMP else gap
                gap_arcs.append((gap, target + words, silence, GAP_LABEL, gaps.jump * words))
            gap_arcs.append((far_gap, far_gap + words, silence, GAP_LABEL, 0.0))
            words *= 2
    return arcs + gap_arcs, (count + size - 1, count + 2 * size - 1)


def weighted_transcript_graph(
    words: Sequence[int],
    pronunciations: Sequence[Pronunciations],
    weights: Sequence[Sequence[EntryProbabilities]],
    ends: LexiconProbabilities,
    silence: int,
    gaps: GapScores | None = None,
) -> Fst:
    """Return a transcript's graph with pronunciation and silence probabilities.

    Args:
      words, pronunciations, silence, gaps: see `transcript_graph`.
      weights: for each word, the probabilities of each of its pronunciations.
      ends: the probabilities of silence at the start and end.

    Returns:
      The graph of `transcript_graph`, with the scores of `LexiconProbabilities`.
    """
    arcs: list[Arc] = []
    # Each boundary has three states: without a silence, before one, and after one. At the start,
    # one state stands for the first two. No arc leads there that could hold the score of having no
    # silence, so `after_word` is a state with a score to add to the arcs that leave it.
    after_word, after_silence, count = (0, math.log1p(-ends.start)), 1, 2
    arcs.append((0, after_silence, silence, pack_label(silence), math.log(ends.start)))
    boundaries = [(0, after_silence)]
    for word, variants, word_weights in zip(words, pronunciations, weights, strict=True):
        next_after_word, before_silence, next_after_silence = count, count + 1, count + 2
        count += 3
        for phones, weight in zip(variants, word_weights, strict=True):
            score = math.log(weight.pronunciation)
            source, boundary_score = after_word
            source_scores = {
                source: boundary_score + score + math.log(weight.no_silence_before),
                after_silence: score + math.log(weight.silence_before),
            }
            word_end_scores = {
                next_after_word: math.log1p(-weight.silence_after),
                before_silence: math.log(weight.silence_after),
            }
            for i, phone in enumerate(phones):
                label = pack_label(phone, 0 if i else word)
                inner_scores, count = {count: 0.0}, count + 1
                target_scores = word_end_scores if i == len(phones) - 1 else inner_scores
                arcs += [
                    (source, target, phone, label, source_score + target_score)
                    for source, source_score in source_scores.items()
                    for target, target_score in target_scores.items()
                ]
                source_scores = inner_scores
        arcs.append((before_silence, next_after_silence, silence, pack_label(silence), 0.0))
        boundaries.append((before_silence, next_after_silence))
        after_word, after_silence = (next_after_word, 0.0), next_after_silence
    state, boundary_score = after_word
    finals = {
        state: boundary_score + math.log(ends.no_silence_at_end),
        after_silence: math.log(ends.silence_at_end),
    }
    if gaps:
        arcs, last_gaps = _with_gaps(arcs, boundaries, count, silence, gaps)
        finals |= dict.fromkeys(last_gaps, math.log(ends.silence_at_end))
    return fst_from_arcs(arcs, finals)
