"""L: the transducer from phones to words."""

import math
from collections.abc import Sequence

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
    """L with optional silence at the start and after every word, as Kaldi's make_lexicon_fst.

    Args:
      entries: (word id, phone ids) with the disambiguation symbols already appended.
      silence: the id of the silence phone.
      word_disambig: the word id of `#0`, which L passes through for G's back-off arcs.
      phone_disambig: the phone id of `#0`.
      silence_disambig: a phone-side symbol after each optional silence, so that L∘G is
        determinisable.
      silence_score: log of the probability of a silence, log 0.5 by default; no
        silence costs the same.
    """
    score = silence_score
    # `inside` is between words, `pause` before a silence, `paused` behind it.
    start, inside, pause, paused, count = 0, 1, 2, 3, 4
    arcs: list[Arc] = [
        (start, inside, EPSILON, EPSILON, score),
        (start, pause, EPSILON, EPSILON, score),
        (pause, paused, silence, EPSILON, 0.0),
        (paused, inside, silence_disambig, EPSILON, 0.0),
    ]
    for word, phones in entries:
        source = inside
        for i, phone in enumerate(phones):
            written = word if i == 0 else EPSILON
            if i < len(phones) - 1:
                arcs.append((source, count, phone, written, 0.0))
                source, count = count, count + 1
            else:
                arcs.append((source, inside, phone, written, score))
                arcs.append((source, pause, phone, written, score))
    arcs.append((inside, inside, phone_disambig, word_disambig, 0.0))
    return fst_from_arcs(arcs, [inside])


def weighted_lexicon_transducer(
    entries: Sequence[tuple[int, Sequence[int]]],
    weights: Sequence[EntryProbabilities],
    ends: LexiconProbabilities,
    silence: int,
    word_disambig: int,
    phone_disambig: int,
    silence_disambig: int,
) -> Fst:
    """L with probabilities of pronunciations and of silence around them.

    As Kaldi's make_lexicon_fst_silprob, with the symbol of `silence_disambig` after silences, where
    Kaldi has it in their place. The scores of sentences are those of `LexiconProbabilities`.

    Args:
      entries: see `lexicon_transducer`.
      weights: of each entry.
      ends: of silence at the start and end of an utterance.
      silence, word_disambig, phone_disambig, silence_disambig: see `lexicon_transducer`.
    """
    # Words begin in `spoken`, behind a word or the start, or in `paused`, behind a silence.
    start, spoken, pause, silent, paused, count = 0, 1, 2, 3, 4, 5
    arcs: list[Arc] = [
        (start, spoken, EPSILON, EPSILON, math.log1p(-ends.start)),
        (start, pause, EPSILON, EPSILON, math.log(ends.start)),
        (pause, silent, silence, EPSILON, 0.0),
        (silent, paused, silence_disambig, EPSILON, 0.0),
    ]
    for (word, phones), weight in zip(entries, weights, strict=True):
        score = math.log(weight.pronunciation)
        before = {
            spoken: score + math.log(weight.no_silence_before),
            paused: score + math.log(weight.silence_before),
        }
        after = {
            spoken: math.log1p(-weight.silence_after),
            pause: math.log(weight.silence_after),
        }
        for i, phone in enumerate(phones):
            written = EPSILON if i else word
            inside, count = {count: 0.0}, count + 1
            targets = after if i == len(phones) - 1 else inside
            arcs += [
                (source, target, phone, written, entered + left)
                for source, entered in before.items()
                for target, left in targets.items()
            ]
            before = inside
    for state in (spoken, paused):
        arcs.append((state, state, phone_disambig, word_disambig, 0.0))
    finals = {spoken: math.log(ends.no_silence_at_end), paused: math.log(ends.silence_at_end)}
    return fst_from_arcs(arcs, finals)
