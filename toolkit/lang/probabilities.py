"""Estimates, reads and writes probabilities of pronunciations and of silence around them."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.lang.lexicon import Lexicon, LexiconError, Pronunciation
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.lines import read_lines
from toolkit.storage.reading import quoted

LEXICON_FILE = "lexiconp_silprob.txt"
SILENCE_FILE = "silprob.txt"
_FILES = (LEXICON_FILE, SILENCE_FILE)
Entry = tuple[str, Pronunciation]
_ENDS = ("<s>", "</s>_s", "</s>_n", "overall")
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class EntryProbabilities:
    """Probabilities of one pronunciation of a word."""

    pronunciation: float
    """Its probability relative to the word's most probable pronunciation: above 0, at most 1."""
    silence_after: float
    """Probability that silence follows it, between 0 and 1."""
    silence_before: float = 1.0
    """Factor, above 0, for silence before it: observed count over the count expected from the words
    before it."""
    no_silence_before: float = 1.0
    """The same factor for no silence before it."""


@dataclass(frozen=True)
class LexiconProbabilities:
    """Probabilities of pronunciations, and of silence at utterance edges.

    The score of a sentence is the sum of the logarithms of these:

    - `start` if there is silence at the start, else 1 - `start`;
    - for each word, its pronunciation's probability, the factor for silence or no silence before
      the word, and `silence_after` or 1 - `silence_after`;
    - the factor for silence or no silence at the end.
    """

    entries: Mapping[Entry, EntryProbabilities]
    """By word and phones."""
    start: float
    """Probability that an utterance begins with silence, between 0 and 1."""
    silence_at_end: float
    """Factor, above 0, for silence before the end."""
    no_silence_at_end: float
    """The same factor for no silence before the end."""
    overall: float
    """Share of words and ends with silence before them, for pronunciations without an entry."""

    def of(self, entry: Entry) -> EntryProbabilities:
        """Return the probabilities of a word's pronunciation."""
        return self.entries.get(entry) or EntryProbabilities(1.0, self.overall)

    def renamed(self, rename: Callable[[Entry], Entry | None]) -> "LexiconProbabilities":
        """Return the probabilities with renamed entries.

        Args:
          rename: returns an entry's new name, or None to drop it; the first of several entries with
            the same new name stays.
        """
        entries: dict[Entry, EntryProbabilities] = {}
        for entry, probabilities in self.entries.items():
            name = rename(entry)
            if name is not None:
                entries.setdefault(name, probabilities)
        return replace(self, entries=entries)

    def save(self, folder: Path) -> None:
        """Write lexiconp_silprob.txt and silprob.txt in Kaldi's formats."""
        with open_atomically(Path(folder) / LEXICON_FILE) as file:
            for (word, phones), p in sorted(self.entries.items()):
                numbers = (
                    p.pronunciation,
                    p.silence_after,
                    p.silence_before,
                    p.no_silence_before,
                )
                file.write(f"{word} {' '.join(map(repr, numbers))} {' '.join(phones)}\n")
        numbers = (self.start, self.silence_at_end, self.no_silence_at_end, self.overall)
        lines = (f"{name} {number!r}\n" for name, number in zip(_ENDS, numbers, strict=True))
        write_atomically(Path(folder) / SILENCE_FILE, "".join(lines))

    @classmethod
    def load(cls, folder: Path) -> "LexiconProbabilities | None":
        """Read the files of `save` or of Kaldi's dict_dir_add_pronprobs.sh; None without files.

        Raises:
          LexiconError: one of the two files is missing, or a line has a fault; the message names
            file and line.
        """
        paths = [Path(folder) / name for name in _FILES]
        missing = [path for path in paths if not path.exists()]
        if len(missing) == len(paths):
            return None
        if missing:
            raise LexiconError(
                f"{missing[0]} is missing: {LEXICON_FILE} and {SILENCE_FILE} belong together."
                " Restore the missing file, or remove the other one"
            )
        return cls(dict(_entries(paths[0])), *read_ends(paths[1]))


def read_ends(path: Path) -> tuple[float, float, float, float]:
    """Read silprob.txt: the last four fields of `LexiconProbabilities` in order.

    Raises:
      LexiconError: a line is missing or has a fault; the message names file and line.
    """
    ends = dict(_ends(path))
    absent = [name for name in _ENDS if name not in ends]
    if absent:
        raise LexiconError(f"{path}: no line begins with {absent[0]!r}")
    start, silence, no_silence, overall = (ends[name] for name in _ENDS)
    return start, silence, no_silence, overall


def _entries(path: Path) -> Iterator[tuple[Entry, EntryProbabilities]]:
    """Yield the entries of lexiconp_silprob.txt."""
    for where, fields in _lines(path):
        if len(fields) < 6:
            raise LexiconError(
                f"{where}: the line is not `word probability silence factor factor phone ...`"
            )
        numbers = (
            _number(where, fields[1], at_most_one),
            _number(where, fields[2], below_one),
            _number(where, fields[3], positive),
            _number(where, fields[4], positive),
        )
        yield (fields[0], tuple(fields[5:])), EntryProbabilities(*numbers)


