import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.score.align import align

WORDS = st.lists(st.sampled_from("abcd"), max_size=12)


def counts(pairs):
    insertions = sum(ref is None for ref, _ in pairs)
    deletions = sum(hyp is None for _, hyp in pairs)
    substitutions = sum(None not in (ref, hyp) and ref != hyp for ref, hyp in pairs)
    return insertions, deletions, substitutions


def fewest_errors(ref, hyp):
    """Try every alignment."""
    if not ref or not hyp:
        return len(ref) + len(hyp)
    return min(
        fewest_errors(ref[1:], hyp[1:]) + (ref[0] != hyp[0]),
        fewest_errors(ref[1:], hyp) + 1,
        fewest_errors(ref, hyp[1:]) + 1,
    )


def kaldi_counts(ref, hyp):
    """Carry (cost, ins, del, sub) through the table, by the order of comparisons in Kaldi."""
    previous = [(r, 0, r, 0) for r in range(len(ref) + 1)]
    for word in hyp:
        cost, ins, dele, sub = previous[0]
        row = [(cost + 1, ins + 1, dele, sub)]
        for r, said in enumerate(ref, start=1):
            diagonal = previous[r - 1][0] + (said != word)
            insertion, deletion = previous[r][0] + 1, row[r - 1][0] + 1
            if diagonal < insertion and diagonal < deletion:
                _, ins, dele, sub = previous[r - 1]
                row.append((diagonal, ins, dele, sub + (said != word)))
            elif deletion < insertion:
                _, ins, dele, sub = row[r - 1]
                row.append((deletion, ins, dele + 1, sub))
            else:
                _, ins, dele, sub = previous[r]
                row.append((insertion, ins + 1, dele, sub))
        previous = row
    return previous[-1][1:]


def test_every_short_pair_has_the_fewest_errors_and_kaldis_split():
    sequences = [s for n in range(5) for s in itertools.product("ab", repeat=n)]
    for ref, hyp in itertools.product(sequences, repeat=2):
        found = counts(align(ref, hyp))
        assert sum(found) == fewest_errors(ref, hyp), (ref, hyp)
        assert found == kaldi_counts(ref, hyp), (ref, hyp)


@given(WORDS, WORDS)
def test_longer_pairs_have_kaldis_split_and_keep_both_sequences(ref, hyp):
    pairs = align(ref, hyp)
    assert counts(pairs) == kaldi_counts(ref, hyp)
    assert [unit for unit, _ in pairs if unit is not None] == ref
    assert [unit for _, unit in pairs if unit is not None] == hyp


@pytest.mark.parametrize(
    ("ref", "hyp", "expected"),
    [
        ("a b", "b c", (1, 1, 0)),  # not two substitutions: the tie goes to the insertion
        ("a b c", "a x c", (0, 0, 1)),
        ("a b c", "", (0, 3, 0)),
        ("", "a", (1, 0, 0)),
        ("a b c d", "b c d e", (1, 1, 0)),
        ("a b", "x y z", (1, 0, 2)),
        ("b c c a b b", "b c c d c d d a a", (3, 0, 3)),  # (4, 1, 1) if deletions won ties
    ],
)
def test_split_worked_out_by_hand(ref, hyp, expected):
    assert counts(align(ref.split(), hyp.split())) == expected


def test_alignment_is_readable():
    pairs = align(["the", "cat", "sat"], ["the", "hat", "sat", "down"])
    assert pairs == [("the", "the"), ("cat", "hat"), ("sat", "sat"), (None, "down")]
