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


FORMATS = (
    *("PCM_16.wav", "PCM_24.wav", "FLOAT.wav", "DOUBLE.wav", "FLOAT.aiff", "FLOAT.w64"),
    *("FLOAT.caf", "FLOAT.au", "PCM_24.flac", "ULAW.wav", "VORBIS.ogg", "MPEG_LAYER_III.mp3"),
)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("level", [0.0, 0.1])
def test_silence(tmp_path, name, level):
    noise = np.random.default_rng(0).standard_normal(16000) * level
    path = tmp_path / name
    soundfile.write(path, noise, 16000, subtype=path.stem)
    assert decode(str(path)).silent is (level == 0)


@pytest.mark.parametrize("name", ["FLOAT.wav", "DOUBLE.wav", "FLOAT.aiff"])
def test_a_copy_in_floats_has_the_digest_of_its_file(audio, tmp_path, name):
    whole = audio(tmp_path / "a.flac", channels=2, level=20000.0)
    samples, rate = soundfile.read(whole)
    path = tmp_path / name
    soundfile.write(path, samples, rate, subtype=path.stem)
    assert decode(str(path)).digest == decode(str(whole)).digest


def test_loud_floats_are_clipped(tmp_path):
    for name, level in (("a.wav", 1.0), ("b.wav", 4.0)):
        samples = np.array([-level, level], dtype=np.float32)
        soundfile.write(tmp_path / name, samples, 16000, subtype="FLOAT")
    assert decode(str(tmp_path / "a.wav")).digest == decode(str(tmp_path / "b.wav")).digest


def test_values_that_are_not_numbers_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.corpus.check.audio_info.BLOCK", 1000)
    samples = np.full((16000, 2), 0.1, dtype=np.float32)
    samples[2500, 1], samples[7000, 0] = np.nan, -np.inf
    for name, kept in (("bad.wav", samples), ("good.wav", samples[:2500])):
        soundfile.write(tmp_path / name, kept, 16000, subtype="FLOAT")
    assert decode(str(tmp_path / "bad.wav")).not_numbers == (2500, 7000)
    assert decode(str(tmp_path / "good.wav")).not_numbers is None


@pytest.mark.parametrize(("rate", "fault"), [(999, "999 Hz"), (1000, ""), (768_000, "768,000 Hz")])
def test_implausible_rates_are_found(audio, tmp_path, rate, fault):
    found = decode(str(audio(tmp_path / "a.wav", seconds=0.01, rate=rate))).bad_rate
    assert fault in found
    assert bool(found) == bool(fault)


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
