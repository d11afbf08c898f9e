"""M4A, WebM and the like: lengths, pieces and faults, in all readers."""

import gc
import multiprocessing
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch

from tests.media import amr_file, encode_film, encode_media
from toolkit.corpus.audio import open_audio, unread_end
from toolkit.corpus.check import decode
from toolkit.corpus.manifest import probe_recording
from toolkit.features.audio import AudioError, audio_blocks, decode_audio, load_audio
from toolkit.features.cut_audio import LOCAL_FILES

av = pytest.importorskip("av")

FORMATS = {
    "a.m4a": ("aac", "ipod"),
    "lossless.m4a": ("alac", "ipod"),
    "a.aac": ("aac", "adts"),
    "a.webm": ("libopus", "webm"),
    "flac.mka": ("flac", "matroska"),
    "ac3.mka": ("ac3", "matroska"),
    "a.mov": ("pcm_s24le", "mov"),
    "a.wv": ("wavpack", "wv"),
    "mp3.avi": ("libmp3lame", "avi"),
    "g722.wav": ("g722", "wav"),
    "yamaha.wav": ("adpcm_yamaha", "wav"),
    "ima.caf": ("adpcm_ima_qt", "caf"),
    "flac.ogg": ("flac", "ogg"),
}
"""Codec and container, as FFmpeg names them, by file name."""
STREAMED = {
    "live.webm": ("libopus", "webm", ("live", "1")),
    "fragments.mp4": ("aac", "mp4", ("movflags", "frag_keyframe+empty_moov")),
}
"""As programs write that send each part when it is ready."""


def make(folder, name, **options):
    path = folder / name
    if path.suffix == ".amr":
        amr_file(path)
        return path
    codec, container, *settings = {**FORMATS, **STREAMED}[name]
    rate = 48000 if codec in ("libopus", "ac3") else 16000
    encode_media(path, codec, container, rate, options=dict(settings), **options)
    return path


def as_ffmpeg_decodes(path):
    """Samples [S, channels] float32 of all frames, and their rate."""
    with av.open(str(path)) as container:
        frames = list(container.decode(audio=0))
    resampler = av.AudioResampler(format="fltp")
    parts = [part for frame in frames for part in resampler.resample(frame)]
    return np.concatenate([p.to_ndarray() for p in parts], axis=1).T, frames[0].sample_rate


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("name", [*FORMATS, *STREAMED, "a.amr"])
def test_every_reader_gives_what_ffmpeg_decodes(tmp_path, name, channels):
    if channels == 2 and name in ("g722.wav", "a.amr"):
        pytest.skip("of one channel")
    path = make(tmp_path, name, channels=channels)
    samples, rate = as_ffmpeg_decodes(path)
    with open_audio(path) as file:
        assert (file.frames, file.samplerate, file.channels) == (len(samples), rate, channels)
        assert np.array_equal(file.read(dtype="float32", always_2d=True), samples)
        assert unread_end(path, file) == ""
    info = decode(str(path))
    assert (info.error, info.declared, info.decoded) == (None, len(samples), len(samples))
    recording, fault = probe_recording(path, "a")
    assert (recording.num_samples, recording.sampling_rate, fault) == (len(samples), rate, None)
    mono = torch.from_numpy(samples.mean(axis=1) if channels > 1 else samples[:, 0])
    assert torch.equal(load_audio(path, rate), mono)
    assert np.array_equal(load_audio(path, rate, channel=channels - 1), samples[:, -1])
    assert torch.equal(torch.cat(list(audio_blocks(path, rate, 0.3))), mono)
    assert torch.equal(decode_audio(path.read_bytes(), name, rate).samples, mono)
    part = samples[rate // 4 :][: rate // 2]
    assert np.array_equal(LOCAL_FILES.read_audio(path, 0.25, 0.5)[0].T, part)
    with pytest.raises(AudioError, match=f"has {channels} channels, so there is no channel 3"):
        load_audio(path, channel=2)


@pytest.mark.parametrize("name", ["a.m4a", "a.webm", "a.aac", "flac.mka", "a.wv"])
def test_pieces_are_slices_of_the_whole_in_any_order(tmp_path, name):
    path = make(tmp_path, name, seconds=40.0)
    whole, rate = as_ffmpeg_decodes(path)
    whole = torch.from_numpy(whole[:, 0])
    for start in (0.0, 1.5, 1.0, 39.5, 12.345, 30.0, 29.0, 0.01, len(whole) / rate - 0.5):
        expected = whole[round(start * rate) :][: round(0.4 * rate)]
        assert load_audio(path, rate, start, 0.4).equal(expected), start
        assert next(iter(audio_blocks(path, rate, 0.4, start))).equal(expected), start
    blocks = zip(audio_blocks(path, rate, 3.0), audio_blocks(path, rate, 3.0, 6.0), strict=False)
    for number, (early, late) in enumerate(blocks):  # two readers of the file by turns
        assert early.equal(whole[3 * number * rate :][: 3 * rate])
        assert late.equal(whole[(3 * number + 6) * rate :][: 3 * rate])


@pytest.mark.parametrize("name", ["a.m4a", "a.webm", "lossless.m4a", "flac.mka"])
def test_the_delay_of_the_encoder_is_left_out(tmp_path, name):
    codec, container = FORMATS[name]
    original = encode_media(tmp_path / name, codec, container, 48000)[0]
    samples = load_audio(tmp_path / name, 48000).numpy()
    shared = min(len(samples), len(original))
    assert shared >= 2 * 48000
    best = np.fft.irfft(
        np.fft.rfft(samples[:shared], 2 * shared).conj()
        * np.fft.rfft(original[:shared], 2 * shared)
    ).argmax()
    assert best == 0


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the program ffmpeg")
@pytest.mark.parametrize("name", [*FORMATS, "a.amr"])
def test_the_program_ffmpeg_gives_the_same(tmp_path, name):
    path = make(tmp_path, name)
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-f", "f32le", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    with open_audio(path) as file:
        samples = file.read(dtype="float32")
    expected = np.frombuffer(raw, "<f4")
    # Older versions leave in what encoders have put before the first sample or behind the last.
    more = len(expected) - len(samples)
    assert 0 <= more <= 1024
    parts = (expected[more:], expected[: len(samples)])
    assert any(np.allclose(samples, part, atol=1e-3) for part in parts)


def test_a_file_that_changes_is_measured_again(tmp_path):
    path = make(tmp_path, "lossless.m4a", seconds=1.0)
    assert len(load_audio(path)) == 16000
    make(tmp_path, "lossless.m4a", seconds=3.0)
    assert len(load_audio(path)) == 48000


def _length(path):
    return len(load_audio(path, 16000, 0.5, 0.25))


def test_a_forked_process_reads_by_itself(tmp_path):
    path = make(tmp_path, "a.m4a", seconds=60.0)
    whole = load_audio(path)
    load_audio(path, 16000, 0.0, 0.25)
    gc.collect()  # threads of resamplers that other tests have left, which a fork would wait for
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_length, [path] * 8) == [4000] * 8
    assert load_audio(path, 16000, 30.0, 0.25).equal(whole[480000:484000])


