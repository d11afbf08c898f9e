"""The report's errors of a split: confusions, and worst utterances with alignment and audio."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from toolkit.report.budget import Budget
from toolkit.report.corpus import Split
from toolkit.report.decodes import Decode, confusions, worst
from toolkit.report.folder import RunFolder
from toolkit.report.media import Clip
from toolkit.report.page import Cell, Column, Row, Table
from toolkit.report.player import player, word_times
from toolkit.score.alignment import Pair
from toolkit.score.wer import UtteranceScore

MOST_WORDS = 250
"""Most words of an alignment that are shown."""
MOST_CONFUSIONS = 15
MOST_SPEAKERS = 12
KEY = (
    '<ul class="key"><li><del class="sub">said</del> <ins class="sub">recognised</ins> '
    'substitution</li><li><del class="gone">said</del> deletion</li>'
    '<li><ins class="new">recognised</ins> insertion</li></ul>'
)


@dataclass(frozen=True)
class SplitErrors:
    """A split with the systems that were decoded on it."""

    split: Split
    decodes: Sequence[Decode]
    """The decodes, in the order in which they were written."""

    @property
    def shown(self) -> Decode:
        """The system with the fewest errors."""
        return min(self.decodes, key=lambda decode: decode.score.errors)


def overview(errors: SplitErrors) -> str:
    """Return confusions and speakers of the best system on a split."""
    shown = errors.shown
    pairs = [utterance.pairs for utterance in shown.score.utterances]
    found = confusions(pairs, MOST_CONFUSIONS)
    tables = [
        counts_card("Substitutions", found.substitutions),
        counts_card("Deletions", found.deletions),
        counts_card("Insertions", found.insertions),
        _speakers(shown),
    ]
    name, split = escape(shown.name), escape(errors.split.name)
    return f'<h3 class="over">{split}, by {name}</h3><div class="cards">{"".join(tables)}</div>'


def counts_card(title: str, counts: Sequence[tuple[str, int]]) -> str:
    """Return a list of what was counted, with bars; empty if nothing was."""
    if not counts:
        return ""
    most = max(number for _, number in counts)
    rows = "".join(
        f'<li><span>{escape(words)}</span> <b>{number:,}</b><i class="bar" '
        f'style="width:{100 * number / most:.0f}%"></i></li>'
        for words, number in counts
    )
    return f'<div class="card"><h3>{title}</h3><ol class="counts">{rows}</ol></div>'


def _speakers(decode: Decode) -> str:
    scores = sorted(decode.score.by_speaker().items(), key=lambda item: (-item[1].percent, item[0]))
    rows = [
        Row([Cell(name or "-"), Cell(f"{s.percent:.2f}"), Cell(f"{s.errors:,}")])
        for name, s in scores[:MOST_SPEAKERS]
    ]
    columns = [Column("speaker"), Column("WER %"), Column("errors")]
    more = len(scores) - len(rows)
    note = f"The worst of {len(scores):,}." if more > 0 else ""
    return Table("Speakers", columns, rows, note).html() if len(scores) > 1 else ""


def worst_utterances(
    run: RunFolder,
    errors: SplitErrors,
    number: int,
    budget: Budget,
    clip: Callable[[Split, str], Clip | None],
    anchor: str,
) -> str:
    """Return cards of the utterances with the most errors of the best system.

    Args:
      run: the run, for word times.
      errors: the split.
      number: number of utterances.
      budget: limits the size; audio players are left out first, then alignments.
      clip: returns the audio of an utterance, None where it cannot be read.
      anchor: begins the cards' anchors.
    """
    shown = errors.shown
    times = word_times(run, shown)
    cards = []
    for utterance in worst(shown, number):
        text = budget.take(_texts(errors, utterance))
        if not text:
            continue
        media = clip(errors.split, utterance.id)
        sound = budget.take(player(media, times.get(utterance.id, []), utterance)) if media else ""
        cards.append(
            f'<article class="box utterance" id="{escape(anchor)}-{len(cards) + 1}" data-split='
            f'"{escape(errors.split.name)}" data-utterance="{escape(utterance.id)}">'
            f"{_head(errors, utterance)}{sound}{text}</article>"
        )
    if not cards:
        return ""
    name, split = escape(shown.name), escape(errors.split.name)
    return f'<h3 class="over">{split}, by {name}</h3>{"".join(cards)}'


def _head(errors: SplitErrors, utterance: UtteranceScore) -> str:
    own = errors.split.utterances[utterance.id]
    speaker = f", speaker {escape(own.speaker)}" if own.speaker else ""
    return (
        f"<h4><code>{escape(utterance.id)}</code> <span>{own.seconds:.1f} s{speaker}; "
        f"{_number(utterance.errors, 'error')} in {_number(utterance.ref_units, 'word')}"
        "</span></h4>"
    )


def _texts(errors: SplitErrors, utterance: UtteranceScore) -> str:
    """Return the alignments of all systems, those of the other systems collapsed."""
    shown = errors.shown
    others = [
        f"<dt>{escape(decode.name)} <small>{found.errors}</small></dt><dd>{alignment(found)}</dd>"
        for decode in errors.decodes
        if decode is not shown and (found := decode.by_id.get(utterance.id))
    ]
    said = " ".join(escape(ref) for ref, _ in utterance.pairs[:MOST_WORDS] if ref is not None)
    text = (
        f'<dl class="said"><dt>said</dt><dd>{said}</dd>'
        f'<dt>{escape(shown.name)}</dt><dd class="spoken">{alignment(utterance, True)}</dd></dl>'
    )
    if others:
        number = _number(len(others), "other system")
        inside = f'<dl class="said">{"".join(others)}</dl>'
        text += f"<details><summary>{number}</summary>{inside}</details>"
    return text


def alignment(utterance: UtteranceScore, elements: bool = False) -> str:
    """Return a hypothesis with its errors marked.

    Args:
      utterance: the scored utterance.
      elements: make an element of right words too, so that each recognised word is one.
    """
    words = " ".join(_pair(pair, elements) for pair in utterance.pairs[:MOST_WORDS])
    more = len(utterance.pairs) - MOST_WORDS
    return words + (f" <small>and {more:,} more words</small>" if more > 0 else "")


def _pair(pair: Pair, elements: bool) -> str:
    ref, hyp = (None if word is None else escape(word) for word in pair)
    if ref is None:
        return f'<ins class="new">{hyp}</ins>'
    if hyp is None:
        return f'<del class="gone">{ref}</del>'
    if ref != hyp:
        return f'<del class="sub">{ref}</del> <ins class="sub">{hyp}</ins>'
    return f"<span>{ref}</span>" if elements else ref


def _number(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
