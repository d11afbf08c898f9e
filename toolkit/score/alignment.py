"""Edit-distance alignment of hypotheses with references, and the score of an utterance."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np

from toolkit.kernels import njit
from toolkit.storage.lines import single_spaced

Side = Literal["ref", "hyp"]
"""The reference or the hypothesis."""
Pair = tuple[str | None, str | None]
"""(reference unit, hypothesis unit); (None, unit) is an insertion, (unit, None) a deletion."""

Weights = Literal["kaldi", "sclite"]
"""The costs that an alignment minimises, and how ties are broken:

- kaldi: the number of errors. As in `compute-wer`, a cell of the table of costs takes the diagonal
  if it is strictly the cheapest move. Otherwise it takes the cheaper of deletion and insertion, and
  on a tie the insertion. (Kaldi writes its alignment files with another function, which breaks ties
  differently; here counts and alignment come from the same path.)
- sclite: 4 for a substitution, 3 for a deletion or an insertion; ties go to the diagonal, then the
  insertion, then the deletion, as in NIST's sclite. More correct words are aligned at the price of
  more errors: the error rate can be higher, but never lower.
"""
WEIGHTS: tuple[Weights, ...] = get_args(Weights)

CORRECT, SUBSTITUTION, DELETION, INSERTION, OPTIONAL_DELETION, OPTIONAL_INSERTION = range(6)
"""The steps of an alignment. The last two, which only `toolkit.score.nist.grammar` makes, are gaps
at words that may be left out: they are correct, and each counts as a word of the reference."""

_COSTS = {"kaldi": (1, 1, False), "sclite": (4, 3, True)}
_FIRST_MARGIN = 3


def align(ref: Sequence[str], hyp: Sequence[str], weights: Weights = "kaldi") -> list[Pair]:
    """Align one hypothesis with its reference.

    Args:
      ref: R units, words or characters.
      hyp: H units.
      weights: see `Weights`.

    Returns:
      The pairs in order. Without None, their first members are `ref` and their second members
      `hyp`.
    """
    (steps,), _ = align_all([ref], [hyp], weights)
    return pairs_of(steps, ref, hyp)


def pairs_of(steps: bytes, ref: Sequence[str], hyp: Sequence[str]) -> list[Pair]:
    """Return the pairs of an alignment from its steps.

    The members of a correct pair are equal. Where a fragment matched, or an optional word was left
    out, both are the reference word; if there is no reference word, both are the hypothesis word.
    """
    refs, hyps = iter(ref), iter(hyp)
    pairs: list[Pair] = []
    for step in steps:
        ref_unit = None if step in (INSERTION, OPTIONAL_INSERTION) else next(refs)
        hyp_unit = None if step in (DELETION, OPTIONAL_DELETION) else next(hyps)
        if step in (SUBSTITUTION, DELETION, INSERTION):
            pairs.append((ref_unit, hyp_unit))
        else:
            same = hyp_unit if ref_unit is None else ref_unit
            pairs.append((same, same))
    return pairs


def align_all(
    refs: Sequence[Sequence[str]], hyps: Sequence[Sequence[str]], weights: Weights = "kaldi"
) -> tuple[list[bytes], np.ndarray]:
    """Align N hypotheses with their references.

    Time and memory of a pair grow with its length times its errors (Ukkonen's band), not with the
    product of the lengths.

    Args:
      refs: N sequences of units; a `str` is a sequence of characters.
      hyps: N sequences of units.
      weights: see `Weights`.

    Returns:
      The steps of each alignment, one byte per step, and [N, 3] int64: its insertions, deletions
      and substitutions.
    """
    if weights not in _COSTS:
        raise ValueError(f"`weights` must be one of {', '.join(WEIGHTS)}, not {weights!r}")
    index: defaultdict[str, int] = defaultdict()
    index.default_factory = index.__len__
    ref_units, ref_ends = _encode(refs, index)
    hyp_units, hyp_ends = _encode(hyps, index)
    steps, ends, counts = _align(ref_units, ref_ends, hyp_units, hyp_ends, *_COSTS[weights])
    everything = steps.tobytes()
    return [everything[a:b] for a, b in pairwise([0, *ends])], counts


def _encode(
    sequences: Sequence[Sequence[str]], index: defaultdict[str, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbered units of all sequences, concatenated, and where each sequence ends."""
    # The kernel gets one array of all sequences: numba has no ragged arrays.
    ends = np.cumsum(np.fromiter(map(len, sequences), np.int64, len(sequences)))
    if sequences and all(isinstance(sequence, str) for sequence in sequences):
        characters = "".join(map(str, sequences)).encode("utf-32-le", "surrogatepass")
        # The arrays are writable: numba would compile the kernel again for read-only arrays.
        return np.frombuffer(bytearray(characters), np.int32), ends
    units = map(index.__getitem__, chain.from_iterable(sequences))
    return np.fromiter(units, np.int32, int(ends[-1]) if len(ends) else 0), ends


@njit(cache=True)
def _align(
    refs: np.ndarray,
    ref_ends: np.ndarray,
    hyps: np.ndarray,
    hyp_ends: np.ndarray,
    substitution: int,
    gap: int,
    diagonal_wins: bool,
) -> tuple:  # pragma: no cover (compiled)
    """Align each pair of slices; see `align_all`."""
    number = len(ref_ends)
    steps = np.empty(len(refs) + len(hyps), np.uint8)
    ends = np.empty(number, np.int64)
    counts = np.zeros((number, 3), np.int64)
    moves = np.empty(1024, np.uint8)
    ref_start = hyp_start = end = 0
    for n in range(number):
        ref, hyp = refs[ref_start : ref_ends[n]], hyps[hyp_start : hyp_ends[n]]
        ref_start, hyp_start = ref_ends[n], hyp_ends[n]
        num_ref, num_hyp, start = len(ref), len(hyp), end
        # Most utterances are recognised without an error: no table is needed.
        same = num_ref == num_hyp
        for i in range(num_ref if same else 0):
            if ref[i] != hyp[i]:
                same = False
                break
        if same:
            end += num_ref
            steps[start:end] = CORRECT
            ends[n] = end
            continue

        # The band is the cells with low <= r - h <= high. A path that leaves it has at least
        # 2 (margin + 1) + |R - H| gaps: if the best path within the band costs less, it is the best
        # of all, and all ties are within the band too.
        shorter = abs(num_ref - num_hyp)
        margin = _FIRST_MARGIN
        while True:
            low = min(0, num_ref - num_hyp) - margin
            width = shorter + 2 * margin + 1
            if len(moves) < (num_hyp + 1) * width:
                moves = np.empty(2 * (num_hyp + 1) * width, np.uint8)
            cost = _fill(ref, hyp, low, width, substitution, gap, diagonal_wins, moves)
            # Otherwise a path outside the band might be as cheap: double the band and try again.
            if cost < gap * (2 * (margin + 1) + shorter) or margin >= max(num_ref, num_hyp):
                break
            margin *= 2

        # Backtrace from the last cell; steps come out in reverse.
        h, r = num_hyp, num_ref
        while h > 0 or r > 0:
            step = moves[h * width + r - h - low]
            if step != DELETION:
                h -= 1
            if step != INSERTION:
                r -= 1
            if step == CORRECT and ref[r] != hyp[h]:
                step = SUBSTITUTION
            if step != CORRECT:
                # The columns are insertions, deletions, substitutions: the codes of the steps,
                # backwards.
                counts[n, INSERTION - step] += 1
            steps[end] = step
            end += 1
        steps[start:end] = steps[start:end][::-1].copy()
        ends[n] = end
    return steps[:end], ends, counts


@njit(cache=True)
def _fill(
    ref: np.ndarray,
    hyp: np.ndarray,
    low: int,
    width: int,
    substitution: int,
    gap: int,
    diagonal_wins: bool,
    moves: np.ndarray,
) -> int:  # pragma: no cover (compiled)
    """Fill the table of moves, a row of `width` cells for each h; return the last cell's cost.

    The cell of hyp[:h] and ref[:r] is at r - h - low in its row. A move is CORRECT for any diagonal
    step, DELETION for a step from the cell before it in the row, INSERTION for one from the row
    above.
    """
    num_ref, num_hyp = len(ref), len(hyp)
    never = gap * (num_ref + num_hyp + 2) * 2
    # Costs of one row of the table. Before h is processed, cost[j] is that of (h - 1, r - 1) with r
    # = h + low + j, and cost[j + 1] that of (h - 1, r).
    cost = np.full(width + 1, never, np.int64)  # one more, right of the last cell
    # Row 0: the first r units of the reference are deleted.
    for r in range(min(num_ref, width - 1 + low) + 1):
        cost[r - low] = r * gap
        moves[r - low] = DELETION
    for h in range(1, num_hyp + 1):
        row = h * width
        word = hyp[h - 1]
        previous = never
        # The cells of the band with 0 <= r <= R.
        for j in range(max(0, -h - low), min(width, num_ref - h - low + 1)):
            r = h + low + j
            if r == 0:
                previous = h * gap
                moves[row + j] = INSERTION
            else:
                # d[h, r] = min(d[h - 1, r] + gap, d[h, r - 1] + gap, d[h - 1, r - 1] + (0 or
                # substitution)).
                insertion, deletion = cost[j + 1] + gap, previous + gap
                diagonal = cost[j] + (substitution if ref[r - 1] != word else 0)
                if (diagonal < insertion and diagonal < deletion) or (
                    diagonal_wins and diagonal <= insertion and diagonal <= deletion
                ):
                    previous = diagonal
                    moves[row + j] = CORRECT
                elif deletion < insertion:
                    previous = deletion
                    moves[row + j] = DELETION
                else:
                    previous = insertion
                    moves[row + j] = INSERTION
            cost[j] = previous
    # The last cell is (H, R): j = R - H - low.
    return cost[num_ref - num_hyp - low]


Unit = Literal["word", "char", "char-with-spaces", "mixed"]
"""What is compared:

- word: words, for the word error rate (WER).
- char: the characters of the words without the spaces between them, for the character error rate
  (CER), as in sclite -c and in Kaldi's recipes for Chinese.
- char-with-spaces: all characters of a text, as in jiwer, and in the benchmark's CER (A25).
- mixed: characters of scripts without spaces between words, such as Chinese or Thai, and words of
  all others, for the mixed error rate (MER) of code-switched speech. For Chinese with English it
  equals sclite -c NOASCII, which splits all words that are not ASCII.

In `char` and `mixed`, a word in angle brackets such as <UNK> is one unit.
"""
UNITS: tuple[Unit, ...] = get_args(Unit)
RATE_NAMES: dict[Unit, str] = {
    "word": "WER",
    "char": "CER",
    "char-with-spaces": "CER",
    "mixed": "MER",
}
"""Name of the error rate in each unit."""
UNIT_NAMES: dict[Unit, str] = {
    "word": "word",
    "char": "character",
    "char-with-spaces": "character",
    "mixed": "token",
}
"""Name of a unit."""
SHORT_NAMES: dict[Unit, str] = {
    "word": "words",
    "char": "chars",
    "char-with-spaces": "chars",
    "mixed": "tokens",
}
"""Names of units at the head of columns."""
_UNSPACED = (
    r"\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao; Tibetan; Burmese; Khmer
    r"\u1980-\u19df\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaa7f"  # New Tai Lue, Tai Tham; Burmese
    r"\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31f0-\u31ff\uff66-\uff9f"  # kana, bopomofo
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
_VARIATION = r"\ufe00-\ufe0f\U000e0100-\U000e01ef"
"""Variation selectors, which belong to the character before them."""
_MIXED = re.compile(f"[{_UNSPACED}][{_VARIATION}]*|[^{_UNSPACED}]+")
"""A unit of `mixed` within a word."""
_IN_BRACKETS = re.compile(r"<[^<>]+>")


@dataclass(frozen=True)
class UtteranceScore:
    """A reference, its hypothesis and their alignment."""

    id: str
    ref_text: str
    """Words separated by single spaces; of alternatives, those on the best path."""
    hyp_text: str
    """Words separated by single spaces; empty if there is no hypothesis."""
    steps: bytes
    """The alignment: one byte per step, see `toolkit.score.alignment`."""
    unit: Unit = "word"
    missing: bool = False
    """Whether no hypothesis was given, so that all units count as deletions."""
    speaker: str | None = None
    """Speaker id, if known."""
    source: str | None = None
    """The sentence that this utterance is a copy of, if the test set has several copies of a
    sentence: their errors are not independent."""

    alternatives: str = ""
    """The reference as it was written, if it has marks such as alternatives, so that `ref_text`
    depends on the hypothesis; else empty."""

    @property
    def block(self) -> str:
        """The unit of resampling by utterance: all copies of a sentence together."""
        return self.source or self.id

    @property
    def ref(self) -> Sequence[str]:
        """Units of the reference."""
        return units_of(self.ref_text, self.unit)

    @property
    def hyp(self) -> Sequence[str]:
        """Units of the hypothesis."""
        return units_of(self.hyp_text, self.unit)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The alignment: (reference unit, hypothesis unit), with None for a gap."""
        return tuple(pairs_of(self.steps, self.ref, self.hyp))

    @property
    def insertions(self) -> int:
        """Number of hypothesis units without a reference unit."""
        return self.steps.count(INSERTION)

    @property
    def deletions(self) -> int:
        """Number of reference units without a hypothesis unit."""
        return self.steps.count(DELETION)

    @property
    def substitutions(self) -> int:
        """Number of reference units aligned with a different unit."""
        return self.steps.count(SUBSTITUTION)

    @property
    def correct(self) -> int:
        """Number of reference units aligned with the same unit, or rightly left out."""
        return len(self.steps) - self.errors

    @property
    def errors(self) -> int:
        """Sum of insertions, deletions and substitutions."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def ref_units(self) -> int:
        """Number of units of the reference."""
        return len(self.steps) - self.insertions


def units_of(text: str, unit: Unit) -> Sequence[str]:
    """Split a text whose words are separated by single spaces into units; see `Unit`."""
    if unit == "char-with-spaces":
        return list(text)
    words = text.split(" ") if text else []
    if unit == "word":
        return words
    split = list if unit == "char" else _MIXED.findall
    return [part for w in words for part in ([w] if _IN_BRACKETS.fullmatch(w) else split(w))]


class AlignedTexts(NamedTuple):
    """N references and hypotheses as they were compared, and their alignments."""

    refs: list[str]
    """Words separated by single spaces; of alternatives, those on the best path."""
    hyps: list[str]
    steps: list[bytes]
    """One byte per step of each alignment."""
    has_alternatives: list[bool]
    """Whether a reference has marks such as alternatives: its words then depend on the
    hypothesis."""


Aligner = Callable[
    [Sequence[str], Sequence[str], Sequence[str], Unit, Weights, Callable[[str], str]],
    AlignedTexts,
]
"""Aligns texts, with the arguments of `align_texts`."""


def align_texts(
    ids: Sequence[str],
    refs: Sequence[str],
    hyps: Sequence[str],
    unit: Unit,
    weights: Weights,
    normalise: Callable[[str], str] = str,
) -> AlignedTexts:
    """Align N hypotheses with their references, word by word as they stand there.

    `toolkit.score.nist.grammar.nist_aligner` also understands alternatives and other marks.

    Args:
      ids: ids of the utterances, for the errors of other aligners.
      refs: texts as they were read.
      hyps: texts as they were read.
      unit: what is compared, see `toolkit.score.wer.score`.
      weights: the costs that alignments minimise, see `Weights`.
      normalise: applied to every text.
    """
    ref_texts = [single_spaced(normalise(text)) for text in refs]
    hyp_texts = [single_spaced(normalise(text)) for text in hyps]
    steps = align_spaced_texts(ref_texts, hyp_texts, unit, weights)
    return AlignedTexts(ref_texts, hyp_texts, steps, [False] * len(refs))


def align_spaced_texts(
    refs: Sequence[str], hyps: Sequence[str], unit: Unit, weights: Weights
) -> list[bytes]:
    """Return the steps of N alignments of texts whose words are separated by single spaces."""
    if unit == "char-with-spaces":  # `align_all` takes a text as a sequence of characters
        return align_all(refs, hyps, weights)[0]
    ref_units, hyp_units = ([units_of(text, unit) for text in texts] for texts in (refs, hyps))
    return align_all(ref_units, hyp_units, weights)[0]
