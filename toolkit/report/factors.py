"""The report's figures of word errors against duration, speaking rate and noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from toolkit.report.chart import Chart, Series
from toolkit.report.errors import SplitErrors
from toolkit.report.page import figure, side_by_side

MOST_BINS = 8
LEAST = 10
"""Least number of utterances of a bin."""


@dataclass(frozen=True)
class Bin:
    """Utterances with similar values."""

    low: float
    high: float
    """The lowest and the highest value."""
    middle: float
    """The median value."""
    utterances: int
    errors: int
    words: int

    @property
    def wer(self) -> float:
        """Word error rate in percent."""
        return 100.0 * self.errors / self.words


def binned(values: Sequence[float], errors: Sequence[int], words: Sequence[int]) -> list[Bin]:
    """Divide utterances by their values into bins of about equal numbers, in rising order.

    Equal values stay together. Bins without a word are left out.

    Args:
      values: [U] by which to divide.
      errors: [U] word errors.
      words: [U] words of the references.
    """
    order = np.argsort(np.asarray(values), kind="stable")
    sorted_values = np.asarray(values, dtype=float)[order]
    number = min(MOST_BINS, len(order) // LEAST)
    if number < 2:
        return []
    cuts = sorted_values[[len(order) * n // number for n in range(1, number)]]
    ends = np.searchsorted(sorted_values, np.unique(cuts), side="left")
    found = []
    for part in np.split(order, ends):
        own = [int(np.asarray(counts)[part].sum()) for counts in (errors, words)]
        if len(part) and own[1]:
            inside = np.asarray(values, dtype=float)[part]
            middle = float(np.median(inside))
            found.append(Bin(inside.min(), inside.max(), middle, len(part), *own))
    return found


def factor_figures(errors: SplitErrors) -> str:
    """Return figures of the WER of a split's best system against what may explain errors.

    Factors of which too few utterances are known, or that do not vary, are left out.
    """
    rows = [(u, errors.split.utterances[u.id]) for u in errors.shown.score.utterances]
    rows = [(u, own) for u, own in rows if u.ref_units and own.seconds > 0]
    factors: dict[tuple[str, str], list[Any]] = {
        ("duration", "seconds"): [own.seconds for _, own in rows],
        ("speaking rate", "words per second"): [u.ref_units / own.seconds for u, own in rows],
        ("signal-to-noise ratio", "dB"): [own.snr for _, own in rows],
    }
    charts = [
        _figure(errors.split.name, *names, bins)
        for names, values in factors.items()
        for known in [[n for n, value in enumerate(values) if value is not None]]
        for bins in [
            binned(
                [values[n] for n in known],
                [rows[n][0].errors for n in known],
                [rows[n][0].ref_units for n in known],
            )
        ]
        if len(bins) > 1
    ]
    if not charts:
        return ""
    title = f"{errors.split.name}, by {errors.shown.name}"
    return f'<h3 class="over">{escape(title)}</h3>{side_by_side(charts)}'


def _figure(split: str, factor: str, unit: str, bins: Sequence[Bin]) -> str:
    titles = [
        f"{one.low:.3g} to {one.high:.3g} {unit}: WER {one.wer:.2f} %, {one.errors:,} errors in "
        f"{one.words:,} words of {one.utterances:,} utterances"
        for one in bins
    ]
    x, y = [one.middle for one in bins], [one.wer for one in bins]
    room = 0.05 * (x[-1] - x[0])
    chart = Chart(
        f"WER of {split} against {factor}",
        unit,
        "WER in %",
        [Series("", x, y, markers=True, titles=titles)],
        x_range=(x[0] - room, x[-1] + room),
    )
    caption = f"{len(bins)} groups of about {bins[0].utterances:,} utterances, at their medians."
    return figure(chart, f"WER against {factor}", caption)
