"""Training graphs: what a transcript may sound like."""

from collections.abc import Sequence

import k2

from toolkit.fsa.arcs import EPSILON, Arc, fsa_from_arcs

Pronunciations = Sequence[Sequence[int]]


def transcript_graph(
    words: Sequence[int], pronunciations: Sequence[Pronunciations], silence: int
) -> k2.Fsa:
    """Phones to words for one transcript: every pronunciation, silence optional between words.

    Args:
      words: the word ids of the transcript.
      pronunciations: for each of them its pronunciations, in phone ids.
      silence: the id of the silence phone, allowed at both ends and between any two words.

    Returns:
      An acyclic transducer without epsilons on the phone side; a word is written on the first
      phone of its pronunciation. Pronunciations and silence are equally likely.
    """
    arcs: list[Arc] = []
    # Boundary i has two states: `plain` (no silence heard) and `after` (behind a silence).
    plain, after, count = 0, 1, 2
    arcs.append((plain, after, silence, EPSILON, 0.0))
    for word, variants in zip(words, pronunciations, strict=True):
        following, following_after = count, count + 1
        count += 2
        for phones in variants:
            inner = list(range(count, count + len(phones) - 1))
            count += len(inner)
            stations = [*inner, following]
            for source in (plain, after):
                arcs.append((source, stations[0], phones[0], word, 0.0))
            for i, phone in enumerate(phones[1:]):
                arcs.append((stations[i], stations[i + 1], phone, EPSILON, 0.0))
        arcs.append((following, following_after, silence, EPSILON, 0.0))
        plain, after = following, following_after
    return fsa_from_arcs(arcs, [plain, after])


def training_graph(h: k2.Fsa, transcript: k2.Fsa) -> k2.Fsa:
    """H composed with a transcript: reads pdf + 1 per frame, writes words."""
    graph = k2.connect(k2.compose(k2.arc_sort(h), k2.arc_sort(transcript)))
    return k2.arc_sort(graph)
