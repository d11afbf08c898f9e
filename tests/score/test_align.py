import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.score.alignment import align, align_all

WORDS = st.lists(st.sampled_from("abcd"), max_size=12)
LONG = st.lists(st.sampled_from("abcdefgh"), min_size=15, max_size=45)
EDIT = st.tuples(st.integers(0, 200), st.lists(st.sampled_from("abcxyz"), max_size=3))


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


def kaldi_counts(ref, hyp, substitution=1, gap=1, diagonal_wins=False):
    """Carry (cost, ins, del, sub) through the whole table, by the order of comparisons in Kaldi."""
    previous = [(r * gap, 0, r, 0) for r in range(len(ref) + 1)]
    for word in hyp:
        cost, ins, dele, sub = previous[0]
        row = [(cost + gap, ins + 1, dele, sub)]
        for r, reference in enumerate(ref, start=1):
            diagonal = previous[r - 1][0] + substitution * (reference != word)
            insertion, deletion = previous[r][0] + gap, row[r - 1][0] + gap
            cheapest = diagonal <= insertion and diagonal <= deletion
            if (diagonal_wins and cheapest) or (diagonal < insertion and diagonal < deletion):
                _, ins, dele, sub = previous[r - 1]
                row.append((diagonal, ins, dele, sub + (reference != word)))
            elif deletion < insertion:
                _, ins, dele, sub = row[r - 1]
                row.append((deletion, ins, dele + 1, sub))
            else:
                _, ins, dele, sub = previous[r]
                row.append((insertion, ins + 1, dele, sub))
        previous = row
    return previous[-1][1:]


def sclite_counts(ref, hyp):
    """Likewise, by the costs and the order of comparisons in sclite."""
    return kaldi_counts(ref, hyp, substitution=4, gap=3, diagonal_wins=True)


def test_every_short_pair_has_the_fewest_errors_and_kaldis_split():
    sequences = [s for n in range(5) for s in itertools.product("ab", repeat=n)]
    for ref, hyp in itertools.product(sequences, repeat=2):
        counted = counts(align(ref, hyp))
        assert sum(counted) == fewest_errors(ref, hyp), (ref, hyp)
        assert counted == kaldi_counts(ref, hyp), (ref, hyp)
        assert counts(align(ref, hyp, "sclite")) == sclite_counts(ref, hyp), (ref, hyp)


@settings(deadline=None)
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
def test_errors_split_as_worked_out_by_hand(ref, hyp, expected):
    assert counts(align(ref.split(), hyp.split())) == expected


@pytest.mark.parametrize(
    ("ref", "hyp", "expected"),
    [
        ("a b", "b c", (1, 1, 0)),  # 6 against 8 for two substitutions
        ("a b", "x y", (0, 0, 2)),  # 8 against 12 for two of each
        ("a x y", "p q a", (0, 0, 3)),  # 12 as two of each: substitutions win
        ("a b c", "d e a b", (2, 1, 0)),
        ("a b c", "", (0, 3, 0)),
    ],
)
def test_errors_split_as_sclite_does_worked_out_by_hand(ref, hyp, expected):
    assert counts(align(ref.split(), hyp.split(), "sclite")) == expected


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(LONG, st.lists(EDIT, max_size=12)), max_size=4))
def test_long_pairs_with_few_errors_are_those_of_the_whole_table(pairs):
    refs, hyps = [], []
    for ref, edits in pairs:
        hyp = list(ref)
        for place, word in edits:
            hyp[place % 40 : place % 40 + place % 3] = word
        refs.append(ref)
        hyps.append(hyp)
    for weights, expected in (("kaldi", kaldi_counts), ("sclite", sclite_counts)):
        _, error_counts = align_all(refs, hyps, weights)
        pairs = zip(refs, hyps, strict=True)
        assert [tuple(row) for row in error_counts] == [expected(*pair) for pair in pairs]


def test_characters_of_texts_align_as_units():
    texts = ["ab c", "\ud800x", ""], ["b cd", "x\U0001f600", "q"]
    steps, error_counts = align_all(*texts)
    units = [list(map(list, side)) for side in texts]
    assert (steps, error_counts.tolist()) == (align_all(*units)[0], align_all(*units)[1].tolist())
    assert error_counts.tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 0]]


def test_weights_by_another_name_are_refused():
    with pytest.raises(ValueError, match="kaldi, sclite"):
        align(["a"], ["b"], "nist")


def test_alignment_is_readable():
    pairs = align(["the", "cat", "sat"], ["the", "hat", "sat", "down"])
    assert pairs == [("the", "the"), ("cat", "hat"), ("sat", "sat"), (None, "down")]
