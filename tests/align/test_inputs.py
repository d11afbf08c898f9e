import pytest

from toolkit.align.inputs import InputError, read_inputs


@pytest.fixture
def folder(tmp_path):
    """Make empty files: folder("a/x.wav", ...) -> the folder."""

    def make(*names):
        for name in names:
            path = tmp_path / "audio" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path / "audio"

    return make


def by_name(recordings):
    return {r.utterance: r for r in recordings}


def test_names_are_paths_or_stems(folder, tmp_path):
    audio = folder("x.wav", "ann/y.FLAC", "ann/z.v2.mp3", "bob/y2.ogg", "notes.pdf", ".x.wav")
    text = tmp_path / "text"
    text.write_text("x one\nann/y two words\nz.v2 three\n\ny2\tfour  five \n")
    recordings = by_name(read_inputs(audio, text))
    assert {u: r.text for u, r in recordings.items()} == {
        "ann/y": "two words",
        "x": "one",
        "y2": "four  five",
        "z.v2": "three",
    }
    assert [r.audio.name for r in recordings.values()] == ["y.FLAC", "x.wav", "y2.ogg", "z.v2.mp3"]
    assert all(not r.fault for r in recordings.values())
    assert {u: r.speaker for u, r in recordings.items()} == {
        "ann/y": "ann",
        "x": "x",
        "y2": "bob",
        "z.v2": "ann",
    }


def test_unmatched_audio_and_texts_become_faults(folder, tmp_path):
    audio = folder("x.wav", "a/y.wav", "b/y.wav", "silent.wav")
    text = tmp_path / "text"
    text.write_text("x one\ny two\ngone three\n")
    recordings = by_name(read_inputs(audio, text))
    assert sorted(recordings) == ["gone", "silent", "x", "y"]
    assert "no audio" in recordings["gone"].fault
    assert "several" in recordings["y"].fault
    assert "a/y.wav" in recordings["y"].fault
    assert "no text" in recordings["silent"].fault
    assert not recordings["x"].fault


def test_a_text_that_is_not_utf8_faults_only_its_recording(folder, tmp_path):
    audio = folder("a.wav", "b.wav", "c.wav")
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_bytes("Tür".encode("cp1252"))
    (texts / "b.lab").write_bytes("Tür".encode("utf-16"))
    (texts / "c.txt").write_bytes("Tür".encode())
    recordings = by_name(read_inputs(audio, texts))
    assert rf"{texts / 'a.txt'}:1: `T\xfcr`" in recordings["a"].fault
    assert "iconv" in recordings["a"].fault
    assert [(recordings[name].text, recordings[name].fault) for name in "bc"] == [("Tür", "")] * 2
    lines = tmp_path / "text"
    lines.write_bytes(b"a T\xfcr\n" + "b Tür\nc Tür\n".encode())
    recordings = by_name(read_inputs(audio, lines))
    assert rf"{lines}:1 is not UTF-8: `a T\xfcr`" in recordings["a"].fault
    assert "iconv" not in recordings["a"].fault
    assert [(recordings[name].text, recordings[name].fault) for name in "bc"] == [("Tür", "")] * 2


def test_a_video_is_used_unless_an_audio_file_has_its_name(folder, tmp_path):
    audio = folder("x.wav", "x.mp4", "ann/y.M4A")
    (tmp_path / "text").write_text("ann/y two\nx three\n")
    recordings = by_name(read_inputs(audio, tmp_path / "text"))
    assert {name: recording.audio for name, recording in recordings.items()} == {
        "ann/y": audio / "ann/y.M4A",
        "x": audio / "x.wav",
    }
    assert not any(recording.fault for recording in recordings.values())


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "test.jsonl"])
def test_tables_and_manifests_are_refused_as_texts(folder, tmp_path, name):
    audio = folder("x.wav")
    (tmp_path / name).write_text('{"id": "x"}\n')
    with pytest.raises(InputError, match="is a table or a manifest: give a file with lines"):
        read_inputs(audio, tmp_path / name)


def test_many_recordings_of_one_folder_count_as_one_speaker_with_a_note(folder, tmp_path, caplog):
    audio = folder(*(f"all/{n}.wav" for n in range(10)))
    text, speakers = tmp_path / "text", tmp_path / "utt2spk"
    text.write_text("".join(f"{n} one\n" for n in range(10)))
    speakers.write_text("".join(f"{n} s{n % 2}\n" for n in range(10)))
    read_inputs(audio, text, speakers)
    read_inputs(audio, text, by_speaker=False)
    assert not caplog.text
    read_inputs(audio, text)
    assert "all 10 recordings are in one folder and are treated as one speaker" in caplog.text


