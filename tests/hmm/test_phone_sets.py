import pytest

from toolkit.hmm.phone_sets import (
    PhoneParts,
    PhoneSetError,
    RootGroup,
    base_phone_groups,
    default_roots,
    read_roots,
    split_phone,
)
from toolkit.hmm.topology import Topology

MARKED = Topology(
    ("SIL", "SIL_B", "AH0_B", "AH1_B", "AH0_S", "T_B", "T_E"), silence_phones=("SIL", "SIL_B")
)
PLAIN = Topology(("SIL", "SPN", "A", "B", "C"))


@pytest.mark.parametrize(
    ("symbol", "parts"),
    [
        ("AH", ("AH", "", "")),
        ("AH0", ("AH", "0", "")),
        ("T_E", ("T", "", "E")),
        ("AH1_B", ("AH", "1", "B")),
        ("2", ("2", "", "")),
        ("_S", ("_S", "", "")),
        ("2_S", ("2", "", "S")),
        ("T_e", ("T_e", "", "")),
    ],
)
def test_symbols_are_split_into_base_stress_and_position(symbol, parts):
    assert split_phone(symbol) == PhoneParts(*parts)


def test_variants_of_a_phone_are_a_family_and_share_roots():
    assert base_phone_groups(MARKED) == [(1, 2), (3, 4, 5), (6, 7)]
    assert default_roots(MARKED) == [
        RootGroup((1, 2), False),
        RootGroup((3, 4, 5), True),
        RootGroup((6, 7), True),
    ]


def test_silence_is_no_variant_of_speech():
    topology = Topology(("A", "A0"), silence_phones=("A0",))
    assert base_phone_groups(topology) == [(1,), (2,)]


def test_roots_file(tmp_path):
    path = tmp_path / "roots.txt"
    path.write_text("not-shared not-split SPN SIL\n\nshared split C A\nshared not-split B\n")
    assert read_roots(path, PLAIN) == [
        RootGroup((1, 2), False),
        RootGroup((3, 5), True),
        RootGroup((4,), False),
    ]


def test_silence_is_not_split_even_if_its_line_says_so(tmp_path):
    path = tmp_path / "roots.txt"
    path.write_text("shared split SIL\nshared split SPN\nshared split A B C\n")
    assert [group.split for group in read_roots(path, PLAIN)] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shared split SIL SPN\nshard split A B C\n", "roots.txt:2: expected `shared split"),
        ("shared splits SIL\n", "roots.txt:1: expected"),
        ("shared split\n", "roots.txt:1: expected"),
        ("shared split a\n", "roots.txt:1: no phone 'a'"),
        ("shared split SILL\n", "roots.txt:1: no phone 'SILL'; did you mean SIL"),
        ("shared split A B\nshared split B\n", "roots.txt:2: B already has a root in line 1"),
        ("shared split SIL A\n", "roots.txt:1: silence and speech"),
        ("shared split SIL SPN\nshared split A\n", "roots.txt: no root for B C"),
    ],
)
def test_faults_in_a_roots_file_are_located(tmp_path, text, message):
    path = tmp_path / "roots.txt"
    path.write_text(text)
    with pytest.raises(PhoneSetError, match=message):
        read_roots(path, PLAIN)
