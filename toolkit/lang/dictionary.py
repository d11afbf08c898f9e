"""Pronunciation dictionaries of users: files of any form."""

from dataclasses import dataclass
from pathlib import Path

from toolkit.lang.lexicon import (
    Lexicon,
    LexiconError,
    Pronunciation,
    read_entries,
)
from toolkit.lang.policy import TextPolicy
from toolkit.lang.probabilities import (
    LEXICON_FILE,
    EntryProbabilities,
    LexiconProbabilities,
    read_ends,
)

LEAST = 0.01
"""Replaces probabilities and factors of 0, as the Montreal Forced Aligner does."""
EXTRA_QUESTIONS = "extra_questions.txt"
"""Of a dict or lang folder; the language stage copies it to lang/."""
EVEN = 0.5
"""Probability of silence where a dictionary does not give it, as in Kaldi."""


@dataclass(frozen=True)
class Dictionary:
    """Words with their pronunciations, phones without positions."""

    lexicon: Lexicon
    """Words as a text policy spells them."""
    probabilities: LexiconProbabilities | None = None
    """Of the pronunciations and of silence around them; None: the dictionary has none."""
    notes: tuple[str, ...] = ()
    """What was changed, and which probabilities are used."""
    extra_questions: Path | None = None
    """Kaldi's sets of phones for trees to ask for."""


def read_dictionary(
    path: Path, strip_stress: bool = False, policy: TextPolicy | None = None
) -> Dictionary:
    """Read a dictionary.

    Args:
      path: a file, see `toolkit.lang.lexicon.read_entries`; `silprob.txt` beside
        lexiconp_silprob.txt is read too. `toolkit.kaldi.dict_lang.read_lexicon` reads folders.
      strip_stress: see `read_entries`.
      policy: how words are spelled; by default in upper case.

    Raises:
      LexiconError: names file and line.
    """
    lexicon = Lexicon()
    entries: dict[tuple[str, Pronunciation], EntryProbabilities] = {}
    lines = with_numbers = 0
    for number, word, numbers, phones in read_entries(path, strip_stress, policy):
        lexicon.add(word, phones)
        lines += 1
        with_numbers += bool(numbers)
        found = _probabilities(f"{path}:{number}", numbers)
        known = entries.get((word, phones))
        if known is not None:  # spellings or phones that are written alike here
            share = min(1.0, known.pronunciation + found.pronunciation)
            found = EntryProbabilities(share, known.silence_after, *_factors(known))
        entries[word, phones] = found
    if not with_numbers:
        return Dictionary(lexicon)
    ends = (EVEN, 1.0, 1.0, EVEN)
    silence = path.with_name("silprob.txt")
    if path.name == LEXICON_FILE and silence.is_file():
        ends = read_ends(silence)
    note = f"probabilities of {with_numbers} of {lines} pronunciations are used"
    return Dictionary(lexicon, LexiconProbabilities(entries, *ends), (note,))


def _factors(entry: EntryProbabilities) -> tuple[float, float]:
    return entry.silence_before, entry.no_silence_before


def _probabilities(where: str, numbers: tuple[float, ...]) -> EntryProbabilities:
    """Return the probabilities of a line with up to four columns of them."""
    share, silence, *factors = [*numbers, *(1.0, EVEN, 1.0, 1.0)[len(numbers) :]]
    if max(share, silence) > 1:
        raise LexiconError(f"{where}: {max(share, silence):g} is not a probability (0 to 1)")
    silence = min(max(silence, LEAST), 1 - LEAST)
    before, without = (max(factor, LEAST) for factor in factors)
    return EntryProbabilities(max(share, LEAST), silence, before, without)
