import gzip
import re

import pytest

from toolkit.errors import ToolkitError
from toolkit.score.transcripts import TranscriptError, read_speakers, read_transcripts


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "file"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("content", "form", "texts"),
    [
        ("u-1 THE  CAT\nu-2\n", "text", {"u-1": "THE CAT", "u-2": ""}),
        ("\ufeffu1 A\r\n\r\nu2\tB\r\n", "text", {"u1": "A", "u2": "B"}),
        (
            "THE CAT (u1)\n(u2)\nA (B) (spk-u3)",
            "trn",
            {"u1": "THE CAT", "u2": "", "spk-u3": "A (B)"},
        ),
        ("the cat\n\nsat\n", "plain", {"1": "the cat", "2": "", "3": "sat"}),
        ("un\tcaf\u00e9\u2028noir\n", "plain", {"1": "un caf\u00e9\u2028noir"}),
        ("", "plain", {}),
    ],
)
def test_format_is_detected(write, content, form, texts):
    transcripts = read_transcripts(write(content))
    assert (transcripts.form, transcripts.texts) == (form, texts)


def test_format_can_be_forced(write):
    path = write("mary the cat\njohn sat\n")
    assert read_transcripts(path).form == "plain"
    assert read_transcripts(path, "text").texts == {"mary": "the cat", "john": "sat"}
    path = write("u1 THE CAT\n")
    assert read_transcripts(path, "plain").texts == {"1": "u1 THE CAT"}


@pytest.mark.parametrize(
    ("content", "form", "line", "message"),
    [
        ("u1 A\nu2 B\nu1 C\n", "auto", 3, "'u1' already occurred on line 1"),
        ("A (u1)\nB (u1)\n", "auto", 2, "'u1' already occurred on line 1"),
        ("A (u1)\nB u2\n", "trn", 2, "in parentheses"),
        ("u1 A\n B C\n", "text", 2, "white space instead of an utterance id"),
        (b"u1 A\nu2 \xff\n", "auto", 2, r"not UTF-8: `u2 \\xff`"),
        (b"u1 A\nu2 \x00\n", "auto", 2, "zero byte"),
    ],
)
def test_faults_name_file_and_line(write, content, form, line, message):
    path = write(content)
    with pytest.raises(ToolkitError, match=re.escape(f"{path}:{line}: ") + f".*{message}"):
        read_transcripts(path, form)


@pytest.mark.parametrize(
    ("content", "texts", "faulty"),
    [
        (b"u1 A\nu2 \xff\nu3 C\n", {"u1": "A", "u3": "C"}, "u2"),
        (b"A (u1)\nB \xff (u2)\n", {"u1": "A"}, "u2"),
        (b"the cat\n\xc3\n", {"1": "the cat"}, "2"),
        (b"u1 A\nu\xff B\n", {"u1": "A"}, "line 2"),
    ],
)
def test_lines_that_are_not_utf8_can_be_left_out(write, content, texts, faulty):
    path = write(content)
    transcripts = read_transcripts(path, leave_out_faulty=True)
    assert transcripts.texts == texts
    assert list(transcripts.faulty) == [faulty]
    assert transcripts.faulty[faulty].startswith(f"{path}:2: `")


def test_too_many_lines_that_are_not_utf8_are_refused(write):
    path = write("u1 Tür\n".encode("cp1252"))
    with pytest.raises(ToolkitError, match=r":1: 1 of 1 lines are not UTF-8. The first is .*iconv"):
        read_transcripts(path, leave_out_faulty=True)


def test_unclear_format_is_an_error_that_names_the_option(write):
    with pytest.raises(ToolkitError, match=r"line 1 .* line 2 .*--format text, trn or plain"):
        read_transcripts(write("u1 the cat\nthree cats\n"))


def test_absent_file_is_named(tmp_path):
    with pytest.raises(ToolkitError, match="nowhere: no such file"):
        read_transcripts(tmp_path / "nowhere")


def test_speakers_are_read_and_each_must_be_one_name(write):
    assert read_speakers(write("u1 ann\nu2\tbob\n")) == {"u1": "ann", "u2": "bob"}
    for content, speakers_text in (("u1 ann\nu2\n", "''"), ("u1 ann\nu2 bob lee\n", "'bob lee'")):
        with pytest.raises(
            ToolkitError, match=f"'u2' must be followed by one speaker, not by {speakers_text}"
        ):
            read_speakers(write(content))