def _ends(path: Path) -> Iterator[tuple[str, float]]:
    """Yield the lines of silprob.txt."""
    for where, fields in _lines(path):
        if len(fields) != 2 or fields[0] not in _ENDS:
            raise LexiconError(f"{where}: the line is not one of {', '.join(_ENDS)} with a number")
        allowed = positive if fields[0].startswith("</s>") else below_one
        yield fields[0], _number(where, fields[1], allowed)


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (file and line number, fields) of each non-blank line."""
    for number, line in read_lines(path, LexiconError):
        if line.strip():
            yield f"{path}:{number}", line.split()


def at_most_one(value: float) -> str:
    """Return the message text for an invalid probability; "" if it is valid."""
    return "" if 0 < value <= 1 else "a probability (above 0, up to 1)"


def below_one(value: float) -> str:
    """Return the message text if a probability is invalid or 1; "" if it is valid."""
    return "" if 0 < value < 1 else "a probability between 0 and 1"


def positive(value: float) -> str:
    """Return the message text for an invalid factor; "" if it is valid."""
    return "" if 0 < value < float("inf") else "a factor above 0"


def _number(where: str, text: str, fault: Callable[[float], str]) -> float:
    """Parse a number; raise an error if `fault` returns a text for it."""
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    if fault(value):
        raise LexiconError(f"{where}: {quoted(text)} is not {fault(value)}")
    return value


def remove_probabilities(folder: Path) -> None:
    """Remove the files that `LexiconProbabilities.save` wrote for an earlier lexicon."""
    for name in _FILES:
        (Path(folder) / name).unlink(missing_ok=True)


START_ENTRY: Entry = ("<s>", ())
END_ENTRY: Entry = ("</s>", ())
SMOOTHING = 2.0
"""Pseudo-counts by which estimates are smoothed towards the average share of silence (Kaldi: 2)."""


class NothingCountedError(ToolkitError):
    """Raised when no alignments exist from which to estimate probabilities."""


@dataclass
class PronunciationCounts:
    """Counts of consecutive pronunciations, with and without silence between them."""

    pairs: Counter[tuple[Entry, bool, Entry]] = field(default_factory=Counter)
    """By (entry before, whether there is silence between, entry after); `START_ENTRY` and
    `END_ENTRY` are the edges of utterances."""

    def add(self, spoken: Sequence[Entry], silences: Sequence[bool]) -> None:
        """Count the pronunciations of an utterance.

        Args:
          spoken: its N words, with the pronunciations that were spoken.
          silences: N + 1 values, whether there is silence before each word and at the end.
        """
        chain = [START_ENTRY, *spoken, END_ENTRY]
        self.pairs.update(zip(chain[:-1], silences, chain[1:], strict=True))


def estimate_probabilities(counts: PronunciationCounts, lexicon: Lexicon) -> LexiconProbabilities:
    """Estimate the probabilities of pronunciations and of silence around them.

    These are the estimates of Chen et al. 2015 (Pronunciation and silence probability modeling for
    ASR) with the smoothing of Kaldi's dict_dir_add_pronprobs.sh: every pronunciation counts once
    more than it occurs. Probabilities of silence are rounded to two decimals and are at least 0.01,
    so that graphs have few different scores.

    Raises:
      NothingCountedError: there are no counts.
    """
    if not counts.pairs:
        raise NothingCountedError(
            "no utterance is aligned, so pronunciations cannot be counted: see the reasons in the "
            "alignments' table.tsv"
        )
    spoken: Counter[Entry] = Counter()
    silences_after: Counter[tuple[Entry, bool]] = Counter()
    silences_before: Counter[tuple[bool, Entry]] = Counter()
    for (entry_before, silent, entry_after), count in counts.pairs.items():
        spoken[entry_before] += count
        silences_after[entry_before, silent] += count
        silences_before[silent, entry_after] += count
    # P(s): share of all word boundaries, ends included, at which there is silence.
    share = sum(n for (silent, _), n in silences_before.items() if silent) / sum(
        silences_before.values()
    )
    overall = _probability(share)

    def silence_after(entry: Entry) -> float:
        """Return the probability of silence after an entry."""
        # P(s_r | w) of Chen et al.: silence after w, smoothed towards the overall share.
        silent, total = silences_after[entry, True], spoken[entry]
        return _probability((silent + SMOOTHING * overall) / (total + SMOOTHING))

    follows = {entry: silence_after(entry) for entry in (START_ENTRY, *lexicon.pairs())}
    # Expected counts of silence before an entry, given only the words that precede it.
    expected: dict[tuple[bool, Entry], float] = defaultdict(float)
    for (entry_before, _, entry_after), count in counts.pairs.items():
        expected[True, entry_after] += count * follows[entry_before]
        expected[False, entry_after] += count * (1 - follows[entry_before])

    def factor(silent: bool, entry: Entry) -> float:
        """Return the factor for (no) silence before an entry."""
        # F(s_l | w) of Chen et al.: observed over expected count, smoothed towards 1.
        observed, predicted = silences_before[silent, entry], expected[silent, entry]
        return max(0.01, round((observed + SMOOTHING) / (predicted + SMOOTHING), 2))

    entries = {}
    for word, variants in lexicon.items():
        # Relative to the word's most frequent pronunciation, which gets 1, as in Kaldi.
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
        entries, follows[START_ENTRY], factor(True, END_ENTRY), factor(False, END_ENTRY), overall
    )


def _probability(share: float) -> float:
    """Round a probability to two decimals, between 0.01 and 0.99."""
    return min(0.99, max(0.01, round(share, 2)))