def refusals(path):
    """Return the message of each reader."""
    with pytest.raises(AudioError) as whole:
        load_audio(path)
    with pytest.raises(AudioError) as blocks:
        list(audio_blocks(path, 16000, 1.0))
    with pytest.raises(AudioError) as memory:
        decode_audio(path.read_bytes(), str(path))
    messages = [str(error.value) for error in (whole, blocks, memory)]
    assert all(message.startswith(str(path)) for message in messages)
    fault = probe_recording(path, "a")[1]
    assert fault
    return [*messages, fault, decode(str(path)).error or ""]


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv", "film.mov"])
def test_the_sound_of_a_video_is_read(tmp_path, name):
    encode_film(tmp_path / name)
    assert abs(len(load_audio(tmp_path / name)) - 32000) <= 2048
    encode_film(tmp_path / name, sound=False)
    assert all("has no audio stream" in message for message in refusals(tmp_path / name))


@pytest.mark.parametrize("name", ["a.mka", "a.mp4"])
def test_a_file_with_several_audio_streams_is_refused(tmp_path, name):
    encode_media(tmp_path / name, "aac", streams=2, language="deu")
    for message in refusals(tmp_path / name):
        assert "has 2 audio streams (deu, deu): write the right one" in message


@pytest.mark.parametrize("name", [*FORMATS, *STREAMED, "a.amr"])
def test_a_truncated_file_is_refused_or_ends_between_frames(tmp_path, name):
    path = make(tmp_path, name, seconds=1.0)
    content = path.read_bytes()
    with open_audio(path) as file:
        whole = file.frames
    shorter = []
    for size in {*range(0, len(content), max(1, len(content) // 60)), len(content) - 1}:
        path.write_bytes(content[:size])
        os.utime(path, ns=(size, size))
        try:
            with open_audio(path) as file:
                length, warning = file.frames, unread_end(path, file)
        except (soundfile.SoundFileError, OSError):
            continue
        whole_frames = path.suffix == ".amr" and (size - len(b"#!AMR\n")) % 32 == 0
        if length < whole and not warning and not whole_frames:
            shorter.append(size)
    assert len(shorter) <= 1, shorter


def test_files_that_follow_one_another_are_read_or_refused(tmp_path):
    path = make(tmp_path, "a.aac")
    once = len(load_audio(path))
    content = path.read_bytes()
    (tmp_path / "b.aac").write_bytes(content + content)
    assert len(load_audio(tmp_path / "b.aac")) == 2 * once
    (tmp_path / "c.aac").write_bytes(content + b"junk " * 50 + content)
    assert "damaged" in refusals(tmp_path / "c.aac")[0]
    path = make(tmp_path, "a.m4a")
    path.write_bytes(path.read_bytes() + path.read_bytes())
    assert "several" in refusals(path)[0]


PLAYLISTS = {
    "list.m4a": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
    "concat.mka": "ffconcat version 1.0\nfile {path}\n",
    "session.mov": "v=0\nc=IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n",
    "list.aac": "[playlist]\nFile1={path}\nNumberOfEntries=1\n",
    "list.wma": '<asx version="3.0"><entry><ref href="file://{path}"/></entry></asx>\n',
}


@pytest.mark.parametrize("name", PLAYLISTS)
def test_playlists_are_refused_as_audio(tmp_path, name):
    audio_path = make(tmp_path, "a.m4a")
    (tmp_path / name).write_text(PLAYLISTS[name].format(path=audio_path))
    assert all("ormat not recognised" in message for message in refusals(tmp_path / name))


def test_without_pyav_the_message_names_a_remedy(tmp_path, monkeypatch):
    path = make(tmp_path, "a.m4a")
    wav = make(tmp_path, "g722.wav")
    monkeypatch.setitem(sys.modules, "av", None)
    for message in (*refusals(path), *refusals(wav)):
        assert "not installed: `pip install av`" in message
