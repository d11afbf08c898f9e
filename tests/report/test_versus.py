"""Systems against systems, with p-values."""

import random
import re
from html import unescape
from pathlib import Path

import pytest

from toolkit.report.error_analysis import (
    MAX_SYSTEMS,
    SplitErrors,
    compare_decodes,
    format_p_value,
    pairwise_tests_table,
)
from toolkit.report.run_data import Decode, Split, Utterance
from toolkit.score.compare import compare
from toolkit.score.wer import score


def decode(name, rate, seed):
    """A system that has words wrong at this rate."""
    chance = random.Random(seed)
    texts = {f"u{n:03d}": "a b c d e f g h" for n in range(60)}
    wrong = {
        id: " ".join("x" if chance.random() < rate else word for word in text.split())
        for id, text in texts.items()
    }
    return Decode(name, "dev", score(texts, wrong), Path())


def split_of(decodes):
    utterances = {u.id: Utterance(1.0, "s", u.ref_text, 0) for u in decodes[0].score.utterances}
    return SplitErrors(Split("dev", Path(), utterances, 0), decodes)


@pytest.fixture(scope="module")
def systems():
    return [decode("mono", 0.3, 1), decode("<lstm>", 0.05, 2), decode("tri", 0.31, 3)]


def test_differences_are_those_of_the_scoring_tool(systems):
    for first in systems:
        for second in systems:
            found, expected = compare_decodes(first, second), compare(first.score, second.score)
            assert found.points == pytest.approx(expected.difference)
            assert found.test == expected.matched_pairs
            assert found.significant == (expected.matched_pairs.p_value < 0.05)
            assert found.exact == expected.p_value


def test_of_few_segments_the_exact_test_decides():
    """Three utterances that are all worse by two errors: infinitely significant to the other."""
    texts = {f"u{n}": "a b c d e f g h" for n in range(10)}
    worse = texts | {f"u{n}": "x x c d e f g h" for n in range(3)}
    systems = [
        Decode(name, "dev", score(texts, hyp), Path())
        for name, hyp in (("right", texts), ("worse", worse))
    ]
    found = compare_decodes(*systems)
    assert found.test.p_value == 0
    assert (found.p_value, found.significant) == (0.25, False)
    html = pairwise_tests_table(split_of(systems))
    assert "p 0.250" in html
    assert "fewer than 50 segments have errors" in html
    assert 'class="best"' not in html


def test_the_table_has_each_pair_once_the_best_first(systems):
    html = pairwise_tests_table(split_of(systems))
    assert "<lstm>" not in html
    rows = [unescape(re.sub(r"<[^>]+>", " ", row)).split() for row in html.split("<tr>")[2:]]
    order = sorted(systems, key=lambda one: one.score.errors)
    assert [row[:2] for row in rows] == [[f"{n}.", one.name] for n, one in enumerate(order, 1)]
    expected = compare_decodes(order[0], order[1])
    shown = f"{expected.points:+.2f} {format_p_value(expected.test.p_value)}"
    assert " ".join(rows[1]).startswith(f"2. {order[1].name} {shown}")
    assert html.count("p &lt; 0.001") + html.count("p 0.") == 3
    assert html.count('class="best"') == 2  # the two of about 30 % do not differ much


def test_one_system_makes_no_table_and_many_make_one_of_the_best(systems):
    assert pairwise_tests_table(split_of(systems[:1])) == ""
    many = [decode(f"s{n}", n / 40, n) for n in range(MAX_SYSTEMS + 2)]
    html = pairwise_tests_table(split_of(many))
    assert f"The best {MAX_SYSTEMS} of {MAX_SYSTEMS + 2} systems" in html
    order = [one.name for one in sorted(many, key=lambda one: one.score.errors)]
    rows = re.findall(r'<th scope="row">\d+\. (\w+)</th>', html)
    assert rows == order[:MAX_SYSTEMS]
