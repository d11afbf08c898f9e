import itertools
import math
import random
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm, ttest_1samp

from toolkit.score.alignment import align
from toolkit.score.significance import MatchedPairs, matched_pairs, permutation_p_value


def by_enumeration(differences):
    """Try every choice of signs."""
    observed = abs(sum(differences))
    signs = list(itertools.product((1, -1), repeat=len(differences)))
    reached = sum(
        abs(sum(s * d for s, d in zip(sign, differences, strict=True))) >= observed
        for sign in signs
    )
    return reached / len(signs)


@given(st.lists(st.integers(-6, 6), max_size=9), st.randoms())
def test_p_value_is_that_of_all_exchanges(differences, random):
    p = permutation_p_value(differences)
    assert p == pytest.approx(by_enumeration(differences), abs=1e-12)
    assert p == permutation_p_value([-d for d in differences])
    random.shuffle(differences)
    assert p == permutation_p_value(differences)


def test_equal_steps_give_the_sign_test():
    differences = [1] * 70 + [-1] * 40 + [0] * 300
    assert permutation_p_value(differences) == pytest.approx(binomtest(70, 110).pvalue, rel=1e-9)


def test_identical_systems_do_not_differ():
    assert permutation_p_value([0] * 50) == 1.0
    assert permutation_p_value([]) == 1.0


def segments(ref, first, second):
    ref = ref.split()
    return matched_pairs([(align(ref, first.split()), align(ref, second.split()))])


@pytest.mark.parametrize(
    ("first", "second", "count", "mean"),
    [
        ("a b c d e f", "a b c d e f", 0, 0.0),
        ("x b c d e f", "a b c d e f", 1, -1.0),
        ("x b c y e f", "a b c d e f", 2, -1.0),  # two right words part the errors
        ("x b y d e f", "a b c d e f", 1, -2.0),  # one right word does not
        ("x b c d e f", "a b x d e f", 1, 0.0),  # nor does one that both have right
        ("x b c d e f", "a b c d e y", 2, 0.0),
        ("a b c d e f", "a b w c d e f w", 2, 1.0),  # insertions part runs and end the utterance
        ("x b w c d e f", "a b c d e f", 1, -2.0),  # b and c are right, but not in a row
        ("", "a b c d e f", 1, -6.0),
    ],
)
def test_segments_worked_out_by_hand(first, second, count, mean):
    test = segments("a b c d e f", first, second)
    assert (test.segments, test.mean) == (count, mean)


def test_statistic_is_students_on_the_utterances_with_errors():
    errors = [(1, 2), (3, 3), (2, 0), (0, 0), (0, 3), (1, 2)]
    ref = ["r", "r", "r"]
    test = matched_pairs((align(ref, ref[a:]), align(ref, ref[b:])) for a, b in errors)
    differences = [b - a for a, b in errors if a or b]
    assert test.segments == len(differences) == 5
    assert test.z == pytest.approx(ttest_1samp(differences, 0).statistic)
    assert test.p_value == pytest.approx(2 * norm.sf(abs(test.z)))


def test_copies_of_a_sentence_are_one_segment():
    ref = ["r", "r", "r", "r", "r", "r"]
    wrong = ["x", "r", "r", "r", "r", "x"]
    pairs = [(align(ref, ref), align(ref, wrong))] * 3 + [(align(ref, ref), align(ref, ref))] * 2
    test = matched_pairs(pairs, ["a", "b", "a", "c", "c"])
    assert (test.segments, test.mean) == (3, 2.0)  # of a one, of b both its own, of c none
    assert matched_pairs(pairs).segments == 6


def test_equal_differences_are_certain_and_one_segment_gives_no_statistic():
    assert MatchedPairs(5, -1.0, 0.0).p_value == 0.0
    assert MatchedPairs(5, -1.0, 0.0).z == -math.inf
    assert MatchedPairs(1, -1.0, 0.0).p_value == 1.0
    assert MatchedPairs(0, 0.0, 0.0).p_value == 1.0


@pytest.mark.skipif(shutil.which("sctk") is None, reason="NIST's SCTK is not installed")
def test_outcome_is_that_of_sctk(tmp_path):
    generator = random.Random(3)
    refs, systems = {}, ({}, {})
    for n in range(60):
        refs[f"s-u{n:02d}"] = [f"w{generator.randrange(1000)}" for _ in range(12)]
        for system, rate in zip(systems, (0.15, 0.08), strict=True):
            system[f"s-u{n:02d}"] = [
                "wrong" if generator.random() < rate else word for word in refs[f"s-u{n:02d}"]
            ]
    for name, texts in zip(("ref", "a", "b"), (refs, *systems), strict=True):
        lines = [f"{' '.join(words)} ({u})\n" for u, words in texts.items()]
        (tmp_path / f"{name}.trn").write_text("".join(lines))

    def sctk(*arguments, **options):
        return subprocess.run(["sctk", *arguments], cwd=tmp_path, capture_output=True, **options)

    for name in "ab":
        sctk("sclite", "-r", "ref.trn", "trn", "-h", f"{name}.trn", "trn", "-i", "rm",
             "-o", "sgml", "-n", name, check=True)  # fmt: skip
    alignments = b"".join((tmp_path / f"{name}.sgml").read_bytes() for name in "ab")
    sctk("sc_stats", "-p", "-t", "mapsswe", "-v", "-n", "pair", input=alignments, check=True)
    report = (tmp_path / "pair.stats.mapsswe").read_text()
    pattern = r"# segs: (\d+).*mean: ([-.\d]+)\) \(std dev: ([.\d]+)\) \(Z Stat: ([-.\d]+)\)"
    count, mean, deviation, z = map(float, re.search(pattern, report).groups())
    test = matched_pairs(
        [(align(refs[u], systems[0][u]), align(refs[u], systems[1][u])) for u in refs]
    )
    assert test.segments == count
    # SCTK subtracts the second system from the first
    assert (-test.mean, test.deviation, -test.z) == pytest.approx((mean, deviation, z), abs=6e-4)
