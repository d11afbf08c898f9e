import pytest

from toolkit.errors import ToolkitError
from toolkit.score.nist.formats import StmSegment, read_stm, write_trn
from toolkit.score.transcripts import read_transcripts


def test_an_stm_is_parsed_line_by_line(tmp_path):
    path = tmp_path / "x.stm"
    path.write_text(
        ";; comment\n\nr1 A ann 0.5 1 <o,f0,male> Hello  there\nr1 B bob 1 2\n"
        "r1 B bob 2 3 { a /  @ }\n"
    )
    assert read_stm(path) == [
        StmSegment("r1", "A", "ann", 0.5, 1.0, "Hello there", "<o,f0,male>"),
        StmSegment("r1", "B", "bob", 1.0, 2.0, ""),
        StmSegment("r1", "B", "bob", 2.0, 3.0, "{ a / @ }"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("r1 A ann 0.5", "x.stm:2: the line has 4 fields"),
        ("r1 A ann zero 1 a", "x.stm:2: 'zero' is not a number of seconds"),
        ("r1 A ann -1 1 a", "'-1' is not a number of seconds"),
        ("r1 A ann 0 inf a", "'inf' is not"),
        ("r1 A ann 2 1 a", "ends at 1, before it starts at 2"),
    ],
)
def test_faults_of_an_stm_name_file_and_line(tmp_path, line, message):
    path = tmp_path / "x.stm"
    path.write_text(f"r1 A ann 0 1 a\n{line}\n")
    with pytest.raises(ToolkitError, match=message):
        read_stm(path)


def test_a_trn_file_survives_writing_and_reading(tmp_path):
    texts = {"spk-2": "A (B) c", "spk-1": ""}
    write_trn(texts, tmp_path / "x.trn")
    assert read_transcripts(tmp_path / "x.trn").texts == texts
    for id in ("a b", "a(b", "", "a)"):
        with pytest.raises(ToolkitError, match="rename the utterance"):
            write_trn({id: "x"}, tmp_path / "y.trn")
    with pytest.raises(ToolkitError, match="'u3': its text begins with ;;"):
        write_trn({"u3": " ;; x"}, tmp_path / "y.trn")


@pytest.mark.parametrize("time", ["1_0", "nan", "inf", "１", "0x1"])
def test_times_are_numbers_as_other_programs_read_them(tmp_path, time):
    (tmp_path / "x.stm").write_text(f"r 1 s 0 {time} a\n", encoding="utf-8")
    with pytest.raises(ToolkitError, match=r"x\.stm:1: .* is not a number of seconds"):
        read_stm(tmp_path / "x.stm")
