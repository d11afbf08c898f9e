from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.score.inputs import InputReader, names_of, speaker_of_id


@pytest.fixture
def files(tmp_path):
    contents = {
        "ref": "s1-1 a b\ns2-1 c\n",
        "hyp.trn": "a x (s1-1)\nc (s2-1)\n",
        "x.stm": "r 1 ann 0 1 a\n",
        "x.ctm": "r 1 0.1 0.2 a\nq 1 0 1 b\n",
        "utt2spk": "s1-1 ann\ns2-1 bob\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def test_a_pair_of_files_is_read(files):
    sides = InputReader().read(files / "ref", files / "hyp.trn")
    assert (sides.refs["s1-1"], sides.hyps["s1-1"], sides.speakers) == ("a b", "a x", None)
    assert sides.notes == (
        f"Read {files / 'ref'} as text, {files / 'hyp.trn'} as trn (--format forces one).",
    )


def test_references_that_are_not_utf8_are_not_scored(files):
    (files / "ref").write_bytes(b"s1-1 a b\ns2-1 c\xc3\n")
    sides = InputReader().read(files / "ref", files / "hyp.trn")
    assert (dict(sides.refs), dict(sides.hyps)) == ({"s1-1": "a b"}, {"s1-1": "a x"})
    note = rf"1 of 2 references are not UTF-8 and are not scored: {files / 'ref'}:2: `s2-1 c\xc3`"
    assert f"Note: {note}" in sides.notes[-1]
    texts = files / "texts"
    texts.mkdir()
    (texts / "s1-1.txt").write_text("a b\n")
    (texts / "s2-1.txt").write_bytes(b"c\xc3\n")
    sides = InputReader().read(texts, files / "hyp.trn")
    assert (dict(sides.refs), dict(sides.hyps)) == ({"s1-1": "a b"}, {"s1-1": "a x"})


def test_speakers_of_a_file_of_ids_or_of_the_references(files):
    pair = files / "ref", files / "hyp.trn"
    assert InputReader(speakers=str(files / "utt2spk")).read(*pair).speakers["s2-1"] == "bob"
    assert InputReader(speakers="id").read(*pair).speakers == {"s1-1": "s1", "s2-1": "s2"}
    (files / "data").mkdir()
    (files / "data" / "text").write_text((files / "ref").read_text())
    (files / "data" / "utt2spk").write_text("s1-1 ann\n")
    assert InputReader().read(files / "data", files / "hyp.trn").speakers is None  # not of all
    (files / "data" / "utt2spk").write_text("s1-1 ann\ns2-1 bob\n")
    assert InputReader().read(files / "data", files / "hyp.trn").speakers["s1-1"] == "ann"


def test_recordings_are_scored_by_time(files):
    sides = InputReader().read(files / "x.stm", files / "x.ctm")
    assert list(sides.hyps.values()) == ["a"]
    assert list(sides.speakers.values()) == ["ann"]
    assert "1 words recognised in q 1" in sides.notes[1]


def test_an_stm_needs_a_ctm_and_errors_name_files(files):
    with pytest.raises(ToolkitError, match=r"ref: the reference .*x\.stm is an STM file"):
        InputReader().read(files / "x.stm", files / "ref")
    (files / "x.stm").write_text("r 1 ann 0\n")
    with pytest.raises(ToolkitError, match=r"x\.stm:1: the line has 4 fields"):
        InputReader().read(files / "x.stm", files / "x.ctm")
    (files / "x.stm").write_text("\n")
    with pytest.raises(ToolkitError, match=r"x\.stm, .*x\.ctm: the STM file has no segment"):
        InputReader().read(files / "x.stm", files / "x.ctm")


@pytest.mark.parametrize(
    ("id", "speaker"), [("a-b_c", "a"), ("a_b", "a"), ("a_b-c", "a_b"), ("a-1/b_c", "a-1")]
)
def test_the_speaker_is_read_from_an_id(id, speaker):
    assert speaker_of_id(id) == speaker


@pytest.mark.parametrize("id", ["abc", "-a"])
def test_ids_without_a_speaker_are_an_error(id):
    with pytest.raises(ToolkitError, match="file with lines `utterance speaker`"):
        speaker_of_id(id)


def test_paths_are_named_by_the_parts_that_differ():
    assert names_of([Path("d/dev/text"), Path("d/test/text")]) == ["dev/text", "test/text"]
    assert names_of([Path("a"), Path("b c")]) == ["a", "b_c"]
    assert names_of([Path("a"), Path("a")]) == ["1", "2"]
    assert names_of([Path("a/b"), Path("a/b/c")]) == ["b", "b/c"]


def test_hypotheses_have_ids_where_references_have_them(tmp_path):
    (tmp_path / "ref").write_text("u1 HELLO\nu2 BYE\n")
    (tmp_path / "hyp").write_text("hello HELLO\nu2 BYE\n")
    assert InputReader().read(tmp_path / "ref", tmp_path / "hyp").hyps["hello"] == "HELLO"
    (tmp_path / "ref").write_text("the cat\n")
    (tmp_path / "hyp").write_text("the hat\n")
    assert InputReader().read(tmp_path / "ref", tmp_path / "hyp").hyps == {"1": "the hat"}


def test_texts_of_a_folder_are_found_by_path_or_by_name(tmp_path):
    for name in ("one/a", "two/b"):
        (tmp_path / f"texts/{name}.txt").parent.mkdir(parents=True)
        (tmp_path / f"texts/{name}.txt").write_text("X\n")
    (tmp_path / "hyp").write_text("one/a X\n")
    read = lambda: InputReader().read(tmp_path / "texts", tmp_path / "hyp").refs  # noqa: E731
    assert list(read()) == ["one/a", "two/b"]
    (tmp_path / "hyp").write_text("b X\n")
    assert list(read()) == ["a", "b"]
    (tmp_path / "texts/two/a.txt").write_text("Y\n")
    assert list(read()) == ["one/a", "two/a", "two/b"]


IDS = [f"{a}{b}" for a in "abc" for b in "xyzw"]


def test_ids_without_digits_are_found_by_what_the_other_side_has(tmp_path):
    ref, hyp, ctm = tmp_path / "ref", tmp_path / "hyp", tmp_path / "x.ctm"
    ref.write_text("anna HELLO WORLD\nbert GOOD DAY\n")
    hyp.write_text("bert GOOD DAYS\nanna HELLO WORLD\n")
    ctm.write_text("bert 1 0.1 0.2 GOOD\n")
    sides = InputReader().read(ref, hyp)
    assert sides.notes == (f"Read {ref} as text, {hyp} as text (--format forces one).",)
    assert sides.hyps == {"bert": "GOOD DAYS", "anna": "HELLO WORLD"}
    assert InputReader().read(ref, ctm).refs["bert"] == "GOOD DAY"
    # In the same order they may be words: of many lines hardly.
    hyp.write_text("anna HELLO WORLD\nbert GOOD DAYS\n")
    sides = InputReader().read(ref, hyp)
    assert (sides.refs["2"], sides.hyps["2"]) == ("bert GOOD DAY", "bert GOOD DAYS")
    assert sides.notes[1].endswith("the same first words. If these are ids, give --format text.")
    for path in (ref, hyp):
        path.write_text("".join(f"{id} A\n" for id in IDS))
    assert list(InputReader().read(ref, hyp).refs) == IDS


@pytest.mark.parametrize(
    ("refs", "hyps"),
    [("a x\na y\n", "a x\na y\n"), ("a x\nb y\n", "b x\nc y\n"), ("a x\n", "a y\n")],
    ids=["repeated", "others", "one"],
)
def test_lines_without_ids_stay_plain(tmp_path, refs, hyps):
    (tmp_path / "ref").write_text(refs)
    (tmp_path / "hyp").write_text(hyps)
    sides = InputReader().read(tmp_path / "ref", tmp_path / "hyp")
    assert sides.refs["1"] == "a x"
    assert len(sides.notes) == 1


def test_names_that_differ_only_in_white_space_become_numbers():
    assert names_of([Path("d/x y/text"), Path("d/x_y/text")]) == ["1", "2"]


def test_the_suffixes_ctm_and_stm_override_the_format_option(files):
    (files / "one.ctm").write_text("s1-1 1 0.5 0.2 b\ns1-1 1 0 0.2 a\n")
    sides = InputReader("text").read(files / "ref", files / "one.ctm")
    assert (sides.hyps, sides.marked) == ({"s1-1": "a b"}, True)
    assert list(InputReader("text").read(files / "x.stm", files / "x.ctm").hyps.values()) == ["a"]
    with pytest.raises(ToolkitError, match=r"x\.stm: an STM file is scored against a CTM file"):
        InputReader("text").read(files / "ref", files / "x.stm")


def test_utterances_without_a_speaker_are_reported(files):
    (files / "data").mkdir()
    (files / "data" / "text").write_text((files / "ref").read_text())
    (files / "data" / "utt2spk").write_text("s1-1 ann\n")
    (*_, note) = InputReader().read(files / "data", files / "hyp.trn").notes
    assert "names no speaker for 1 of 2 utterances, first s2-1" in note
    (*_, note) = InputReader(speakers="id").read(files / "data", files / "hyp.trn").notes
    assert "no speaker for" not in note


def test_ids_that_differ_only_in_normal_form_are_the_same(files):
    (files / "composed").write_text("\u00e9-1 a\n\u00e9-2 b\n\u00e9-3 c\n", encoding="utf-8")
    (files / "decomposed").write_text("e\u0301-1 a\n\u00e9-2 b\n\u00e9-9 c\n", encoding="utf-8")
    sides = InputReader().read(files / "composed", files / "decomposed")
    assert sides.hyps == {"\u00e9-1": "a", "\u00e9-2": "b", "\u00e9-9": "c"}
    assert sides.notes[-1].startswith("Note: 1 utterance ids differ only in Unicode's normal form")
    (files / "both").write_text("\u00e9-1 a\ne\u0301-1 b\n", encoding="utf-8")
    sides = InputReader().read(files / "both", files / "decomposed")
    assert sides.hyps["e\u0301-1"] == "a"
