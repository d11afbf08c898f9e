"""Errors that only the writing of words makes: case, punctuation, normal form, white space."""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from toolkit.score.normalise import basic
from toolkit.score.utterance import UtteranceScore
from toolkit.storage.words import has_other_space

_NOTABLE = 0.3
"""Share of substitutions above which case and punctuation are remarked upon."""
_LONGEST = 2000
"""Characters: longer words are left alone, since many marks on a letter take quadratic time."""


def likeness_remarks(utterances: Sequence[UtteranceScore]) -> Iterator[str]:
    """Yield notes about errors between texts that look alike; nothing is changed by them."""
    wrong = [utterance for utterance in utterances if utterance.errors]
    spaced = [u for u in wrong if has_other_space(u.ref_text) or has_other_space(u.hyp_text)]
    if spaced:
        yield (
            f"{len(spaced)} utterances with errors have white space inside words, first "
            f"{spaced[0].id}: words end at ASCII's white space alone, as in Kaldi and sclite, not "
            "at no-break spaces and the like (--normalise basic splits there)"
        )
    composed = [u for u in wrong if _composed(u.ref_text) == _composed(u.hyp_text)]
    characters = bool(wrong) and wrong[0].unit == "char"
    pairs = [] if characters else [pair for u in wrong for pair in _substitutions(u)]
    alike = sum(_composed(ref) == _composed(hyp) for ref, hyp in pairs)
    advice = "bring both texts into one form, such as NFC (--normalise basic does)"
    if characters and composed:
        yield (
            f"{len(composed)} utterances have errors in Unicode's normal form alone (composed or "
            f"decomposed letters), first {composed[0].id}: {advice}"
        )
    if alike:
        yield (
            f"{alike} of {len(pairs)} substitutions differ only in Unicode's normal form (composed "
            f"or decomposed letters): {advice}"
        )
    alike = sum(_bare(ref) == _bare(hyp) and _helped(ref, hyp) for ref, hyp in pairs)
    if alike > _NOTABLE * len(pairs):
        yield (
            f"{alike} of {len(pairs)} substitutions differ only in case or punctuation: normalise "
            "both texts in the same way (--normalise basic)"
        )


def _substitutions(utterance: UtteranceScore) -> Iterator[tuple[str, str]]:
    if utterance.substitutions:
        for ref, hyp in utterance.pairs:
            if ref is not None and hyp is not None and ref != hyp:
                yield ref, hyp


def _composed(text: str) -> str:
    if text.isascii():
        return text
    words = text.split(" ")
    return " ".join(w if len(w) > _LONGEST else unicodedata.normalize("NFC", w) for w in words)


def _helped(ref: str, hyp: str) -> bool:
    """Whether the rules that are advised change one of two words; if not, they were applied."""
    return len(ref) > _LONGEST or len(hyp) > _LONGEST or (basic(ref), basic(hyp)) != (ref, hyp)


@lru_cache(maxsize=1 << 16)
def _bare(word: str) -> str:
    return "".join(c for c in word.casefold() if c.isalnum())
