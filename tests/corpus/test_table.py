import contextlib
import csv
import io
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.corpus.manifest import (
    ManifestError,
    audio_of,
    channel_name,
    channel_of,
    speaker_of,
    text_of,
)
from toolkit.corpus.table import COLUMNS, read_rows, read_table


@pytest.fixture
def table(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "mine.csv"
        path.write_bytes(text.encode(encoding))
        return path

    return write


def rows_of(path):
    return [dict(row.values) for row in read_rows(path)]


def test_cuts_by_part(table, audio, tmp_path):
    audio(tmp_path / "wav" / "a.wav", seconds=1.5)
    elsewhere = audio(tmp_path / "else" / "b.flac", seconds=3.0)
    path = table(
        "Speaker ID,Path,Sentence,Split,Start,End,age\n"
        'ann,wav/a.wav,"Hello, world",train,,,30\n'
        f"bob,{elsewhere},two,VALID,0.5,2,\n"
        "\n"
        f"bob,{elsewhere},three,other,2,-1,\n"
    )
    parts = read_table(path)
    assert list(parts) == ["train", "dev", "other"]
    (a,), (b,), (c,) = parts.values()
    assert (a.id, a.duration, text_of(a), speaker_of(a)) == ("a", 1.5, "Hello, world", "ann")
    assert (b.id, b.start, b.duration) == ("b-0.5-2", 0.5, 1.5)
    assert (c.id, c.start, c.duration) == ("b-2--1", 2.0, 1.0)
    assert audio_of(b) == str(elsewhere)
    assert b.recording_id == c.recording_id


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_delimiters_and_byte_order_mark(table, delimiter, encoding):
    lines = [("audio", "text"), ("a.wav", "Füße 東京"), ("b.wav", "x, y")]
    if delimiter == ",":
        lines[2] = ("b.wav", '"x, y"')
    path = table("\r\n".join(delimiter.join(line) for line in lines), encoding)
    assert rows_of(path) == [
        {"audio": "a.wav", "text": "Füße 東京"},
        {"audio": "b.wav", "text": "x, y"},
    ]


def test_quotation_marks_in_a_table_with_tabs(table):
    path = table('audio\ttext\na.wav\t"yes" she said\nb.wav\t"he said ""no"""\nc.wav\t"open\n')
    assert [row["text"] for row in rows_of(path)] == ['"yes" she said', 'he said "no"', '"open']


STRAY = [
    ('b.wav,"he said "no""\n', "expected after"),
    ('b.wav,"open\n', "is a quotation mark open"),
    ('b.wav,"open\n\n', "is a quotation mark open"),
]


@pytest.mark.parametrize(("line", "message"), STRAY)
@pytest.mark.parametrize("following", ["", 'd.wav,"four, five"\ne.wav,six\n'])
def test_a_stray_quotation_mark_costs_its_line_alone(table, line, message, following):
    path = table("audio,text\na.wav,one\n" + line + "c.wav,three\n" + following)
    cuts = {cut.id: cut for cut in read_table(path)["train"]}
    assert list(cuts) == ["a", "b", "c", *(["d", "e"] if following else [])]
    assert [text_of(cuts[id]) for id in cuts if id != "b"] == [
        *("one", "three"),
        *(["four, five", "six"] if following else []),
    ]
    assert cuts["b"].custom["fault"] == "bad-line"
    assert re.search(rf":3: .*{message}", cuts["b"].custom["fault_detail"])


def test_a_mark_that_another_line_closes_costs_its_line_alone(table):
    path = table('audio,text,speaker\na.wav,"one,x\nb.wav,two,x\nc.wav,three,x"\nd.wav,"a\nb",x\n')
    rows = list(read_rows(path))
    assert [row["audio"] for row in rows] == ["a.wav", "b.wav", "c.wav", "d.wav"]
    assert [row.fault and row.fault[0] for row in rows] == ["bad-line", None, None, None]
    assert [row["text"] for row in rows[1:]] == ["two", "three", "a\nb"]


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(CELL, CELL, CELL), max_size=6))
def test_rows_written_by_csv_are_read(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("file_name", "transcript", "spk"), *lines])
    path.write_text(file.getvalue(), encoding="utf-8", newline="")
    rows = [(row["audio"], row["text"], row["speaker"]) for row in read_rows(path)]
    stripped = [tuple(cell.strip() for cell in line) for line in lines]
    assert rows == [line for line in stripped if any(line)]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(string.printable, max_size=200).map(str.encode))
