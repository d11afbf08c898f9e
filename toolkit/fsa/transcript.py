"""Transcript graphs: what a transcript may sound like, phone by phone."""

from collections.abc import Sequence

import k2

from toolkit.fsa.arcs import Arc, fsa_from_arcs

Pronunciations = Sequence[Sequence[int]]

# No language has as many phones, so that word and phone fit into one label together.
PHONE_LIMIT = 2048


def begins(phone: int, word: int = 0) -> int:
    """The output label of an arc that enters a phone, and with its first phone a word."""
    return word * PHONE_LIMIT + phone


def phone_and_word(label: int) -> tuple[int, int]:
    """The phone and the word (0: none) of a label that `begins` made."""
    return label % PHONE_LIMIT, label // PHONE_LIMIT


def transcript_graph(
    words: Sequence[int], pronunciations: Sequence[Pronunciations], silence: int
) -> k2.Fsa:
    """Phones to words for one transcript: every pronunciation, silence optional between words.

    Args:
      words: the word ids of the transcript.
      pronunciations: for each of them its pronunciations, in phone ids.
      silence: the id of the silence phone, allowed at both ends and between any two words.

    Returns:
      An acyclic transducer without epsilons that writes on every arc what begins there: see
      `begins`. Pronunciations and silence are equally likely.
    """
    arcs: list[Arc] = []
    # Boundary i has two states: `plain` (no silence heard) and `after` (behind a silence).
    plain, after, count = 0, 1, 2
    arcs.append((plain, after, silence, begins(silence), 0.0))
    for word, variants in zip(words, pronunciations, strict=True):
        following, following_after = count, count + 1
        count += 2
        for phones in variants:
            inner = list(range(count, count + len(phones) - 1))
            count += len(inner)
            stations = [*inner, following]
            for source in (plain, after):
                arcs.append((source, stations[0], phones[0], begins(phones[0], word), 0.0))
            for i, phone in enumerate(phones[1:]):
                arcs.append((stations[i], stations[i + 1], phone, begins(phone), 0.0))
        arcs.append((following, following_after, silence, begins(silence), 0.0))
        plain, after = following, following_after
    return fsa_from_arcs(arcs, [plain, after])
