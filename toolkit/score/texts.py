"""Alignment of many texts: normalised, with alternatives resolved where they have them."""

from collections.abc import Callable, Sequence

from toolkit.score.align import Weights, align_all
from toolkit.score.alternatives import NO_WORD, Grammar, GrammarError, Items, mapped, parse
from toolkit.score.utterance import Unit, units_of
from toolkit.score.word_network import Network, align_networks, is_fragment
from toolkit.storage.whitespace import single_spaced


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

    Alternatives are chosen by words, also where characters are then compared.

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
    ref_texts, hyp_texts = (
        [single_spaced(normalise(text)) for text in side] for side in (refs, hyps)
    )
    chosen: dict[int, bytes] = {}
    for n, (ref, hyp) in enumerate(zip(refs, hyps, strict=True)):
        if grammar is not None and (grammar.marks(ref) or grammar.marks(hyp)):
            try:
                sides = [mapped(parse(text), normalise, grammar) for text in (ref, hyp)]
                if all(_one_path(items, grammar) for items in sides):
                    ref_texts[n], hyp_texts[n] = (" ".join(map(str, items)) for items in sides)
                    continue  # the alignment of plain words takes far less memory
                first, second = map(Network.of, sides)
                best = align_networks(first, second, grammar, weights)
            except GrammarError as error:
                raise GrammarError(f"{ids[n]}: {error}") from error
            ref_texts[n], hyp_texts[n] = " ".join(best.ref), " ".join(best.hyp)
            if unit == "word":
                chosen[n] = best.steps
    rest = [n for n in range(len(refs)) if n not in chosen]
    said, heard = ([_sides(texts[n], unit) for n in rest] for texts in (ref_texts, hyp_texts))
    aligned = dict(zip(rest, align_all(said, heard, weights)[0], strict=True)) | chosen
    return ref_texts, hyp_texts, [aligned[n] for n in range(len(refs))]


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