def test_anything_else_is_refused_clearly(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    for content in (data, b"audio,text,start\n" + data, b"audio\ttext\n" + data):
        path.write_bytes(content)
        with contextlib.suppress(ManifestError):
            for cut in (cut for part in read_table(path).values() for cut in part):
                assert cut.custom["fault"]


def test_every_spelling_is_known_in_any_case(table):
    for role, names in COLUMNS.items():
        for name in names:
            required = [column for column in ("audio", "text") if column != role]
            names = [name.upper().replace("_", " "), *required]
            (row,) = rows_of(table(",".join(names) + "\n" + ",".join("xyz"[: len(names)])))
            assert row[role] == "x"


def test_ids_tell_files_of_the_same_name_apart(table):
    parts = read_table(table("audio,text\nann/001.wav,a\nbob/001.wav,b\nbob/my 2.wav,c\n"))
    assert [cut.id for cut in parts["train"]] == ["ann-001", "bob-001", "bob-my_2"]


def test_recordings_of_files_that_differ_in_their_suffix_have_ids_of_their_own(table, audio):
    path = table("audio,text,id\na.wav,ONE,1\na.flac,TWO,2\n./a.wav,ONE,3\nb c.wav,TWO,4\n")
    for name in ("a.wav", "a.flac", "b c.wav"):
        audio(path.parent / name)
    recording_ids = [cut.recording_id for cut in read_table(path)["train"]]
    assert recording_ids == ["a.wav", "a.flac", "a.wav", "b_c"]


def test_ids_of_the_table_and_recordings_as_speakers(table):
    (a, b) = read_table(table("id,audio,text\nu 1,a.wav,A\nu2,b.wav,B\n"))["train"]
    assert (a.id, b.id) == ("u_1", "u2")
    assert (speaker_of(a), speaker_of(b)) == ("a", "b")
    assert "mine.csv has no column called speaker" in a.custom["no_speaker"]


def test_an_empty_speaker_is_warned_of_and_normal_forms_make_no_other(table):
    path = table("audio,text,speaker\na.wav,A,Bj\u00f6rn\nb.wav,B,Bjo\u0308rn\nc.wav,C,\n")
    (a, b, c) = read_table(path)["train"]
    assert speaker_of(a) == speaker_of(b) == "Bj\u00f6rn"
    assert speaker_of(c) == "c"
    assert "mine.csv:4" in c.custom["no_speaker"]
    assert "no_speaker" not in a.custom


@pytest.mark.parametrize("name", ["a\u0308.wav", "\u00e4.wav", "in\\\u00e4.wav", "in/a\u0308.wav"])
def test_files_are_found_by_other_normal_forms_and_slashes(table, audio, tmp_path, name):
    (tmp_path / "in").mkdir()
    for folder in (tmp_path, tmp_path / "in"):
        audio(folder / "\u00e4.wav")
    (cut,) = read_table(table(f"audio,text\n{name},A\n"))["train"]
    assert "fault" not in (cut.custom or {})
    assert cut.id == "\u00e4"


def test_audio_is_looked_up_in_common_voices_clips_folder(table, audio, tmp_path):
    (tmp_path / "clips").mkdir()
    for name in ("clips/one.wav", "clips/two.wav", "two.wav"):
        audio(tmp_path / name)
    text = "client_id\tpath\tsentence\nann\tone.wav\tA\nann\ttwo.wav\tB\nann\tno.wav\tC\n"
    in_clips, in_both, missing = read_table(table(text))["train"]
    assert in_clips.recording.sources[0].source == str(tmp_path / "clips/one.wav")
    assert in_both.recording.sources[0].source == str(tmp_path / "two.wav")
    assert missing.custom["fault"].startswith("missing-audio")


def test_faults_are_left_to_the_check(table, audio, tmp_path):
    audio(tmp_path / "a.wav")
    path = table(
        "audio,text,start,end\na.wav,ok,0,1\n,no file,,\nno.wav,b,,\na.wav,c,x,2\na.wav,d,nan,\n"
    )
    cuts = read_table(path)["train"]
    faults = [(cut.custom or {}).get("fault") for cut in cuts]
    assert faults == [None, "missing-audio", "missing-audio", "bad-segment", "bad-segment"]
    assert "mine.csv:3" in cuts[1].custom["fault_detail"]


def test_a_column_picks_channels(table, audio, tmp_path):
    for name, channels in (("mono", 1), ("stereo", 2), ("music", 2)):
        audio(tmp_path / f"{name}.wav", channels=channels)
    path = table(
        "audio,text,Channel,start\nmono.wav,a,B,0\nstereo.wav,b,A,0\nstereo.wav,c,2,0.5\n"
        "music.wav,d,,0\n"
    )
    cuts = read_table(path)["train"]
    faults = [(cut.custom or {}).get("fault") for cut in cuts]
    assert faults == [None] * 4
    assert [channel_of(cut) for cut in cuts] == [0, 0, 1, None]
    assert [channel_name(cut) for cut in cuts] == ["B", "A", "2", "1"]
    assert cuts[3].custom == {"mix_channels": True, "no_speaker": cuts[3].custom["no_speaker"]}


def test_a_channel_that_a_file_lacks_is_a_fault(table, audio, tmp_path):
    audio(tmp_path / "a.wav", channels=2)
    path = table("audio,text,channel,id\na.wav,x,3,u\na.wav,y,,v\na.wav,z,middle,w\na.wav,o,1,o\n")
    *cuts, good = read_table(path)["train"]
    assert {cut.custom["fault"] for cut in cuts} == {"no-channel"}
    details = [cut.custom["fault_detail"] for cut in cuts]
    file = f"in {tmp_path}/a.wav"
    assert details == [
        f"no channel 3, but 2 channels {file}",
        f"names no channel, but others name one of the 2 channels {file}",
        f"no channel middle, but 2 channels {file}",
    ]
    assert channel_of(good) == 0


def test_channels_count_from_0_where_one_is_0(table, audio, tmp_path):
    audio(tmp_path / "a.wav", channels=2)
    path = table("audio,text,channel,id\na.wav,x,0,u\na.wav,y,1,v\n")
    assert [channel_of(cut) for cut in read_table(path)["train"]] == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first line is empty"),
        ("wav/a.wav,hello\n", "no column 'audio'"),
        ("audio,speaker\n", "no column 'text'"),
        ("LJ001|Printing, in|the same\n", "no column 'audio'.*[|] is not a separator"),
        ('{"audio_filepath": "a.wav", "text": "a"}\n', "it holds JSON, like NeMo's"),
        ("audio,text,sentence\n", "'text' and 'sentence' both mean 'text'"),
        ("audio,text\na.wav,hello, world\n", ":2: 3 fields, but the first line names 2"),
        ('audio,text\na.wav,"hello\n', "is a quotation mark open"),
        ("audio,text\n\n", "no line below the header"),
        ("audio,text,split\na.wav,hello,\n", ":2: the split is empty"),
    ],
)
def test_invalid_tables_are_refused(table, text, message):
    with pytest.raises(ManifestError, match=message):
        read_table(table(text))


