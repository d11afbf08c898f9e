"""NIST's grammar of transcripts, and the alignment of texts that follow it.

    { a / b c / @ } d     a, or b c, or nothing; then d. Alternatives may hold alternatives.
    @                     no word
    (uh)                  with `Grammar.optional`: the word uh, which may be left out
    wo-   -rd             with `Grammar.fragments`: any word that begins or ends like this
    word*                 word (a mark of mispronunciation)
    word;tag              word (tags follow a semicolon)

The rules are those of sclite, which reads references and hypotheses in the same way. Two texts are
aligned as networks of words, by the best path through their alternatives. With the weights
`sclite`, costs (see `_COSTS`) and the choice among ties are those of sclite. Arcs are visited in
order of their beginnings. The first of several predecessors with the same cost wins; of the three
moves, the diagonal wins, then the insertion. Costs are added in single precision, which decides
ties between many empty alternatives.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.kernels import njit
from toolkit.score.alignment import (
    CORRECT,
    DELETION,
    INSERTION,
    OPTIONAL_DELETION,
    OPTIONAL_INSERTION,
    SUBSTITUTION,
    AlignedTexts,
    Aligner,
    Unit,
    Weights,
    align_all,
    align_spaced_texts,
    units_of,
)
from toolkit.storage.lines import WHITE_SPACE, single_spaced, split_words
from toolkit.storage.reading import quoted

NO_WORD = "@"
_MARKED = re.compile(r"[{}@;*]")
_WORD = re.compile(rf"[^{WHITE_SPACE}]+")
_PART = re.compile(rf"[{{}}/]|[^{WHITE_SPACE}{{}}/]+")


_DEEPEST = 50
"""Largest depth of alternatives within alternatives; a deeper text counts as damaged."""


class GrammarError(ToolkitError):
    """A transcript that does not follow the grammar, or is too large to align."""


@dataclass(frozen=True)
class Grammar:
    """Interpretation of marks in a reference, besides alternatives."""

    fragments: bool = False
    """A word with a hyphen at its end or beginning matches the words that begin or end like it, as
    in sclite with -F."""
    optional: bool = False
    """A word in parentheses may be left out, as in sclite with -D."""

    def marks(self, text: str) -> bool:
        """Return whether anything in a text may mean more than words as they are."""
        return (
            _MARKED.search(text) is not None
            or (self.optional and "(" in text)
            or (self.fragments and "-" in text)
        )

    def is_optional(self, word: str) -> bool:
        """Return whether a word may be left out."""
        return self.optional and len(word) > 2 and word[0] == "(" and word[-1] == ")"

    def spoken(self, word: str) -> str:
        """Return a word without the parentheses that mark an optional word."""
        return word[1:-1] if self.is_optional(word) else word


@dataclass(frozen=True)
class Choice:
    """One of several sequences of words and choices."""

    alternatives: tuple["Items", ...]


Items = Sequence["str | Choice"]
"""A parsed transcript, or an alternative of it."""


def parse(text: str) -> Items:
    """Parse a transcript; alternatives without a word are dropped, as in sclite.

    Raises:
      GrammarError: a brace has no counterpart, stands inside a word, or encloses no word.
    """
    tokens = list(_tokens(text))
    (items,), _ = _alternatives(tokens, 0, nested=False)
    return items


def _tokens(text: str) -> Iterator[str]:
    """Yield words and braces, and within braces the slashes; braces are balanced."""
    depth, at = 0, 0
    while match := (_WORD if depth == 0 else _PART).search(text, at):
        token, at = match[0], match.end()
        if depth == 0 and token[0] == "{":
            token, at = "{", match.start() + 1
        elif (depth == 0 and set(token) & set("{}")) or (
            token not in ("{", "}", "/") and text[at : at + 1] == "{"
        ):
            raise GrammarError(
                f"{quoted(text.strip())}: a brace has no counterpart, or is inside the word "
                f"{quoted(token)}"
            )
        depth += (token == "{") - (depth > 0 and token == "}")
        if depth > _DEEPEST:
            raise GrammarError(f"alternatives are nested more than {_DEEPEST} deep")
        yield token
    if depth:
        raise GrammarError(f"{quoted(text.strip())}: a {{ has no matching }}")


def _alternatives(tokens: Sequence[str], at: int, nested: bool) -> tuple[Sequence[Items], int]:
    """Read alternatives from token `at` to the brace that closes them; return where it ends."""
    alternatives: list[list[str | Choice]] = [[]]
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if nested and token == "}":
            break
        if nested and token == "/":
            alternatives.append([])
        elif token == "{":
            inner, at = _alternatives(tokens, at, nested=True)
            filled = tuple(items for items in inner if items)
            if not filled:
                quoted_tokens = quoted(" ".join(tokens))
                raise GrammarError(
                    f"{quoted_tokens}: the braces contain no word: write @ for no word"
                )
            alternatives[-1].append(Choice(filled))
        else:
            alternatives[-1].append(_unmarked(token))
    return alternatives, at


def _unmarked(word: str) -> str:
    """Remove a word's tags and its mark of mispronunciation."""
    word = word.partition(";")[0] or word
    return word[:-1] if len(word) > 1 and word[-1] == "*" else word


