"""Linear graphs of transcripts: all pronunciations of the words, silence optional."""

from collections.abc import Sequence

from toolkit.fsa.fst import Arc, Fst, fst_from_arcs

Pronunciations = Sequence[Sequence[int]]

# Bound on phone ids, so that a word and a phone fit into one label.
MAX_PHONES = 2048


def pack_label(phone: int, word: int = 0) -> int:
    """The output label of an arc that enters a phone, and with its first phone a word."""
    return word * MAX_PHONES + phone


def unpack_label(label: int) -> tuple[int, int]:
    """The phone and the word (0: none) of a label that `pack_label` made."""
    return label % MAX_PHONES, label // MAX_PHONES


def transcript_graph(
    words: Sequence[int], pronunciations: Sequence[Pronunciations], silence: int
) -> Fst:
    """Phones to words of one transcript: every pronunciation, silence optional between words.

    Args:
      words: the word ids of the transcript.
      pronunciations: for each of them its pronunciations, in phone ids.
      silence: the id of the silence phone, allowed at both ends and between any two words.

    Returns:
      An acyclic transducer without input epsilons; each arc's output label says which phone and
      word begin there (`pack_label`). Pronunciations and silence are equally likely.
    """
    arcs: list[Arc] = []
    # Boundary i has two states: `plain` (no silence read) and `after` (after a silence).
    plain, after, count = 0, 1, 2
    arcs.append((plain, after, silence, pack_label(silence), 0.0))
    for word, variants in zip(words, pronunciations, strict=True):
        following, following_after = count, count + 1
        count += 2
        for phones in variants:
            inner = list(range(count, count + len(phones) - 1))
            count += len(inner)
            stations = [*inner, following]
            for source in (plain, after):
                arcs.append((source, stations[0], phones[0], pack_label(phones[0], word), 0.0))
            for i, phone in enumerate(phones[1:]):
                arcs.append((stations[i], stations[i + 1], phone, pack_label(phone), 0.0))
        arcs.append((following, following_after, silence, pack_label(silence), 0.0))
        plain, after = following, following_after
    return fst_from_arcs(arcs, [plain, after])
