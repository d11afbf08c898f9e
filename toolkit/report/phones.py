"""The report's errors of the GMMs in phones: which sounds are taken for which, lost or added."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from toolkit.lang.lexicon import Lexicon, without_positions
from toolkit.lang.tables import UNKNOWN
from toolkit.report.decodes import Decode, confusions
from toolkit.report.errors import SplitErrors, counts_card
from toolkit.report.folder import RunFolder
from toolkit.report.page import Cell, Column, Row, Table
from toolkit.score.alignment import Pair, align_all, pairs_of

LEXICON = "lang/lexicon.txt"
MOST_CONFUSIONS = 15
MOST_PHONES = 12
FEWEST = 10
"""Occurrences that a phone must have for a rate of its own."""


def phone_overview(run: RunFolder, errors: SplitErrors) -> str:
    """Return the phone errors on a split of the GMMs with the fewest word errors.

    The phones of a word are its first pronunciation in the lexicon, in reference and hypothesis
    alike: they show what word errors sound like, not what was said. Nothing where no GMMs were
    decoded, or the run has no lexicon.
    """
    systems = [d for d in errors.decodes if (_system(run, d) / "gmm.safetensors").exists()]
    if not systems or not (run.root / LEXICON).exists():
        return ""
    shown = min(systems, key=lambda decode: decode.score.errors)
    pairs = phone_pairs(shown, Lexicon.load(run.root / LEXICON))
    found = confusions(pairs, MOST_CONFUSIONS)
    cards = [
        counts_card("Phones: substitutions", found.substitutions),
        counts_card("Phones: deletions", found.deletions),
        counts_card("Phones: insertions", found.insertions),
        _rates(pairs),
    ]
    if not any(cards):
        return ""
    title = f"{escape(errors.split.name)}, phones of {escape(shown.name)}"
    return (
        f'<h3 class="over">{title}</h3><p class="note">By the first pronunciation of each word in '
        f'{LEXICON}.</p><div class="cards">{"".join(cards)}</div>'
    )


def phone_pairs(decode: Decode, lexicon: Lexicon) -> list[list[Pair]]:
    """Align the phones of references and hypotheses, utterance by utterance.

    Words that the lexicon lacks have the phones of the unknown word.
    """

    def phones(words: Sequence[str | None]) -> list[str]:
        found: list[str] = []
        for word in filter(None, words):
            known = lexicon.get(word) or lexicon.get(UNKNOWN) or [()]
            found += without_positions(known[0])
        return found

    scored = decode.score.utterances
    said = [phones([ref for ref, _ in utterance.pairs]) for utterance in scored]
    heard = [phones([hyp for _, hyp in utterance.pairs]) for utterance in scored]
    steps, _ = align_all(said, heard)
    return [pairs_of(*each) for each in zip(steps, said, heard, strict=True)]


def _system(run: RunFolder, decode: Decode) -> Path:
    return run.root / decode.name.partition("/")[0]


def _rates(pairs: Sequence[Sequence[Pair]]) -> str:
    """Return a table of the phones with the highest error rates, insertions not counted."""
    said: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for ref, hyp in (pair for utterance in pairs for pair in utterance):
        if ref is not None:
            said[ref] += 1
            wrong[ref] += ref != hyp
    rated = [
        (100 * wrong[phone] / count, phone) for phone, count in said.items() if count >= FEWEST
    ]
    rated = sorted((one for one in rated if one[0]), key=lambda one: (-one[0], one[1]))
    rows = [
        Row([Cell(phone), Cell(f"{rate:.1f}"), Cell(f"{said[phone]:,}")])
        for rate, phone in rated[:MOST_PHONES]
    ]
    columns = [Column("phone"), Column("wrong %"), Column("said")]
    note = f"Of phones that were said {FEWEST} times or more."
    return Table("Phones", columns, rows, note).html() if rows else ""