def mapped(items: Items, apply: Callable[[str], str], grammar: Grammar) -> Items:
    """Apply a normalisation to the words between braces; an alternative without words becomes @."""
    items_mapped: list[str | Choice] = []
    run: list[str] = []

    def finish() -> None:
        items_mapped.extend(split_words(apply(" ".join(run))) if run else ())
        run.clear()

    for item in items:
        if isinstance(item, Choice):
            finish()
            parts = (mapped(part, apply, grammar) or [NO_WORD] for part in item.alternatives)
            items_mapped.append(Choice(tuple(parts)))
        elif item == NO_WORD:
            finish()
            items_mapped.append(item)
        elif grammar.is_optional(item):
            finish()
            for whole in split_words(apply(item)):  # a rule may match a word with its parentheses
                words = [whole]
                if grammar.is_optional(whole):
                    words = [f"({word})" for word in split_words(apply(whole[1:-1]))]
                items_mapped += words
        else:
            run.append(item)
    finish()
    return items_mapped


_COSTS = {"kaldi": (1.0, 1.0, 0.5, False), "sclite": (4.0, 3.0, 2.0, True)}
"""Costs of a substitution, a gap, and a gap at an optional word; whether the diagonal wins ties."""
_EMPTY, _NEVER = 0.001, 1e9
"""Cost of a gap at @, which is not aligned with anything, and a cost above that of any path."""
_MOST = 10**6
"""Largest number of pairs of successive arcs in a network. Two groups of a thousand alternatives in
a row have so many."""
_MOST_PAIRS = 4 * 10**8
"""Largest number of pairs of such pairs. Two texts of 20,000 words have so many; aligning them
takes seconds and some GB."""


@dataclass
class _Node:
    """A place between words, with the numbers of the arcs out of it and into it."""

    out: list[int] = field(default_factory=list)
    into: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Network:
    """A transcript with alternatives as a network of A arcs with words, predecessors first.

    Arc 0 is the beginning and has no word.
    """

    words: tuple[str, ...]
    """A word per arc, or @."""
    first: np.ndarray
    """[A + 1] int64: predecessors of arc a are predecessors[first[a]:first[a + 1]]."""
    predecessors: np.ndarray
    """For one arc after the other, the arcs that end where it begins: int64."""
    last: tuple[int, ...]
    """Arcs that end the transcript."""

    @classmethod
    def of(cls, items: Items) -> "Network":
        """Build the network of a parsed transcript.

        Raises:
          GrammarError: it has too many alternatives in a row.
        """
        nodes = [_Node(), _Node(), _Node()]
        arcs: list[tuple[str, int, int]] = []

        def add(word: str, start: int, end: int) -> None:
            nodes[start].out.append(len(arcs))
            nodes[end].into.append(len(arcs))
            arcs.append((word, start, end))

        # Thompson's construction: items in a row are joined by nodes, alternatives share both ends.
        def build(items: Items, start: int, end: int) -> None:
            for number, item in enumerate(items, 1):
                if number < len(items):
                    nodes.append(_Node())
                to = end if number == len(items) else len(nodes) - 1
                if isinstance(item, Choice):
                    for alternative in item.alternatives:
                        build(alternative, start, to)
                else:
                    add(item, start, to)
                start = to

        # Arc 0, from node 0 to 1, is the beginning; the transcript is between nodes 1 and 2.
        add("", 0, 1)
        build(items, 1, 2)
        stop = 2 if items else 1
        order = _in_order(nodes, arcs)
        # Arcs in topological order, so that costs of predecessors are known when an arc is reached.
        number = {arc: n for n, arc in enumerate(order)}
        if sum(len(nodes[arcs[arc][1]].into) for arc in order) > _MOST:
            raise GrammarError("too many alternatives in a row: split the utterance")
        # Compressed rows: the predecessors of one arc after the other; `first` says where those of
        # each arc begin.
        predecessors = [[number[p] for p in nodes[arcs[arc][1]].into] for arc in order]
        return cls(
            tuple(arcs[arc][0] for arc in order),
            np.cumsum([0, *map(len, predecessors)]),
            np.array([p for each in predecessors for p in each], np.int64),
            tuple(number[arc] for arc in nodes[stop].into),
        )


