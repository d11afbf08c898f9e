import pytest

from toolkit.kaldi.validate import data_dir_faults, data_dir_remarks

GOOD = {
    "utt2spk": "a-1 a\na-2 a\nb-1 b\n",
    "spk2utt": "a a-1 a-2\nb b-1\n",
    "text": "a-1 X\na-2 Y Z\nb-1 X\n",
    "wav.scp": "r1 /x.wav\nr2 flac -c -d -s y.flac |\n",
    "segments": "a-1 r1 0 1.5\na-2 r1 1.5 2e1\nb-1 r2 0.00 1\n",
    "utt2dur": "a-1 1.5\na-2 18.5\nb-1 1\n",
    "reco2dur": "r1 20\nr2 1\n",
}


@pytest.fixture
def write(tmp_path):
    def write(**changes):
        for name, content in {**GOOD, **changes}.items():
            (tmp_path / name.replace("__", ".")).write_text(content)
        return tmp_path

    return write


def test_a_good_directory_has_no_faults(write):
    assert data_dir_faults(write()) == []
    assert data_dir_remarks(write()) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text", "a-1 X\na-2\nb-1 X\n", "text:2: a-2 has no word"),
        ("wav__scp", "r1\nr2 x.wav\n", "wav.scp:1: r1 has no file or command"),
        ("spk2utt", "a a-1 a-2\nb b-1\nc\n", "spk2utt:3: c has no utterance"),
        ("segments", "a-1 r1 0 1\na-2 r1 0 x\nb-1 r2 0 1\n", "segments:2: a time is not a number"),
        ("utt2dur", "a-1 1.5\na-2 x\nb-1 1\n", "utt2dur:2: a time is not a number: a-2 x"),
    ],
)
def test_accepted_but_unusable_content_is_a_remark(write, name, content, message):
    folder = write(**{name: content})
    assert data_dir_faults(folder) == []
    (remark,) = data_dir_remarks(folder)
    assert message in remark


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("utt2spk", "a-1 a\nb-1 b\na-2 a\n", "utt2spk:3: 'a-2' is not in the order of LC_ALL=C"),
        ("utt2spk", "a-1 a\na-1 a\n", "utt2spk:2: 'a-1' occurs twice"),
        ("utt2spk", "a-1 b\na-2 b\nb-1 a\n", "not in the order of the speakers at a-1"),
        ("utt2spk", "a-1 a\na-2\nb-1 b\n", "utt2spk:2: not `utterance speaker`"),
        ("utt2spk", "", "utt2spk: is empty"),
        ("utt2spk", "a-1 a\na-2 a\nb-1 b", "utt2spk: the last line has no newline"),
        ("spk2utt", "a a-1\nb b-1\n", "spk2utt: does not have"),
        ("text", "a-1 X\na-2 <s> Y\nb-1 X\n", "text:2: a-2 has the word <s>"),
        ("text", "a-1 X\nb-1 X\n", "text: lacks 1 entries, such as a-2"),
        ("text", "a-1 X\n\na-2 Y\nb-1 X\n", "text:2: '' is not in the order"),
        ("wav__scp", "r1 ~/x.wav\nr2 y.wav\n", "wav.scp:1: no file, or a path that begins with ~"),
        ("wav__scp", "r1 x.wav\n", "wav.scp: lacks 1 entries, such as r2"),
        ("segments", "a-1 r1 0 1\na-2 r1 2 1\nb-1 r2 0 1\n", "segments:2: not"),
        ("segments", "a-1 r1 0 1\na-2 r1 0 -1\nb-1 r2 0 1\n", "segments:2: not"),
        ("utt2dur", "a-1 1.5\na-2 0\nb-1 1\n", "utt2dur:2: not a number above 0"),
        ("reco2dur", "r1 20\nr2 1\nr3 1\n", "reco2dur: has 1 unexpected entries, such as r3"),
        ("feats__scp", "a-1 x.ark:3\n", "feats.scp: lacks 2 entries"),
        ("cmvn__scp", "a x.ark:3\n", "cmvn.scp: lacks 1 entries, such as b"),
    ],
)
def test_each_fault_is_found_and_named(write, name, content, message):
    faults = data_dir_faults(write(**{name: content}))
    assert any(message in fault for fault in faults), faults


def test_files_that_are_missing_or_no_text(write):
    folder = write()
    (folder / "text").write_bytes(b"a-1 \xff\n")
    assert f"{folder / 'text'}: is not UTF-8" in data_dir_remarks(folder)
    (folder / "text").unlink()
    assert data_dir_faults(folder) == [f"{folder}/text: no such file"]
    assert data_dir_remarks(folder) == []


def test_without_segments_recordings_are_utterances(write):
    folder = write(wav__scp="a-1 x\na-2 y\nb-1 z\n", reco2dur="a-1 1\na-2 1\nb-1 1\n")
    (folder / "segments").unlink()
    assert data_dir_faults(folder) == []


def test_an_infinite_number_of_frames_is_a_fault(write):
    (fault,) = data_dir_faults(write(utt2num_frames="a-1 1e999\na-2 5\nb-1 5\n"))
    assert "utt2num_frames:1: not a whole number above 0: a-1 1e999" in fault


def test_a_line_of_other_white_space_is_named(write):
    folder = write()
    (folder / "utt2spk").write_bytes(b"\x0b \r\n\r \x0b\n")
    assert any("at \x0b" in fault for fault in data_dir_faults(folder))