def test_a_name_with_other_separators_is_suggested(folder, tmp_path):
    audio = folder("Іван/019.wav", "ann/1.wav")
    text = tmp_path / "text"
    text.write_text("Іван-019 one\nann-2 two\n", encoding="utf-8")
    recordings = by_name(read_inputs(audio, text))
    assert recordings["Іван-019"].fault.endswith("did you mean Іван/019?")
    assert "did you mean" not in recordings["ann-2"].fault


def test_a_folder_of_texts_beside_the_audio(folder, tmp_path):
    audio = folder("a/one two.wav", "a/three.wav", "a/one two.TextGrid")
    (audio / "a/one two.txt").write_text("Hello,\nworld\n", encoding="utf-8")
    (audio / "a/three.lab").write_text("\ufeffagain", encoding="utf-8")
    recordings = by_name(read_inputs(audio, audio))
    assert {u: r.text for u, r in recordings.items()} == {
        "a/one_two": "Hello, world",
        "a/three": "again",
    }
    assert recordings["a/one_two"].audio == audio / "a/one two.wav"


def test_a_speaker_list_overrides_folder_names(folder, tmp_path):
    audio = folder("a/x.wav", "a/y.wav")
    (tmp_path / "text").write_text("x one\ny two\n")
    (tmp_path / "utt2spk").write_text("x Ann\n")
    recordings = by_name(read_inputs(audio, tmp_path / "text", tmp_path / "utt2spk"))
    assert [recordings["x"].speaker, recordings["y"].speaker] == ["Ann", "a"]


def test_a_speaker_may_be_listed_under_the_stem_or_the_path(folder, tmp_path):
    audio = folder("a/x.wav")
    (tmp_path / "text").write_text("a/x one\n")
    (tmp_path / "utt2spk").write_text("x Ann\n")
    assert read_inputs(audio, tmp_path / "text", tmp_path / "utt2spk")[0].speaker == "Ann"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x one\nx two\n", r"text:2 .*x"),
        ("\n", "contains no transcripts"),
        (None, "no such file or folder"),
    ],
)
def test_unusable_texts_are_refused(folder, tmp_path, content, message):
    if content is not None:
        (tmp_path / "text").write_text(content)
    with pytest.raises(InputError, match=message):
        read_inputs(folder("x.wav"), tmp_path / "text")


def test_names_that_differ_only_in_white_space_fault_only_these_files(folder, tmp_path):
    audio = folder("acoustic corpus.wav", "acoustic_corpus.wav", "c.wav")
    for name in ("acoustic corpus", "acoustic_corpus", "c"):
        (audio / f"{name}.lab").write_text("one")
    first, second, unique = read_inputs(audio, audio)
    assert first.utterance == second.utterance == "acoustic_corpus"
    assert "2 recordings would be called acoustic_corpus: rename one" in first.fault
    assert second.fault == first.fault
    assert (unique.utterance, unique.fault) == ("c", "")


def test_a_missing_audio_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        read_inputs(tmp_path / "none", tmp_path)


def test_names_that_share_an_output_path_fault_only_these_files(folder, tmp_path):
    audio = folder("\xa0../x.wav", "x.wav", "y.wav")
    recordings = by_name(read_inputs(audio, _texts_of(tmp_path, audio)))
    for name in ("x", "../x"):
        assert "would have the same path: rename one" in recordings[name].fault
    assert not recordings["y"].fault


def _texts_of(tmp_path, audio):
    for path in audio.rglob("*.wav"):
        text = tmp_path / "texts" / path.relative_to(audio).with_suffix(".txt")
        text.parent.mkdir(parents=True, exist_ok=True)
        text.write_text("one")
    return tmp_path / "texts"


def test_names_with_spaces_match_those_that_transcribe_writes(folder, tmp_path):
    audio = folder("my talk.wav", "day one/b c.wav", "day one/d.wav")
    text, speakers = tmp_path / "text", tmp_path / "speakers"
    text.write_text("my_talk one\nday_one/b_c two\nd three\n")
    speakers.write_text("my_talk ann\nday_one/b_c bob\nd eve\n")
    recordings = read_inputs(audio, text, speakers)
    assert [(r.utterance, r.text, r.speaker, r.fault) for r in recordings] == [
        ("d", "three", "eve", ""),
        ("day_one/b_c", "two", "bob", ""),
        ("my_talk", "one", "ann", ""),
    ]
    assert [r.audio.name for r in recordings] == ["d.wav", "b c.wav", "my talk.wav"]
    folder("my_talk.wav")
    (ambiguous,) = [r for r in read_inputs(audio, text) if r.utterance == "my_talk"]
    assert "several audio files have this name" in ambiguous.fault
