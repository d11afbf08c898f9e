import json

import pytest

from toolkit.errors import ToolkitError
from toolkit.score.nist.sclite_reports import FILES as SCLITE_FILES
from toolkit.score.nist.sclite_reports import trn_remarks, write_sclite_reports
from toolkit.score.report import (
    FILES,
    kaldi_lines,
    kaldi_speaker_lines,
    numbers,
    speaker_lines,
    utterance_lines,
    write_score_folder,
)
from toolkit.score.wer import score

REFS = {"u1": "the cat sat", "u2": "on the mat", "u3": "", "u4": "so"}
HYPS = {"u1": "the hat sat down", "u2": "on mat", "u3": "oh"}
SPEAKERS = {"u1": "ann", "u2": "bob", "u3": "carl", "u4": "bob"}


def write_folder(result, folder):
    """Write all files of `toolkit score --out`."""
    write_sclite_reports(result, folder)
    write_score_folder(result, folder)


def test_the_table_has_rows_by_speaker_then_sums_then_statistics():
    lines = list(speaker_lines(score(REFS, HYPS, speakers=SPEAKERS)))
    rows = {name: cells for name, *cells in map(str.split, lines)}
    expected = {  # sentences, words, correct, sub, del, ins, errors; percent of each, and s.err
        "ann": "1 3 2 1 0 1 2 66.7 33.3 0.0 33.3 66.7 100.0",
        "bob": "2 4 2 0 2 0 2 50.0 0.0 50.0 0.0 50.0 100.0",
        "carl": "1 0 0 0 0 1 1 0.0 0.0 0.0 0.0 0.0 100.0",
        "Sum/Avg": "4 7 4 1 2 2 5 57.1 14.3 28.6 28.6 71.4 100.0",
        "Mean": "38.9 11.1 16.7 11.1 38.9 100.0",
        "Median": "50.0 0.0 0.0 0.0 50.0 100.0",
    }
    for name, row in expected.items():
        assert rows[name] == row.split(), name
    assert rows["S.D."][-1] == "0.0"
    assert len({len(line) for line in lines}) == 1


def test_rows_by_utterance():
    lines = list(utterance_lines(score(REFS, HYPS, speakers=SPEAKERS)))
    assert lines[1:] == [
        "u1\tann\t3\t2\t1\t0\t1\t2\t66.67\t",
        "u2\tbob\t3\t2\t0\t1\t0\t1\t33.33\t",
        "u3\tcarl\t0\t0\t0\t0\t1\t1\t-\t",
        "u4\tbob\t1\t0\t0\t1\t0\t1\t100.00\tno hypothesis",
    ]
    assert len(lines[0].split("\t")) == 10
    assert list(utterance_lines(score(REFS, HYPS)))[1].split("\t")[1] == "-"


def test_lines_of_an_utterance_are_kaldis():
    # The example in the documentation of Kaldi's script, with *** for <eps>.
    reference = "word-A word-B word-C word-D word-E"
    hypothesis = "word-A word-A word-B word-D word-X"
    (utterance,) = score({"UTT-A": reference}, {"UTT-A": hypothesis}).utterances
    assert list(kaldi_lines(utterance)) == [
        "UTT-A ref  word-A    ***   word-B  word-C  word-D  word-E",
        "UTT-A hyp  word-A  word-A  word-B    ***   word-D  word-X",
        "UTT-A op      C       I       C       D       C       S  ",
        "UTT-A #csid 3 1 1 1",
    ]


def test_lines_by_speaker_are_kaldis():
    references = {"UTT-A": "word-A word-B word-C word-D word-E"}
    hypotheses = {"UTT-A": "word-A word-A word-B word-D word-X"}
    lines = list(kaldi_speaker_lines(score(references, hypotheses, speakers={"UTT-A": "A"})))
    names = ("#SENT", "#WORD", "Corr", "Sub", "Ins", "Del", "Err", "S.Err")
    assert lines[0] == f"{'SPEAKER':15} id  " + "".join(f" {name:>10}" for name in names)
    raw = "".join(f"{n:11d}" for n in (1, 5, 3, 1, 1, 1, 3, 1))
    rates = "".join(f"{x:11.2f}" for x in (60, 20, 20, 20, 60, 100))
    assert lines[1:3] == [f"{'A':15} raw{raw}", f"{'A':15} sys{1:11d}{5:11d}{rates}"]
    assert lines[3] == f"{'SUM':15} raw{raw}"


def test_the_folder_holds_everything_and_its_numbers_agree(tmp_path):
    result = score(REFS, HYPS, speakers=SPEAKERS, normaliser="basic-3")
    write_folder(result, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "hyp.pra", "hyp.raw", "hyp.sgml", "hyp.sys", "hyp.trn", "per_speaker.txt", "per_spk",
        "per_utt", "per_utterance.tsv", "ref.trn",
        "report.txt", "score.json", "wer.txt",
    ]  # fmt: skip
    assert names == sorted([*FILES, *SCLITE_FILES])
    assert "Normaliser: basic-3; alignment weights: kaldi" in (tmp_path / "wer.txt").read_text()
    assert json.loads((tmp_path / "score.json").read_text()) == json.loads(
        json.dumps(numbers(result))
    )
    rows = (tmp_path / "per_utterance.tsv").read_text().splitlines()[1:]
    assert sum(int(row.split("\t")[7]) for row in rows) == result.errors
    csid = [line.split() for line in (tmp_path / "per_utt").read_text().splitlines()]
    sums = [sum(int(row[i]) for row in csid if row[1] == "#csid") for i in (2, 3, 4, 5)]
    assert sums == [4, 1, 2, 2]
    assert (tmp_path / "hyp.trn").read_text().splitlines()[3] == "(u4)"


def test_characters_have_no_kaldi_tables(tmp_path):
    write_folder(score(REFS, HYPS, "char"), tmp_path)
    assert not (tmp_path / "per_utt").exists()
    assert (tmp_path / "per_utterance.tsv").read_text().startswith("utterance\tspeaker\tchars")


@pytest.mark.parametrize(("unit", "speakers"), [("word", None), ("char", SPEAKERS)])
def test_a_folder_has_no_tables_of_an_earlier_score(tmp_path, unit, speakers):
    later = score(REFS, HYPS, unit, speakers=speakers)
    write_folder(score(REFS, HYPS, speakers=SPEAKERS), tmp_path / "again")
    (tmp_path / "again/notes").write_text("mine")
    write_folder(later, tmp_path / "again")
    write_folder(later, tmp_path / "once")
    again, once = ({path.name for path in (tmp_path / n).iterdir()} for n in ("again", "once"))
    assert again == once | {"notes"}


def test_words_that_trn_files_treat_as_marks_are_reported():
    assert list(trn_remarks(score({"u1": "a b-"}, {"u1": "(a) b"}))) == []
    for word in ("@", "a*", "a;tag", "{", "a}"):
        (remark,) = trn_remarks(score({"u1": "a b", "u2": "c"}, {"u1": "a b", "u2": word}))
        assert remark.startswith("1 utterances")
        assert "first u2" in remark


@pytest.mark.parametrize(("id", "hyp"), [("u 1", "a"), ("u1", ";; a")])
def test_nothing_is_written_where_a_trn_file_cannot_be(tmp_path, id, hyp):
    with pytest.raises(ToolkitError, match=id):
        write_folder(score({id: "a"}, {id: hyp}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
