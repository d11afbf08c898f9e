import numpy as np
import pytest
import soundfile

from toolkit.corpus.check.audio_info import decode, read_audio_info


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_whole_files(audio, tmp_path, suffix):
    info = decode(str(audio(tmp_path / f"a{suffix}", seconds=40.0, rate=8000, channels=2)))
    assert (info.sampling_rate, info.channels) == (8000, 2)
    assert info.decoded == info.declared == 320000
    assert info.error is None
    assert not info.silent


@pytest.mark.parametrize(("gain", "silent"), [(-1.0, True), (-0.5, False)])
def test_channels_that_cancel_each_other_are_silent(tmp_path, gain, silent):
    noise = np.random.default_rng(0).integers(-999, 999, 1600)
    both = np.stack([noise, gain * noise], axis=1).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", both, 16000)
    assert decode(str(tmp_path / "a.wav")).silent is silent


def test_digest_is_of_the_samples_not_the_format(audio, tmp_path):
    names = ("a.wav", "a.flac", "b.flac")
    one, same, other = (
        decode(str(audio(tmp_path / name, seed=name.startswith("b")))) for name in names
    )
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".sph"])
def test_truncated_files_show(audio, truncate, tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".sph":
        noise = np.random.default_rng(0).standard_normal(48000) * 0.1
        soundfile.write(str(path), noise, 16000, format="NIST", subtype="PCM_16")
    else:
        audio(path, seconds=3.0)
    assert decode(str(path)).decoded == 48000
    info = decode(str(truncate(path)))
    assert info.declared == 48000
    assert info.decoded < 48000


@pytest.mark.parametrize(("missing", "declared"), [(159, 16000 - 159), (161, 16000)])
def test_a_wav_that_lacks_less_than_a_frame_is_whole(audio, tmp_path, missing, declared):
    path = audio(tmp_path / "a.wav", seconds=1.0)
    path.write_bytes(path.read_bytes()[: -2 * missing])
    info = decode(str(path))
    assert (info.declared, info.decoded) == (declared, 16000 - missing)


def test_damage_in_the_middle_of_a_flac_shows(audio, tmp_path):
    path = audio(tmp_path / "a.flac", seconds=3.0)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 1000] = bytes(1000)
    path.write_bytes(content)
    info = decode(str(path))
    assert info.error is not None or info.decoded < info.declared


def test_sizes_of_streamed_wavs_are_not_believed(audio, tmp_path):
    path = audio(tmp_path / "a.wav")
    content = bytearray(path.read_bytes())
    place = content.index(b"data") + 4
    content[place : place + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(content)
    info = decode(str(path))
    assert info.declared == info.decoded == 16000


def test_no_audio_at_all(tmp_path):
    (tmp_path / "a.flac").touch()
    for name in ("a.flac", "none.flac"):
        info = decode(str(tmp_path / name))
        assert info.error is not None
        assert info.declared == 0


def test_silence(audio, tmp_path):
    assert decode(str(audio(tmp_path / "a.wav", level=0.0))).silent


def test_jobs_do_not_matter(audio, tmp_path):
    paths = [str(audio(tmp_path / f"{n}.flac", seconds=0.1, seed=n)) for n in range(20)]
    seen = []
    one = read_audio_info(paths * 2, 1, lambda done, total: seen.append((done, total)))
    assert seen == [(16, 20), (20, 20)]
    assert read_audio_info(paths, 2) == one
    assert list(one) == sorted(paths)


def test_a_streamed_flac_is_whole_and_its_length_is_what_it_holds(
    audio, streamed, truncate, tmp_path
):
    whole = decode(str(audio(tmp_path / "whole.flac", seconds=40.0, channels=2)))
    path = streamed(audio(tmp_path / "streamed.flac", seconds=40.0, channels=2))
    info = decode(str(path))
    assert (info.declared, info.decoded, info.error) == (640000, 640000, None)
    assert info.digest == whole.digest
    assert decode(str(truncate(path))).error
