"""Counts of pronunciations and of the silence between them, and what is estimated from them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolkit.errors import ToolkitError
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.probabilities import Entry, EntryProbabilities, LexiconProbabilities

START: Entry = ("<s>", ())
END: Entry = ("</s>", ())
SMOOTHING = 2.0
"""Occurrences that are added to those of silence, with its average share (Kaldi: 2)."""


class NothingCountedError(ToolkitError):
    """Probabilities cannot be estimated: nothing is aligned."""


@dataclass
class PronunciationCounts:
    """How often one pronunciation followed another, with silence between them and without."""

    pairs: Counter[tuple[Entry, bool, Entry]] = field(default_factory=Counter)
    """By what precedes, whether silence is between, what follows; `START` and `END` are the edges
    of utterances."""

    def add(self, spoken: Sequence[Entry], silences: Sequence[bool]) -> None:
        """Add an utterance.

        Args:
          spoken: its N words in the pronunciations that were spoken.
          silences: N + 1, whether there is silence before each and at the end.
        """
        chain = [START, *spoken, END]
        self.pairs.update(zip(chain[:-1], silences, chain[1:], strict=True))


def estimate_probabilities(counts: PronunciationCounts, lexicon: Lexicon) -> LexiconProbabilities:
    """Estimate the probabilities of a lexicon's pronunciations and of silence around them.

    The estimates of Chen et al. 2015 (Pronunciation and silence probability modeling for ASR) with
    the smoothing of Kaldi's dict_dir_add_pronprobs.sh: every pronunciation counts once more than
    it occurs; those of silence are rounded to two decimals and are at least 0.01, so that graphs
    have few different scores.

    Raises:
      NothingCountedError: there are no counts.
    """
    if not counts.pairs:
        raise NothingCountedError(
            "no utterance is aligned, so that no pronunciation can be counted: see the alignments'"
            " table.tsv"
        )
    spoken: Counter[Entry] = Counter()
    after: Counter[tuple[Entry, bool]] = Counter()
    before: Counter[tuple[bool, Entry]] = Counter()
    for (left, silent, right), count in counts.pairs.items():
        spoken[left] += count
        after[left, silent] += count
        before[silent, right] += count
    share = sum(n for (silent, _), n in before.items() if silent) / sum(before.values())
    overall = _probability(share)

    def silence_after(entry: Entry) -> float:
        silent, all_of_it = after[entry, True], spoken[entry]
        return _probability((silent + SMOOTHING * overall) / (all_of_it + SMOOTHING))

    follows = {entry: silence_after(entry) for entry in (START, *lexicon.pairs())}
    expected: dict[tuple[bool, Entry], float] = defaultdict(float)
    for (left, _, right), count in counts.pairs.items():
        expected[True, right] += count * follows[left]
        expected[False, right] += count * (1 - follows[left])

    def factor(silent: bool, entry: Entry) -> float:
        found, foreseen = before[silent, entry], expected[silent, entry]
        return max(0.01, round((found + SMOOTHING) / (foreseen + SMOOTHING), 2))

    entries = {}
    for word, variants in lexicon.items():
        most = max(1 + spoken[word, phones] for phones in variants)
        for phones in variants:
            entry = (word, phones)
            entries[entry] = EntryProbabilities(
                float(f"{(1 + spoken[entry]) / most:.6g}"),
                follows[entry],
                factor(True, entry),
                factor(False, entry),
            )
    return LexiconProbabilities(
        entries, follows[START], factor(True, END), factor(False, END), overall
    )


def _probability(share: float) -> float:
    return min(0.99, max(0.01, round(share, 2)))
