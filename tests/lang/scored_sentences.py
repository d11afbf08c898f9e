"""Scores of sentences under a lexicon's probabilities, by their definition."""

import itertools
import math

from hypothesis import strategies as st

from toolkit.lang.probabilities import EntryProbabilities, LexiconProbabilities

SHARES = st.integers(1, 99).map(lambda n: n / 100)
FACTORS = st.integers(1, 300).map(lambda n: n / 100)


@st.composite
def probabilities(draw, entries) -> LexiconProbabilities:
    """Random probabilities of some of the entries of a lexicon."""
    subset = draw(st.lists(st.sampled_from(entries), unique=True))
    numbers = st.builds(EntryProbabilities, SHARES, SHARES, FACTORS, FACTORS)
    return LexiconProbabilities(
        {entry: draw(numbers) for entry in subset},
        draw(SHARES),
        draw(FACTORS),
        draw(FACTORS),
        draw(SHARES),
    )


def sentence_score(entries, silences, probabilities) -> float:
    """The log of the product of all factors; `silences` are before each entry and at the end."""
    start = probabilities.start
    product = start if silences[0] else 1 - start
    for entry, silent_before, silent_after in zip(entries, silences, silences[1:], strict=False):
        p = probabilities.of(entry)
        product *= p.pronunciation
        product *= p.silence_before if silent_before else p.no_silence_before
        product *= p.silence_after if silent_after else 1 - p.silence_after
    at_end = probabilities.silence_at_end, probabilities.no_silence_at_end
    return math.log(product * at_end[0 if silences[-1] else 1])


def ways_to_say(lexicon, words):
    """(entries, silences) of every way to say the words."""
    variants = [[(word, phones) for phones in lexicon[word]] for word in words]
    for entries in itertools.product(*variants):
        for silences in itertools.product((False, True), repeat=len(words) + 1):
            yield entries, silences
