import gzip
import json

import pytest

from toolkit.errors import ToolkitError
from toolkit.score.transcripts import read_transcripts


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


CUT = {
    "id": "u1",
    "supervisions": [{"id": "u1", "text": "A  B", "speaker": "ann"}],
    "type": "MonoCut",
}


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_cuts_give_texts_and_speakers(write, name):
    second_cut = {"id": "u2", "supervisions": [{"text": "C"}, {"text": "D", "speaker": "bob"}]}
    transcripts = read_transcripts(write(name, f"{json.dumps(CUT)}\n\n{json.dumps(second_cut)}\n"))
    assert (transcripts.form, transcripts.texts) == ("json", {"u1": "A B", "u2": "C D"})
    assert transcripts.speakers == {"u1": "ann", "u2": "bob"}


@pytest.mark.parametrize(
    "content",
    [
        {"u1": "a b", "u2": {"text": "c"}},
        [{"id": "u1", "text": "a b"}, {"audio": "speech/u2.flac", "text": " c"}],
        [{"utterance": "u1", "text": "a b"}, {"path": "u2.wav", "text": "c", "speaker": None}],
    ],
)
def test_records_and_mappings_give_texts_by_id(write, content):
    assert read_transcripts(write("x.json", content)).texts == {"u1": "a b", "u2": "c"}


@pytest.mark.parametrize("speaker", [3, ["ann"], {"name": "ann"}])
def test_a_speaker_without_a_name_is_none(write, speaker):
    transcripts = read_transcripts(write("x.json", [{"id": "u1", "text": "a", "speaker": speaker}]))
    assert (transcripts.texts, transcripts.speakers) == ({"u1": "a"}, {})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", "{", "x.json: not JSON"),
        ("x.json", "3", "neither a list of records nor a mapping"),
        ("x.json", [{"id": "u1"}], "x.json: record 1: 'u1' has no `text`"),
        ("x.json", [{"text": "a"}], "x.json: record 1: the record has no `id`"),
        ("x.json", {"u1": 3}, "x.json: 'u1': a record must be a mapping"),
        ("x.json", [{"id": "u", "text": "a"}] * 2, "record 2: the id 'u' occurs a second time"),
        ("x.json", [{"id": "u", "supervisions": 3}], "supervisions of 'u' are not a list"),
        ("x.jsonl", '{"id": "u", "text": "a"}\n{"id"', "x.jsonl:2: not JSON"),
        ("x.json", "[" * 100_000, "not JSON"),
    ],
)
def test_faults_name_the_place(write, name, content, message):
    with pytest.raises(ToolkitError, match=message):
        read_transcripts(write(name, content))


def test_damaged_gzip_is_an_error(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"hello world")[:-5])
    with pytest.raises(ToolkitError, match=r"x\.jsonl\.gz: cannot be read"):
        read_transcripts(path)
    path.write_bytes(b"plain")
    with pytest.raises(ToolkitError, match=r"x\.jsonl\.gz: cannot be read"):
        read_transcripts(path)


