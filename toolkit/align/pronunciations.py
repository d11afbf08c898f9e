"""Reads pronunciations and silences from the alignments of a corpus."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from toolkit.align.store import AlignmentStore
from toolkit.errors import ToolkitError
from toolkit.hmm.topology import Topology
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Pronunciation
from toolkit.lang.probabilities import Entry, PronunciationCounts
from toolkit.lang.tables import SILENCE, UNKNOWN


class OtherLexiconError(ToolkitError):
    """Raised when an alignment does not match its transcript under the given lexicon."""


def count_pronunciations(
    alignments: Path, transcripts: Mapping[str, Sequence[str]], lang: Lang, topology: Topology
) -> PronunciationCounts:
    """Count the pronunciations and silences in alignments (Kaldi's get_prons.sh).

    Args:
      alignments: the folder of an `AlignmentStore`; utterances without an alignment do not count.
      transcripts: words by utterance.
      lang: the lexicon that the utterances were aligned with.
      topology: the topology of the aligning system.

    Raises:
      OtherLexiconError: an alignment does not fit its transcript; the message names the utterance.
    """
    counts, store = PronunciationCounts(), AlignmentStore(alignments)
    for utterance in store.ids:
        if utterance not in transcripts:
            continue
        phones = aligned_phones(store.load(utterance), topology)
        matched = match_words(phones, transcripts[utterance], lang)
        if matched is None:
            raise OtherLexiconError(
                f"{utterance}: the phones of the alignment in {alignments} differ from the "
                "lexicon's phones for the transcript. Align it again with this lexicon"
            )
        counts.add(*matched)
    return counts


def aligned_phones(states: Tensor, topology: Topology) -> Pronunciation:
    """Return the phones of an alignment in order: state ids [T] to symbols."""
    phone_of = topology.phone_of_state_id
    starts = states[topology.phone_starts(states)] if len(states) else states
    return tuple(topology.phones[phone_of[state] - 1] for state in starts.tolist())


def match_words(
    phones: Pronunciation, words: Sequence[str], lang: Lang
) -> tuple[list[Entry], list[bool]] | None:
    """Find which pronunciations of a transcript's words make up a sequence of phones.

    Args:
      phones: the phones of the whole utterance, including silences.
      words: the transcript; a word that the lexicon lacks becomes `<UNK>`.
      lang: the lexicon.

    Returns:
      The (word, phones) of each word, and whether silence precedes each word and the end. Of
      several solutions, the first in the order of the lexicon is returned; None if there is none.
    """
    reached_positions: dict[int, tuple[int, bool, Entry] | None] = {0: None}
    steps = []
    # Forward: from each position in the phones that the words so far reach, go on by an optional
    # silence and each pronunciation of the next word.
    for word in words:
        listed_word = word if word in lang.lexicon else UNKNOWN
        next_positions: dict[int, tuple[int, bool, Entry] | None] = {}
        for position in reached_positions:
            for silent in _choices(phones, position):
                begin = position + silent
                for variant in lang.lexicon[listed_word]:
                    end = begin + len(variant)
                    if phones[begin:end] == variant:
                        next_positions.setdefault(end, (position, silent, (listed_word, variant)))
        steps.append(next_positions)
        reached_positions = next_positions
    # The phones end with the last word, or with one silence after it.
    last = len(phones)
    if last in reached_positions:
        position, silent_end = last, False
    elif last - 1 in reached_positions and phones[-1] == SILENCE:
        position, silent_end = last - 1, True
    else:
        return None
    # Backward: follow the first path into each position.
    spoken, silences = [], [silent_end]
    for step in reversed(steps):
        position, silent, entry = step[position]
        spoken.append(entry)
        silences.append(silent)
    return spoken[::-1], silences[::-1]


def _choices(phones: Pronunciation, position: int) -> tuple[bool, ...]:
    """Return the options at a position: without silence and, if one stands there, with it."""
    return (False, True) if phones[position : position + 1] == (SILENCE,) else (False,)