def _in_order(nodes: list[_Node], arcs: list[tuple[str, int, int]]) -> list[int]:
    """Return all arcs in topological order; of several ready nodes, the first to be ready leads."""
    # Kahn's algorithm: a node is ready when no arc into it is open.
    open_arcs = [len(node.into) for node in nodes]
    order: list[int] = []
    queue = deque([0])
    while queue:
        node = queue.popleft()
        for arc in nodes[node].out:
            to = arcs[arc][2]
            open_arcs[to] -= 1
            if not open_arcs[to]:
                queue.append(to)
        order += nodes[node].out
    return order


@dataclass(frozen=True)
class Aligned:
    """The best path through two networks."""

    ref: list[str]
    """Words of the best path in the reference, without @."""
    hyp: list[str]
    """Words of the best path in the hypothesis, without @."""
    steps: bytes
    """The alignment: one byte per step, see `toolkit.score.alignment`."""


def align_networks(ref: Network, hyp: Network, grammar: Grammar, weights: Weights) -> Aligned:
    """Align the words of a reference network with those of a hypothesis network.

    Raises:
      GrammarError: they are so large that alignment would take minutes, or GB of memory.
    """
    if len(ref.predecessors) * len(hyp.predecessors) > _MOST_PAIRS:
        raise GrammarError("too many words and alternatives to align: split the utterance")
    substitution, gap, optional, diagonal_wins = _COSTS[weights]
    equal = _equal(ref, hyp, grammar)
    # Cost of leaving out each arc: almost nothing for @, less than a gap for an optional word.
    deletions, insertions = (
        np.where(
            _empty(side),
            _EMPTY,
            [optional if grammar.is_optional(word) else gap for word in side.words],
        ).astype(np.float32)
        for side in (ref, hyp)
    )
    cost, back = _fill(
        equal,
        np.float32(substitution),
        deletions,
        insertions,
        ref.first,
        ref.predecessors,
        hyp.first,
        hyp.predecessors,
        diagonal_wins,
    )
    ends = [
        (cost[a, b], n, a, b) for n, (a, b) in enumerate((a, b) for a in ref.last for b in hyp.last)
    ]
    # The cheapest pair of last arcs; if several are, the first, as in sclite.
    _, _, a, b = min(ends)
    return _backtrace(ref, hyp, grammar, equal, back, a, b)


def _backtrace(
    ref: Network,
    hyp: Network,
    grammar: Grammar,
    equal: np.ndarray,
    back: np.ndarray,
    a: int,
    b: int,
) -> Aligned:
    """Follow the moves from the last arcs back to the first."""
    refs: list[str] = []
    hyps: list[str] = []
    steps = bytearray()
    while a > 0 or b > 0:
        before_a, before_b = back[a, b]
        ref_word, hyp_word = ref.words[a], hyp.words[b]
        # The reference stays: an insertion, or an empty word of the hypothesis.
        if before_a == a:
            if hyp_word != NO_WORD:
                hyps.append(hyp_word)
                steps.append(OPTIONAL_INSERTION if grammar.is_optional(hyp_word) else INSERTION)
        # The hypothesis stays: a deletion, or an empty word of the reference.
        elif before_b == b:
            if ref_word != NO_WORD:
                refs.append(ref_word)
                steps.append(OPTIONAL_DELETION if grammar.is_optional(ref_word) else DELETION)
        else:
            refs.append(ref_word)
            hyps.append(hyp_word)
            steps.append(CORRECT if equal[a, b] else SUBSTITUTION)
        a, b = int(before_a), int(before_b)
    return Aligned(refs[::-1], hyps[::-1], bytes(steps[::-1]))


def _empty(network: Network) -> np.ndarray:
    """Return which arcs have no word: [A] bool."""
    return np.array([word == NO_WORD for word in network.words])