def test_the_left_and_the_right_channel(table, audio, tmp_path):
    audio(tmp_path / "a.wav", channels=2)
    path = table("audio,text,channel,id\na.wav,x,Left,u\na.wav,y,R,v\na.wav,z,middle,w\n")
    cuts = read_table(path)["train"]
    assert [channel_of(cut) for cut in cuts[:2]] == [0, 1]
    assert cuts[2].custom["fault"] == "no-channel"


def test_a_table_of_excel_on_windows(table, audio, tmp_path):
    """With a line for Excel, semicolons, decimal commas and paths with drive and backslashes."""
    audio(tmp_path / "wav/ann/1.wav", seconds=2.0)
    path = table(
        "sep=;\r\nDatei;File Name;Text;Start;End\r\n1;C:\\Rec\\ann\\1.wav;Äpfel;0,25;1,5\r\n"
        "2;C:\\Rec\\ann\\2.wav;Birnen;;\r\n3;C:\\Rec\\ann\\1.wav;a;b;1\r\n",
        "utf-8-sig",
    )
    cuts = read_table(path, (f"C:\\Rec={tmp_path}/wav",))["train"]
    assert (cuts[0].start, cuts[0].end, text_of(cuts[0])) == (0.25, 1.5, "Äpfel")
    assert [cut.custom.get("fault") for cut in cuts] == [None, "missing-audio", "bad-segment"]
    assert f"{path}:5: not seconds" in cuts[2].custom["fault_detail"]
    cuts = read_table(path)["train"]
    assert audio_of(cuts[0]) == "C:\\Rec\\ann\\1.wav"


