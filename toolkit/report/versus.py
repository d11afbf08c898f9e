"""The report's tables of systems against systems, with p-values."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from toolkit.report.decodes import Decode
from toolkit.report.errors import SplitErrors
from toolkit.report.page import Cell, Column, Row, Table
from toolkit.score.significance import (
    MANY_SEGMENTS,
    MatchedPairs,
    matched_pairs,
    permutation_p_value,
)

MOST_SYSTEMS = 10
"""Most systems of a table, those with the fewest errors."""
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """One decode against another of the same utterances."""

    points: float
    """Difference of word error rates in percentage points; below 0 the second is better."""
    test: MatchedPairs
    exact: float
    """p-value of the exact test that exchanges the systems of utterances."""

    @property
    def p_value(self) -> float:
        """That of the matched pairs test or, of fewer than `MANY_SEGMENTS` segments, whose mean is
        not normally distributed, the exact one."""
        return self.exact if self.test.segments < MANY_SEGMENTS else self.test.p_value

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at 5 %."""
        return self.p_value < LEVEL


def difference(first: Decode, second: Decode) -> Difference:
    """Compare two decodes that were scored on the same references."""
    both = list(zip(first.score.utterances, second.score.utterances, strict=True))
    test = matched_pairs(((a.pairs, b.pairs) for a, b in both), [a.block for a, _ in both])
    more: Counter[str] = Counter()
    for a, b in both:
        more[a.block] += b.errors - a.errors
    exact = permutation_p_value(list(more.values()))
    return Difference(second.score.percent - first.score.percent, test, exact)


def p_text(value: float) -> str:
    """Return a p-value as it is shown."""
    return "p < 0.001" if value < 0.001 else f"p {value:.3f}"


def versus_table(errors: SplitErrors) -> str:
    """Return the table of a split: in each cell the row's system against the column's."""
    decodes = sorted(errors.decodes, key=lambda decode: decode.score.errors)[:MOST_SYSTEMS]
    if len(decodes) < 2:
        return ""
    found = {
        (row, column): difference(decodes[column], decodes[row])
        for row in range(1, len(decodes))
        for column in range(row)
    }
    rows = [
        _row(row, decode, [found.get((row, column)) for column in range(len(decodes) - 1)])
        for row, decode in enumerate(decodes)
    ]
    return Table(
        f"{errors.split.name}: differences of systems",
        [Column(""), *(Column(f"{number + 1}") for number in range(len(decodes) - 1))],
        rows,
        _note(len(errors.decodes), found.values()),
        stacked=True,
    ).html()


def _row(number: int, decode: Decode, found: Sequence[Difference | None]) -> Row:
    cells = [
        Cell("")
        if one is None
        else Cell(f"{one.points:+.2f}", p_text(one.p_value), best=one.significant)
        for one in found
    ]
    return Row([Cell(f"{number + 1}. {decode.name}"), *cells])


def _note(systems: int, found: Collection[Difference]) -> str:
    note = (
        "The row's WER minus that of the system with the column's number, in percentage points, in "
        f"bold where p is below {LEVEL:g} by NIST's matched pairs test (MAPSSWE); p is not "
        "corrected for the number of comparisons."
    )
    if any(one.test.segments < MANY_SEGMENTS for one in found):
        note += (
            f" Where fewer than {MANY_SEGMENTS} segments have errors, it is the exact p of "
            "exchanging the systems of utterances."
        )
    if systems > MOST_SYSTEMS:
        note += f" The best {MOST_SYSTEMS} of {systems} systems."
    return note