def _equal(ref: Network, hyp: Network, grammar: Grammar) -> np.ndarray:
    """Return which words of the reference match which of the hypothesis: [A, B] bool."""
    sides = [[grammar.spoken(word) for word in side.words] for side in (ref, hyp)]
    index = {word: n for n, word in enumerate(dict.fromkeys([*sides[0], *sides[1]]))}
    # Numbers instead of strings: one comparison of arrays for all A x B pairs.
    ids = [np.array([index[word] for word in side]) for side in sides]
    equal = ids[0][:, None] == ids[1][None]
    if grammar.fragments:
        parts = [[is_fragment(word, grammar) for word in side.words] for side in (ref, hyp)]
        # Only pairs with a fragment need the slow comparison.
        for a, b in np.argwhere(np.array(parts[0])[:, None] | np.array(parts[1])[None]):
            equal[a, b] = _matches(sides[0][a], sides[1][b])
    return equal


def is_fragment(word: str, grammar: Grammar) -> bool:
    """Return whether a hyphen marks a word as a fragment; an optional word needs it at the end."""
    return word[:1] == "-" or word[-1:] == "-" or (grammar.is_optional(word) and word[-2] == "-")


def _matches(ref: str, hyp: str) -> bool:
    """Return whether two words match, if at least one is a fragment."""
    for fragment, word in ((ref, hyp), (hyp, ref)):
        if len(fragment) > 1 and fragment[0] == "-":
            return word.endswith(fragment[1:])
        if len(fragment) > 1 and fragment[-1] == "-":
            return word.startswith(fragment[:-1])
    return ref == hyp


@njit(cache=True)
def _fill(
    equal: np.ndarray,
    substitution: float,
    ref_gap: np.ndarray,
    hyp_gap: np.ndarray,
    ref_first: np.ndarray,
    ref_before: np.ndarray,
    hyp_first: np.ndarray,
    hyp_before: np.ndarray,
    diagonal_wins: bool,
) -> tuple:  # pragma: no cover (compiled)
    """Return the costs [A, B] of the best paths that end in each pair of arcs, and where they come
    from, [A, B, 2]; an arc that stays the same is a gap."""
    number_a, number_b = equal.shape
    cost = np.zeros((number_a, number_b), np.float32)
    back = np.zeros((number_a, number_b, 2), np.int32)
    never, empty = np.float32(_NEVER), np.float32(_EMPTY)
    for a in range(number_a):
        for b in range(number_b):
            if a == 0 and b == 0:
                continue
            insertion = deletion = diagonal = never
            ins_b = del_a = sub_a = sub_b = 0
            if b > 0:
                # Insertion: min over predecessors p of b of cost[a, p] + hyp_gap[b].
                for p in hyp_before[hyp_first[b] : hyp_first[b + 1]]:
                    if cost[a, p] < insertion:
                        insertion, ins_b = cost[a, p], p
                insertion += hyp_gap[b]
            if a > 0:
                for p in ref_before[ref_first[a] : ref_first[a + 1]]:
                    if cost[p, b] < deletion:
                        deletion, del_a = cost[p, b], p
                deletion += ref_gap[a]
            if a > 0 and b > 0 and ref_gap[a] != empty and hyp_gap[b] != empty:
                for p in ref_before[ref_first[a] : ref_first[a + 1]]:
                    for q in hyp_before[hyp_first[b] : hyp_first[b + 1]]:
                        if cost[p, q] < diagonal:
                            diagonal, sub_a, sub_b = cost[p, q], p, q
                if not equal[a, b]:
                    diagonal += substitution
            # The same order of ties as in `toolkit.score.alignment`.
            if (diagonal < insertion and diagonal < deletion) or (
                diagonal_wins and diagonal <= insertion and diagonal <= deletion
            ):
                cost[a, b], back[a, b, 0], back[a, b, 1] = diagonal, sub_a, sub_b
            elif deletion < insertion:
                cost[a, b], back[a, b, 0], back[a, b, 1] = deletion, del_a, b
            else:
                cost[a, b], back[a, b, 0], back[a, b, 1] = insertion, a, ins_b
    return cost, back


def nist_aligner(grammar: Grammar) -> Aligner:
    """Return an aligner that chooses alternatives, fragments and optional words as sclite does.

    Alternatives and optional words are chosen by an alignment of words, even if characters are
    compared afterwards: see `_by_units`. The normalisation is applied to the words between
    marks.

    Args:
      grammar: how marks in the texts are understood.

    Returns:
      An aligner that raises a `GrammarError` where a text does not follow the grammar; the message
      names the utterance.
    """
    return partial(_align_marked_texts, grammar)


