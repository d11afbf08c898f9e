"""The report's browser of all utterances: a table that the page's script sorts and filters."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from toolkit.report.budget import Budget
from toolkit.report.errors import MOST_WORDS, SplitErrors
from toolkit.score.alignment import Pair, UtteranceScore

FIELDS = ("id", "speaker", "seconds", "snr", "errors", "words", "pieces")
"""The fields of a row, in this order."""
COMPACT: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
CONTROLS = """
<form class="controls" autocomplete="off">
<label>split and system <select name="split"></select></label>
<label>speaker <select name="speaker"></select></label>
<label>text or id <input name="text" type="search"></label>
<fieldset><legend>errors</legend>
<label>from <input name="errors-from" type="number" min="0" inputmode="numeric"></label>
<label>to <input name="errors-to" type="number" min="0" inputmode="numeric"></label></fieldset>
<fieldset><legend>seconds</legend>
<label>from <input name="seconds-from" type="number" min="0" step="any"></label>
<label>to <input name="seconds-to" type="number" min="0" step="any"></label></fieldset>
<fieldset class="snr"><legend>SNR in dB</legend>
<label>from <input name="snr-from" type="number" step="any"></label>
<label>to <input name="snr-to" type="number" step="any"></label></fieldset>
<button type="reset">Show all</button>
</form>
"""
PAGER = """
<div class="pager"><button type="button" name="first">First</button>
<button type="button" name="previous">Previous</button>
<output role="status" aria-live="polite"></output>
<button type="button" name="next">Next</button>
<button type="button" name="last">Last</button></div>
"""


def browser(splits: Sequence[SplitErrors], budget: Budget) -> str:
    """Return the browser of the utterances of all splits, by their systems with fewest errors.

    The rows are JSON in hidden elements, as text; they take at most half of the budget. Of a split
    that does not fit the utterances with the most errors are kept.
    """
    room, data = max(0, budget.left // 2), ""
    for number, split in enumerate(splits):
        data += _rows(split, (room - len(_bytes(data))) // (len(splits) - number))
    if not data:
        return ""
    return budget.take(
        f'<div class="box browser" hidden>{CONTROLS}{PAGER}<div class="scroll" tabindex="0" '
        'role="region" aria-label="Utterances"><table class="listed"></table></div></div>'
        '<noscript><p class="box">The list of utterances needs JavaScript.</p></noscript>'
        f"{data}"
    )


def _rows(errors: SplitErrors, room: int) -> str:
    """Return the rows of a split, in at most so many bytes; empty if none fits."""
    utterances = errors.shown.score.utterances
    chosen: Sequence[UtteranceScore] = utterances
    while chosen:
        listed = (json.dumps(_row(errors, u), **COMPACT) for u in chosen)
        title = escape(f"{errors.split.name}, {errors.shown.name}")
        found = (
            f'<div class="rows" hidden data-split="{escape(errors.split.name)}" '
            f'data-title="{title}" data-left-out="{len(utterances) - len(chosen)}">'
            f"{escape('[' + ','.join(listed) + ']', quote=False)}</div>"
        )
        if (size := len(_bytes(found))) <= room:
            return found
        if len(chosen) == len(utterances):
            chosen = sorted(utterances, key=lambda one: -one.errors)
        chosen = chosen[: min(len(chosen) - 1, len(chosen) * room // size)]
    return ""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _row(errors: SplitErrors, utterance: UtteranceScore) -> list[object]:
    own = errors.split.utterances[utterance.id]
    return [
        utterance.id,
        own.speaker,
        round(own.seconds, 2),
        own.snr,
        utterance.errors,
        utterance.ref_units,
        pieces(utterance.pairs),
    ]


def pieces(pairs: Sequence[Pair]) -> list[str | list[str | None]]:
    """Return an alignment in few characters.

    Runs of right words are a string each; errors are (reference, hypothesis), None for a gap. Long
    alignments end after `MOST_WORDS`.
    """
    found: list[str | list[str | None]] = []
    right: list[str] = []
    for ref, hyp in pairs[:MOST_WORDS]:
        if ref is not None and ref == hyp:
            right.append(ref)
            continue
        found += [" ".join(right)] if right else []
        right = []
        found.append([ref, hyp])
    found += [" ".join(right)] if right else []
    return found + (["…"] if len(pairs) > MOST_WORDS else [])
