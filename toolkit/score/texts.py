"""Alignment of many texts: normalised, with alternatives resolved where they have them."""

from collections.abc import Callable, Sequence

from toolkit.score.align import (
    DELETION,
    INSERTION,
    OPTIONAL_DELETION,
    OPTIONAL_INSERTION,
    Weights,
    align_all,
)
from toolkit.score.alternatives import NO_WORD, Grammar, GrammarError, Items, mapped, parse
from toolkit.score.utterance import Unit, units_of
from toolkit.score.word_network import Aligned, Network, align_networks, is_fragment
from toolkit.storage.words import single_spaced


def align_texts(
    ids: Sequence[str],
    refs: Sequence[str],
    hyps: Sequence[str],
    unit: Unit,
    weights: Weights,
    normalise: Callable[[str], str] = str,
    grammar: Grammar | None = None,
) -> tuple[list[str], list[str], list[bytes]]:
    """Align N hypotheses with their references.

    Alternatives are chosen by words, also where characters are then compared, and so are words that
    may be left out: see `_by_characters`.

    Args:
      ids: of the utterances, for errors.
      refs: texts as they were read.
      hyps: texts as they were read.
      unit: what is compared, see `toolkit.score.wer.score`.
      weights: weights of the alignment.
      normalise: applied to every text; with a grammar to the words between its marks.
      grammar: how marks in the texts are understood; None takes words as they are.

    Returns:
      References, hypotheses and steps of their alignments. Words are separated by single spaces,
      and of alternatives those on the best path are left.

    Raises:
      GrammarError: a text does not follow the grammar; the message names the utterance.
    """
    ref_texts, hyp_texts = [""] * len(refs), [""] * len(hyps)
    chosen: dict[int, bytes] = {}
    for n, both in enumerate(zip(refs, hyps, strict=True)):
        if grammar is None or not any(map(grammar.marks, both)):
            ref_texts[n], hyp_texts[n] = (single_spaced(normalise(text)) for text in both)
            continue
        try:
            sides = [mapped(parse(text), normalise, grammar) for text in both]
            if all(_one_path(items, grammar) for items in sides):
                ref_texts[n], hyp_texts[n] = (" ".join(map(str, items)) for items in sides)
                continue  # the alignment of plain words takes far less memory
            first, second = map(Network.of, sides)
            best = align_networks(first, second, grammar, weights)
        except GrammarError as error:
            raise GrammarError(f"{ids[n]}: {error}") from error
        if unit == "word":
            ref_texts[n], hyp_texts[n] = " ".join(best.ref), " ".join(best.hyp)
            chosen[n] = best.steps
        else:
            ref_texts[n], hyp_texts[n], chosen[n] = _by_characters(best, grammar, weights)
    rest = [n for n in range(len(refs)) if n not in chosen]
    said, heard = ([_sides(texts[n], unit) for n in rest] for texts in (ref_texts, hyp_texts))
    aligned = dict(zip(rest, align_all(said, heard, weights)[0], strict=True)) | chosen
    return ref_texts, hyp_texts, [aligned[n] for n in range(len(refs))]


def _by_characters(best: Aligned, grammar: Grammar, weights: Weights) -> tuple[str, str, bytes]:
    """Align the characters of the best path; return the two texts and the steps.

    Parentheses of words that may be left out are no characters. Where such a word was left out, all
    its characters are, and the space beside it.
    """
    steps = best.steps
    left = [s == OPTIONAL_DELETION for s in steps if s not in (INSERTION, OPTIONAL_INSERTION)]
    ref, said, ref_gaps = _without([grammar.spoken(word) for word in best.ref], left)
    left = [s == OPTIONAL_INSERTION for s in steps if s not in (DELETION, OPTIONAL_DELETION)]
    hyp, heard, hyp_gaps = _without([grammar.spoken(word) for word in best.hyp], left)
    (aligned,), _ = align_all([said], [heard], weights)
    found = bytearray()
    at_ref = at_hyp = 0
    for step in (*aligned, None):
        found += bytes([OPTIONAL_DELETION]) * ref_gaps.pop(at_ref, 0)
        found += bytes([OPTIONAL_INSERTION]) * hyp_gaps.pop(at_hyp, 0)
        if step is not None:
            found.append(step)
            at_ref += step != INSERTION
            at_hyp += step != DELETION
    return ref, hyp, bytes(found)


def _without(words: Sequence[str], left_out: Sequence[bool]) -> tuple[str, str, dict[int, int]]:
    """Return a text, the text without some words, and by place in this the characters less."""
    rest = " ".join(word for word, out in zip(words, left_out, strict=True) if not out)
    gaps: dict[int, int] = {}
    at = 0
    for word, out in zip(words, left_out, strict=True):
        if out:
            place = min(at, len(rest))
            gaps[place] = gaps.get(place, 0) + len(word) + 1
        else:
            at += len(word) + 1
    if gaps and not rest:
        gaps[0] -= 1  # one space fewer than words
    return " ".join(words), rest, gaps


def _one_path(items: Items, grammar: Grammar) -> bool:
    """Whether a transcript is nothing but words that must be there as they are."""
    return all(
        isinstance(item, str)
        and item != NO_WORD
        and not grammar.is_optional(item)
        and not (grammar.fragments and is_fragment(item, grammar))
        for item in items
    )


def _sides(text: str, unit: Unit) -> Sequence[str]:
    """Return the units as `align_all` takes them: a text is a sequence of characters."""
    return text if unit == "char" else units_of(text, unit)