def test_a_file_has_the_id_that_it_has_in_a_folder(write, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t/talk 1.txt").write_text("a")
    records = read_transcripts(write("x.json", [{"audio": "far/talk 1.wav", "text": "a"}]))
    assert records.texts == read_transcripts(tmp_path / "t").texts == {"talk_1": "a"}


def test_a_name_beside_a_file_is_not_the_id(write):
    record = {"name": "Ann", "path": "clips/1.mp3", "text": "a"}
    assert read_transcripts(write("x.json", [record])).texts == {"1": "a"}


def test_an_error_without_text_is_left_out(write):
    records = [{"id": "a", "text": None, "error": "x"}, {"id": "b", "text": "B"}]
    assert read_transcripts(write("x.json", records)).texts == {"b": "B"}


def test_records_in_lines_need_no_suffix_of_their_own(write):
    path = write("a.json", '{"id": "u1", "text": "go on"}\n\n{"id": "u2", "text": "we will"}\n')
    assert read_transcripts(path).texts == {"u1": "go on", "u2": "we will"}


def test_nemos_manifests_have_references_and_hypotheses(write):
    lines = [
        {"audio_filepath": "/data/u 1.wav", "duration": 1.5, "text": "a b", "pred_text": "a c"},
        {"audio_filepath": "/data/u2.wav", "duration": 1.5, "text": "d", "pred_text": ""},
    ]
    path = write("manifest.json", "\n".join(map(json.dumps, lines)))
    assert read_transcripts(path).texts == {"u_1": "a b", "u2": "d"}
    assert read_transcripts(path, side="hyp").texts == {"u_1": "a c", "u2": ""}


WHISPER = {
    "text": " Hello  there.",
    "segments": [{"id": 0, "text": " Hello  there."}],
    "language": "en",
}


@pytest.mark.parametrize("name", ["a.b.json", "a.b.json.gz"])
def test_whispers_output_is_named_like_its_file(write, name):
    assert read_transcripts(write(name, WHISPER)).texts == {"a.b": "Hello there."}


def test_output_of_transcribe_keeps_its_id_in_any_file(write):
    result = {"name": "talk-1", "segments": [{"start": 0.0, "text": "HI"}, {"text": "YOU"}]}
    assert read_transcripts(write("out.json", result)).texts == {"talk-1": "HI YOU"}


def test_a_folder_of_json_has_a_recording_per_file(write, tmp_path):
    (tmp_path / "one").mkdir()
    write("one/a 1.json", WHISPER)
    write("b.json", {"text": "", "segments": []})
    transcripts = read_transcripts(tmp_path)
    assert (transcripts.form, transcripts.texts) == (
        "folder of .json",
        {"b": "", "one/a_1": "Hello there."},
    )
    write("c.json", {"u1": "a", "u2": "b"})
    with pytest.raises(
        ToolkitError, match=r"c.json has 2 transcripts, but each .* must have exactly one"
    ):
        read_transcripts(tmp_path)
    (tmp_path / "c.json").unlink()
    write("one/a_1.json", WHISPER)
    with pytest.raises(ToolkitError, match="another text has the same id 'one/a_1': rename one"):
        read_transcripts(tmp_path)


def test_final_utterances_of_a_stream_are_its_text(write):
    results = [("a", False, "on"), ("a", True, "one"), ("b", False, "x"), ("a", True, "two three")]
    lines = [json.dumps({"name": n, "final": final, "text": t}) for n, final, t in results]
    assert read_transcripts(write("x.jsonl", "\n".join(lines))).texts == {"a": "one two three"}


@pytest.mark.parametrize(
    "record",
    [
        {"audio_filepath": "x/u1.wav", "duration": 1.0, "text": "a b"},
        {"id": "u1", "text": "a b"},
        {"utterance": "u1", "pred_text": "a b", "text": "a"},
    ],
)
def test_a_file_of_one_record_is_no_mapping_of_ids(write, record):
    assert read_transcripts(write("x.json", record), side="hyp").texts == {"u1": "a b"}


def test_parts_of_a_file_are_named_by_where_they_begin(write):
    lines = [
        {"audio_filepath": "/d/a b.wav", "offset": 0.0, "text": "one", "pred_text": "on"},
        {"audio_filepath": "/d/a b.wav", "offset": 2.5, "text": "two", "pred_text": "two"},
        {"audio_filepath": "/d/y/c.wav", "text": "three", "pred_text": "tree"},
        {"audio_filepath": "/d/x/c.wav", "text": "four", "pred_text": "for"},
        {"audio_filepath": "/d/x/d.wav", "text": "five", "pred_text": "five"},
    ]
    path = write("m.json", "\n".join(map(json.dumps, lines)))
    names = ["/d/a_b@0", "/d/a_b@2.5", "/d/y/c", "/d/x/c", "d"]
    spoken = ["one", "two", "three", "four", "five"]
    assert read_transcripts(path).texts == dict(zip(names, spoken, strict=True))
    assert list(read_transcripts(path, side="hyp").texts) == names
    fewer = write("n.json", "\n".join(map(json.dumps, lines[1:2])))
    assert read_transcripts(fewer, side="hyp").texts == {"/d/a_b@2.5": "two"}


def test_names_do_not_depend_on_what_could_be_read(write):
    lines = [{"path": "one/a.wav", "error": "damaged"}, {"path": "two/a.wav", "text": "x"}]
    transcripts = read_transcripts(write("x.jsonl", "\n".join(map(json.dumps, lines))))
    assert transcripts.texts == {"two/a": "x"}


def test_a_record_without_a_hypothesis_is_skipped_when_others_have_one(write):
    lines = [{"id": "a", "text": "x", "pred_text": "y"}, {"id": "b", "text": "ref"}]
    path = write("m.jsonl", "\n".join(map(json.dumps, lines)))
    assert read_transcripts(path, side="hyp").texts == {"a": "y"}
    assert read_transcripts(path).texts == {"a": "x", "b": "ref"}
    path_without_hypotheses = write("p.jsonl", json.dumps(lines[1]))
    assert read_transcripts(path_without_hypotheses, side="hyp").texts == {"b": "ref"}


@pytest.mark.parametrize(
    "content",
    [
        {"segments": [{"text": " Hello"}, {"text": " there."}], "word_segments": []},
        {"result": {}, "transcription": [{"text": " Hello"}, {"text": " there."}]},
    ],
)
def test_parts_are_the_text_where_it_is_not_given(write, content):
    assert read_transcripts(write("r.json", content)).texts == {"r": "Hello there."}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"u1": "a", "u1": "b"}', "x.json: the key 'u1' occurs twice"),
        ('{"id": "u1", "text": "a", "pred_text": null}', "'u1' has no `pred_text`"),
        ('{"segments": [{"text": "a"}, {}]}', "'x' has no `text`"),
    ],
)
def test_text_that_would_be_lost_is_an_error(write, content, message):
    with pytest.raises(ToolkitError, match=message):
        read_transcripts(write("x.json", content), side="hyp")


def test_a_number_is_an_id(write):
    assert read_transcripts(write("x.jsonl", '{"id": 7, "text": "a"}')).texts == {"7": "a"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": "u1", "text": "a \ud83d b"}, r"an unpaired surrogate.*: correct the text"),
        ({"id": "u\ud83d", "text": "a"}, "an unpaired surrogate"),
        ({"id": "u\n1", "text": "a"}, "has a tab or line break.*: rename it"),
        ({"id": "u1", "text": "a", "speaker": "ann\tb"}, "'ann.tb' has a tab"),
    ],
)
def test_ids_and_texts_that_no_table_can_hold_are_errors(write, record, message):
    with pytest.raises(ToolkitError, match=rf"x\.jsonl:2: .*{message}"):
        read_transcripts(write("x.jsonl", f'{{"id": "u0", "text": "b"}}\n{json.dumps(record)}\n'))
    path = write("y.json", [{"id": "u 1", "text": "a \U0001f600\tb", "speaker": "ann b"}])
    assert read_transcripts(path).texts == {"u 1": "a \U0001f600 b"}


def test_texts_that_are_no_strings_are_an_error(write):
    with pytest.raises(ToolkitError, match=r"record 1: 'u1' has a `text` that is not a string"):
        read_transcripts(write("x.json", [{"id": "u1", "text": ["a", "b"]}]))