def _align_marked_texts(
    grammar: Grammar,
    ids: Sequence[str],
    refs: Sequence[str],
    hyps: Sequence[str],
    unit: Unit,
    weights: Weights,
    normalise: Callable[[str], str] = str,
) -> AlignedTexts:
    """Align N texts; see `nist_aligner` and `toolkit.score.alignment.align_texts`."""
    ref_texts, hyp_texts = [""] * len(refs), [""] * len(hyps)
    # Steps of the texts whose best path through alternatives is known.
    steps: dict[int, bytes] = {}
    for n, texts in enumerate(zip(refs, hyps, strict=True)):
        if not any(map(grammar.marks, texts)):
            ref_texts[n], hyp_texts[n] = (single_spaced(normalise(text)) for text in texts)
            continue
        try:
            sides = [mapped(parse(text), normalise, grammar) for text in texts]
            if all(_one_path(items, grammar) for items in sides):
                ref_texts[n], hyp_texts[n] = (" ".join(map(str, items)) for items in sides)
                continue  # the alignment of words takes far less memory than that of networks
            ref_network, hyp_network = map(Network.of, sides)
            best = align_networks(ref_network, hyp_network, grammar, weights)
        except GrammarError as error:
            raise GrammarError(f"{ids[n]}: {error}") from error
        if unit == "word":
            ref_texts[n], hyp_texts[n] = " ".join(best.ref), " ".join(best.hyp)
            steps[n] = best.steps
        else:
            ref_texts[n], hyp_texts[n], steps[n] = _by_units(best, grammar, unit, weights)
    without_choice = [n for n in range(len(refs)) if n not in steps]
    aligned = align_spaced_texts(
        [ref_texts[n] for n in without_choice],
        [hyp_texts[n] for n in without_choice],
        unit,
        weights,
    )
    steps |= zip(without_choice, aligned, strict=True)
    in_order = [steps[n] for n in range(len(refs))]
    return AlignedTexts(ref_texts, hyp_texts, in_order, list(map(grammar.marks, refs)))


def _by_units(
    best: Aligned, grammar: Grammar, unit: Unit, weights: Weights
) -> tuple[str, str, bytes]:
    """Align the characters or mixed units of the best path; return the two texts and the steps.

    The parentheses of optional words do not count as characters. If such a word was left out, all
    its characters are left out and, where spaces count, the space beside it.
    """
    steps = best.steps
    is_left_out = [
        s == OPTIONAL_DELETION for s in steps if s not in (INSERTION, OPTIONAL_INSERTION)
    ]
    ref_words = [grammar.spoken(word) for word in best.ref]
    ref, spoken_ref, ref_gaps = _without(ref_words, is_left_out, unit)
    is_left_out = [s == OPTIONAL_INSERTION for s in steps if s not in (DELETION, OPTIONAL_DELETION)]
    hyp_words = [grammar.spoken(word) for word in best.hyp]
    hyp, spoken_hyp, hyp_gaps = _without(hyp_words, is_left_out, unit)
    (aligned,), _ = align_all([spoken_ref], [spoken_hyp], weights)
    # Put the characters of left-out words back, as optional steps at their places.
    with_gaps = bytearray()
    at_ref = at_hyp = 0
    for step in (*aligned, None):
        with_gaps += bytes([OPTIONAL_DELETION]) * ref_gaps.pop(at_ref, 0)
        with_gaps += bytes([OPTIONAL_INSERTION]) * hyp_gaps.pop(at_hyp, 0)
        if step is not None:
            with_gaps.append(step)
            at_ref += step != INSERTION
            at_hyp += step != DELETION
    return ref, hyp, bytes(with_gaps)


def _without(
    words: Sequence[str], left_out: Sequence[bool], unit: Unit
) -> tuple[str, Sequence[str], dict[int, int]]:
    """Return the full text, the units of the words not left out, and the gaps' lengths by place."""
    spoken = units_of(" ".join(w for w, out in zip(words, left_out, strict=True) if not out), unit)
    space = int(unit == "char-with-spaces")
    gaps: dict[int, int] = {}
    at = 0
    for word, out in zip(words, left_out, strict=True):
        size = len(units_of(word, unit)) + space
        if out:
            place = min(at, len(spoken))
            gaps[place] = gaps.get(place, 0) + size
        else:
            at += size
    if gaps and not spoken:
        gaps[0] -= space  # one space fewer than words
    return " ".join(words), spoken, gaps


def _one_path(items: Items, grammar: Grammar) -> bool:
    """Return whether a transcript has plain words only: no choice, @, optional word or fragment."""
    return all(
        isinstance(item, str)
        and item != NO_WORD
        and not grammar.is_optional(item)
        and not (grammar.fragments and is_fragment(item, grammar))
        for item in items
    )
