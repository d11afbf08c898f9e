from pathlib import Path

import pytest
import soundfile
import torch
from lhotse import AudioSource

from tests.dummies import dummy_recording
from toolkit.corpus.manifest import (
    ManifestError,
    audio_of,
    channel_name,
    channel_of,
    make_cut,
    recording_or_fault,
    speaker_of,
    text_of,
)
from toolkit.features.cut_audio import load_cut_audio
from toolkit.kaldi.data_dir import read_kaldi_dir
from toolkit.kaldi.export import export_data_dir
from toolkit.kaldi.validate import data_dir_faults


@pytest.fixture
def cut(audio, tmp_path):
    def cut(id, speaker, text="A B", start=0.0, end=None, recording=None, channels=1, name=None):
        path = audio(tmp_path / (name or f"{recording or id}.wav"), 2.0, channels=channels)
        header, _ = recording_or_fault(path, recording or id)
        return make_cut(id, header, text, speaker, start, end)

    return cut


def described(cuts):
    return {c.id: (speaker_of(c), text_of(c), c.start, c.duration, c.recording_id) for c in cuts}


def test_whole_recordings_come_back_as_they_were(cut, tmp_path):
    cuts = [cut("b-1", "b"), cut("a-2", "a", "C"), cut("a-1", "a")]
    done = export_data_dir(cuts, tmp_path / "out")
    assert (done.utterances, done.speakers, done.renamed) == (3, 2, False)
    assert data_dir_faults(tmp_path / "out") == []
    assert not (tmp_path / "out/segments").exists()
    assert (tmp_path / "out/utt2dur").read_text() == "a-1 2\na-2 2\nb-1 2\n"
    back = read_kaldi_dir(tmp_path / "out")
    assert described(back) == described(cuts)
    export_data_dir(back, tmp_path / "again")
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_parts_of_recordings_come_back_as_they_were(cut, tmp_path):
    cuts = [
        cut("a-1", "a", start=0.25, end=1.5, recording="r"),
        cut("a-2", "a", start=1.5, recording="r"),
    ]
    export_data_dir(cuts, tmp_path / "out")
    assert (tmp_path / "out/segments").is_file()
    assert (tmp_path / "out/reco2dur").read_text() == "r 2\n"
    assert described(read_kaldi_dir(tmp_path / "out")) == described(cuts)


def test_ids_out_of_the_speakers_order_get_their_speakers_as_prefixes(cut, tmp_path):
    done = export_data_dir([cut("1", "zoe"), cut("2", "amy"), cut("3", "zoe")], tmp_path / "out")
    assert done.renamed
    assert (tmp_path / "out/utt_map").read_text() == "amy-2 2\nzoe-1 1\nzoe-3 3\n"
    assert (tmp_path / "out/wav.scp").read_text().startswith("amy-2 ")
    assert data_dir_faults(tmp_path / "out") == []
    export_data_dir([cut("amy-1", "amy")], tmp_path / "out")
    assert not (tmp_path / "out/utt_map").exists()  # no longer what it says


def test_speakers_that_begin_like_each_other_are_an_error(cut, tmp_path):
    cuts = [cut("z", "a"), cut("c", "a-b")]
    with pytest.raises(ManifestError, match="one is the beginning of another"):
        export_data_dir(cuts, tmp_path / "out")


def test_cuts_that_kaldi_cannot_use_are_left_out_with_the_reason(cut, tmp_path):
    silent = make_cut("a-3", dummy_recording(3), "X", "a", fault=("missing-audio", "gone"))
    done = export_data_dir([cut("a-1", "a"), cut("a-2", "a", ""), silent], tmp_path / "out")
    assert done.left_out == (
        ("a-2", "no word in its transcript"),
        ("a-3", "missing-audio: gone"),
    )
    with pytest.raises(ManifestError, match=r"no utterance .* first a-2: no word"):
        export_data_dir([cut("a-2", "a", "")], tmp_path / "empty")