def test_comments_in_trn_files_are_skipped(write):
    transcripts = read_transcripts(write(";; sclite's comment\nA (u1)\n\nB (u2)\n"))
    assert (transcripts.form, transcripts.texts) == ("trn", {"u1": "A", "u2": "B"})


def test_words_of_a_ctm_follow_each_other_in_time(tmp_path):
    path = tmp_path / "ctm"
    path.write_text("u2 1 0.5 0.1 b\nu1 1 0.0 0.2 x 0.9\nu2 1 0.1 0.2 a\n")
    transcripts = read_transcripts(path)
    assert (transcripts.form, transcripts.texts) == ("ctm", {"u1": "x", "u2": "a b"})
    path.write_text("u1 A 0 1 a\nu1 B 0 1 b\n")
    with pytest.raises(ToolkitError, match="'u1' has the channels A and B"):
        read_transcripts(path)
    path.write_text("u1 A zero 1 a\n")
    with pytest.raises(ToolkitError, match="ctm:1: start 'zero'"):
        read_transcripts(path)


def test_an_stm_is_not_read_as_transcripts(tmp_path):
    (tmp_path / "x.stm").write_text("r 1 s 0 1 a\n")
    with pytest.raises(ToolkitError, match=r"x\.stm: an STM file is scored against a CTM"):
        read_transcripts(tmp_path / "x.stm")


def test_folders_of_kaldi_and_of_text_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "u2.txt").write_text("two\nlines\n")
    (tmp_path / "u1.txt").write_text("one")
    transcripts = read_transcripts(tmp_path)
    assert transcripts.texts == {"a/u2": "two lines", "u1": "one"}
    (tmp_path / "a" / "u3.lab").write_text("three")
    assert read_transcripts(tmp_path).texts == transcripts.texts | {"a/u3": "three"}
    (tmp_path / "text").write_text("mary the cat\n")
    (tmp_path / "utt2spk").write_text("mary ann\n")
    transcripts = read_transcripts(tmp_path)
    assert (transcripts.form, transcripts.texts) == ("text", {"mary": "the cat"})
    assert transcripts.speakers == {"mary": "ann"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(ToolkitError, match=r"neither a file `text` nor any \.txt"):
        read_transcripts(tmp_path / "empty")


def test_ids_of_a_folder_of_texts_have_no_white_space(tmp_path):
    (tmp_path / "a b.txt").write_text("X\n")
    assert list(read_transcripts(tmp_path).texts) == ["a_b"]
    (tmp_path / "a_b.txt").write_text("Z\n")
    with pytest.raises(ToolkitError, match=r"a_b\.txt: another text has the same id 'a_b'"):
        read_transcripts(tmp_path)


def test_a_table_is_not_read_as_transcripts(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("audio,text\na-1.wav,a word\n")
    with pytest.raises(
        ToolkitError, match=r"x\.csv is a table.*data/test\.jsonl, or set the format with --format"
    ):
        read_transcripts(path)
    assert read_transcripts(path, "plain").texts["1"] == "audio,text"


def test_librispeechs_folders_have_a_line_for_each_utterance(tmp_path):
    chapter = tmp_path / "84" / "121"
    chapter.mkdir(parents=True)
    (chapter / "84-121.trans.txt").write_text("84-121-0000 GO ON\n84-121-0001 WE WILL\n")
    transcripts = read_transcripts(tmp_path)
    assert transcripts.texts == {"84-121-0000": "GO ON", "84-121-0001": "WE WILL"}
    (tmp_path / "b.trans.txt").write_text("84-121-0001 AGAIN\n")
    with pytest.raises(TranscriptError, match="'84-121-0001' already has a text"):
        read_transcripts(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.TextGrid", "a TextGrid is not read by this command: .* STM or CTM"),
        ("x.srt", "a file of subtitles is not read"),
        ("x.vtt.gz", "a file of subtitles is not read"),
        ("x.csv.gz", "is a table"),
    ],
)
def test_subtitles_tables_and_textgrids_are_refused(tmp_path, name, message):
    content = b'File type = "ooTextFile"\nintervals [1]:\ntext = "so"\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(TranscriptError, match=message):
        read_transcripts(tmp_path / name)
    assert read_transcripts(tmp_path / name, "plain").texts["3"] == 'text = "so"'