def test_a_few_lines_that_do_not_fit_the_header_are_faults_of_their_utterances(table):
    lines = ["a.wav,no split", *(f"{n}.wav,text {n},ann,dev" for n in range(30))]
    lines[5] = "5.wav,a comma, unquoted,ann,dev"
    path = table("\n".join(["audio,text,speaker,split", *lines, "id alone"]) + "\n")
    (cuts,) = [read_table(path)["dev"]]
    assert len(cuts) == 32
    faults = {
        cut.id: cut.custom["fault_detail"] for cut in cuts if cut.custom["fault"] == "bad-line"
    }
    assert faults.keys() == {"a", "5", "id alone".replace(" ", "_")}
    assert f"{path}:7: 5 fields, but the first line names 4 columns; put a text with" in faults["5"]
    path = table("audio,text\n" + "".join(f"{n}.wav,one, two\n" for n in range(40)) + "a.wav,b\n")
    with pytest.raises(ManifestError, match=":2: 3 fields, but the first line names 2"):
        read_table(path)


def test_lines_of_another_encoding_are_faults_of_their_utterances(table):
    path = table("audio,text\na.wav,Füße\nb.wav,plain\n")
    path.write_bytes(path.read_bytes() + "c.wav,Tür\nd.wav,so\ne.wav,öfter\n".encode("cp1252"))
    cuts = {cut.id: cut for cut in read_table(path)["train"]}
    faults = {
        id: cut.custom["fault_detail"]
        for id, cut in cuts.items()
        if cut.custom["fault"] == "not-utf8"
    }
    assert faults == {"c": rf"{path}:4: `T\xfcr`", "e": rf"{path}:6: `\xf6fter`"}
    assert text_of(cuts["a"]) == "Füße"


def test_other_encodings(table):
    (cut,) = read_table(table("audio,text\na.wav,Füße\n", "latin1"))["train"]
    assert cut.custom["fault"] == "not-utf8"
    assert "iconv -f cp1252" in cut.custom["fault_detail"]
    (cut,) = read_table(table("audio,text\na.wav,Füße\n", "utf-16"))["train"]
    assert text_of(cut) == "Füße"
    for text in ("audio,text\na.wav,Füße\n", "audio\0,text\na.wav,b\na.wav,c\n"):
        with pytest.raises(ManifestError, match="UTF-16 or is not a text"):
            read_table(table(text, "utf-16-le"))


def test_a_zero_byte_costs_its_line_alone(table):
    path = table("audio,text\na.wav,one\nb.wav,t\0wo\nc.wav,three\n")
    cuts = {cut.id: cut for cut in read_table(path)["train"]}
    assert {id: text_of(cut) for id, cut in cuts.items()} == {"a": "one", "b": "", "c": "three"}
    assert cuts["b"].custom["fault"] == "not-utf8"
    assert cuts["b"].custom["fault_detail"].startswith(rf"{path}:3: `t\x00wo`")
