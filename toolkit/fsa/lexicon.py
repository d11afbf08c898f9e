"""L: the transducer from phones to words."""

import math
from collections.abc import Sequence

from toolkit.fsa.fst import EPSILON, Arc, Fst, fst_from_arcs

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
