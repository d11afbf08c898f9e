import pytest
import soundfile

from toolkit.corpus.check.exclusions import Exclusion, read_exclusions, write_exclusions
from toolkit.corpus.manifest import (
    ManifestError,
    audio_of,
    make_cut,
    mark_no_speaker,
    read_cuts,
    recording_or_fault,
    speaker_of,
    text_of,
    write_cuts,
)


def cut_of(path, id="u1", **options):
    recording, fault = recording_or_fault(path, id)
    fault = fault and ("unreadable-audio", fault)
    return make_cut(id, recording, " A  B\t", "s1", fault=fault, **options)


@pytest.mark.parametrize("suffix", [".flac", ".wav"])
def test_header_is_read(audio, tmp_path, suffix):
    path = audio(tmp_path / f"a{suffix}", seconds=0.5, rate=8000, channels=2)
    recording, fault = recording_or_fault(path, "a")
    assert fault is None
    assert (recording.sampling_rate, recording.num_samples, recording.duration) == (8000, 4000, 0.5)
    assert recording.num_channels == 2


def test_sphere_header_is_read(tmp_path):
    path = tmp_path / "a.sph"
    soundfile.write(str(path), [0.1] * 1600, 16000, format="NIST", subtype="PCM_16")
    recording, fault = recording_or_fault(path, "a")
    assert fault is None
    assert recording.num_samples == 1600
    assert len(soundfile.read(str(path))[0]) == 1600


def test_unreadable_files_get_a_fault_with_the_reason(tmp_path):
    (tmp_path / "empty.flac").touch()
    (tmp_path / "text.wav").write_text("no audio")
    (tmp_path / "bare.raw").write_bytes(bytes(100))
    for name, reason in (
        ("empty.flac", "empty"),
        ("text.wav", "readable"),
        ("no.wav", "no such"),
        ("bare.raw", "raw samples without a header"),
    ):
        recording, fault = recording_or_fault(tmp_path / name, "a")
        assert recording.num_samples == 0
        assert reason in fault
        assert name in fault


def test_round_trip_keeps_everything_and_the_same_bytes(audio, tmp_path):
    good = cut_of(audio(tmp_path / "a.flac"))
    broken = cut_of(tmp_path / "none.flac", id="ü2")
    for name in ("one.jsonl", "two.jsonl"):
        assert write_cuts([good, broken, good], tmp_path / name) == 3
    assert read_cuts(tmp_path / "one.jsonl") == [good, broken, good]
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert (text_of(good), speaker_of(good)) == ("A B", "s1")
    assert audio_of(good) == str(tmp_path / "a.flac")
    assert broken.duration == 0
    assert broken.custom["fault"] == "unreadable-audio"


def test_a_line_that_is_no_cut_is_named(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"id": 1\n')
    with pytest.raises(ManifestError, match=r"train\.jsonl:1"):
        read_cuts(tmp_path / "train.jsonl")


@pytest.mark.parametrize(
    ("start", "end", "expected", "word"),
    [
        (0.25, 0.75, (0.25, 0.5), None),
        (0.25, -1, (0.25, 0.75), None),
        (0.25, None, (0.25, 0.75), None),
        (0.25, 1.4, (0.25, 0.75), "trimmed-segment"),
        (0.25, 1.01, (0.25, 0.75), None),
        (0.25, 1.011, (0.25, 0.75), "trimmed-segment"),
        (0.25, 1.6, (0.0, 0.0), "bad-segment"),
        (1.2, 1.3, (0.0, 0.0), "bad-segment"),
        (0.5, 0.5, (0.0, 0.0), "bad-segment"),
        (-0.1, 0.5, (0.0, 0.0), "bad-segment"),
        (1.2, -1, (0.0, 0.0), "bad-segment"),
    ],
)
def test_segments_of_a_one_second_recording(audio, tmp_path, start, end, expected, word):
    cut = cut_of(audio(tmp_path / "a.flac"), start=start, end=end)
    assert (cut.start, cut.duration) == expected
    custom = cut.custom or {}
    assert word in (custom.get("fault"), custom.get("note"))
    assert (word is None) == (custom == {})


def test_exclusions_leave_out_one_copy_in_one_split(audio, tmp_path):
    cuts = [cut_of(audio(tmp_path / f"{id}.flac"), id=id) for id in ("a", "b", "b", "c")]
    for split in ("train", "dev"):
        write_cuts(cuts, tmp_path / f"{split}.jsonl")
    excluded = tmp_path / "excluded.tsv"
    write_exclusions(
        [
            Exclusion("train", "b", 2, "duplicate-id: a\treason\nin lines"),
            Exclusion("train", "a", 1, "x"),
        ],
        excluded,
    )
    assert read_exclusions(excluded, "train") == {("a", 1), ("b", 2)}
    assert [cut.id for cut in read_cuts(tmp_path / "train.jsonl", excluded)] == ["b", "c"]
    assert len(read_cuts(tmp_path / "dev.jsonl", excluded)) == 4


def test_a_file_whose_name_is_not_utf8_gets_a_fault_that_says_so(tmp_path):
    """The manifest is UTF-8, and could not name it."""
    path = tmp_path / "a\udcff.wav"
    path.write_bytes(b"")
    write_cuts([cut_of(path)], tmp_path / "cuts.jsonl")
    (cut,) = read_cuts(tmp_path / "cuts.jsonl")
    assert "not UTF-8" in str(cut.custom)


def test_where_no_speaker_is_named_the_recording_or_its_channel_is(audio, tmp_path):
    cut = cut_of(audio(tmp_path / "a.wav", channels=2), "r")
    mark_no_speaker(cut, "x.csv:2 names none")
    assert speaker_of(cut) == "r"
    reason = "x.csv:2 names none: its recording counts as its speaker"
    assert cut.custom == {"mix_channels": True, "no_speaker": reason}
    cut.channel, cut.custom = 1, None
    mark_no_speaker(cut, "x.csv:2 names none")
    assert speaker_of(cut) == "r-1"