def test_each_utterance_keeps_its_file_where_recordings_share_an_id(cut, tmp_path):
    cuts = [
        cut("a-3", "a", recording="r", name="x/r.wav"),
        cut("a-1", "a", recording="r", name="y/r.wav"),
        cut("a-2", "a", recording="r-2"),
        cut("a-4", "a", recording="r", name="y/r.wav", start=1.0),
    ]
    export_data_dir(cuts, tmp_path / "out")
    back = {c.id: (c.recording_id, audio_of(c)) for c in read_kaldi_dir(tmp_path / "out")}
    named = {"a-1": "r", "a-2": "r-2", "a-3": "r-3", "a-4": "r"}
    assert back == {c.id: (named[c.id], audio_of(c)) for c in cuts}
    assert (tmp_path / "out/reco2dur").read_text() == "r 2\nr-2 2\nr-3 2\n"


def test_audio_that_wav_scp_cannot_name_is_left_out(cut, tmp_path):
    fast, both = cut("a-2", "a"), cut("a-3", "a")
    fast.recording = fast.recording.perturb_speed(0.9)
    second = AudioSource("file", [1], both.recording.sources[0].source)
    both.recording.sources.append(second)
    both.recording.channel_ids = [0, 1]
    done = export_data_dir([cut("a-1", "a"), fast, both], tmp_path / "out")
    assert (tmp_path / "out/text").read_text() == "a-1 A B\n"
    assert dict(done.left_out) == {
        "a-2": "its audio is changed when it is read, such as in speed: write it to a file",
        "a-3": "its recording consists of 2 files",
    }


@pytest.mark.parametrize("suffix", ["wav", "flac", "sph"])
def test_channels_come_back_as_they_were(audio, tmp_path, suffix):
    path = tmp_path / f"s.{suffix}"
    audio(tmp_path / "s.wav", 2.0, channels=2)
    samples, rate = soundfile.read(tmp_path / "s.wav", dtype="int16")
    soundfile.write(path, samples, rate, format={"sph": "NIST"}.get(suffix))
    header, _ = recording_or_fault(path, "s")
    cuts = [
        make_cut(f"{name}-1", header, "X", name, 0.5, 1.5, channel=side, channel_name="AB"[side])
        for side, name in enumerate(("ann", "bob"))
    ]
    export_data_dir(cuts, tmp_path / "out")
    sides = (tmp_path / "out/reco2file_and_channel").read_text()
    assert sides == "s s A\ns-2 s B\n"
    assert data_dir_faults(tmp_path / "out") == []
    command = "sph2pipe -f wav -p -c 2 {}" if suffix == "sph" else "sox {} -t wav - remix 2"
    assert f"s-2 {command.format(path)} |\n" in (tmp_path / "out/wav.scp").read_text()
    back = read_kaldi_dir(tmp_path / "out")
    assert [(channel_of(c), channel_name(c), audio_of(c)) for c in back] == [
        (0, "A", str(path)),
        (1, "B", str(path)),
    ]
    for one, other in zip(cuts, back, strict=True):
        assert torch.equal(load_cut_audio(one), load_cut_audio(other))
    mono, _ = recording_or_fault(audio(tmp_path / "m.wav"), "m")
    export_data_dir([make_cut("m-1", mono, "X", "m")], tmp_path / "out")
    assert not (tmp_path / "out/reco2file_and_channel").exists()


def test_words_that_kaldi_reserves_are_an_error_that_names_the_line(cut, tmp_path):
    with pytest.raises(ManifestError, match=r"text:1: a-1 has the word </s>"):
        export_data_dir([cut("a-1", "a", "X </s>")], tmp_path / "out")


def test_notes_on_what_kaldi_would_take_otherwise(cut, tmp_path):
    done = export_data_dir([cut("a-1", "a", channels=2), cut("a-2", "a")], tmp_path / "out")
    (note,) = done.notes
    assert "1 utterances are of recordings with several channels" in note
    assert Path(tmp_path / "out/wav.scp").is_file()


def test_a_speaker_with_white_space_is_named(cut, tmp_path):
    with pytest.raises(ManifestError, match=r"white space.*speaker 'Ann Lee': rename it"):
        export_data_dir([cut("Ann-1", "Ann Lee")], tmp_path / "out")


def test_suffixes_in_capitals_are_those_of_the_same_formats(cut, tmp_path):
    done = export_data_dir([cut("a-1", "a", name="x.FLAC")], tmp_path / "out")
    assert done.notes == ()
    line = f"a-1 flac -c -d -s {tmp_path}/x.FLAC |\n"
    assert (tmp_path / "out/wav.scp").read_text() == line
