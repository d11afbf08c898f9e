from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from lhotse import AudioSource, Recording
from lhotse.augmentation import Resample, ReverbWithImpulseResponse, Speed
from lhotse.utils import fastcopy

from toolkit.features.audio import AudioError, load_audio
from toolkit.features.cut_audio import LocalFiles, check_resampling, load_cut_audio


def test_a_cut_is_its_span_and_channel(make_cut):
    cut = make_cut("long", seconds=2.0, start=0.5, end=1.5, channels=2)
    expected = cut.load_audio()[0]
    np.testing.assert_array_equal(load_cut_audio(cut), expected)
    assert load_cut_audio(cut, 8000).shape == (8000,)


def test_a_cut_that_mixes_its_channels_is_their_mean(make_cut):
    cut = make_cut("long", seconds=1.0, channels=2)
    first_channel = load_cut_audio(cut)
    cut.custom = {**(cut.custom or {}), "mix_channels": True}
    mixed = load_cut_audio(cut)
    torch.testing.assert_close(mixed, load_audio(Path(cut.recording.sources[0].source)))
    assert (mixed - first_channel).abs().max() > 1e-3


def test_a_transformed_cut_goes_through_lhotse(make_cut):
    cut = make_cut("long", seconds=1.0).resample(8000)
    assert load_cut_audio(cut, 16000).shape == (16000,)


def test_lhotse_reads_files_that_cannot_seek(tmp_path):
    """Telephone systems write GSM in WAV files, which libsndfile cannot seek."""
    samples = np.random.default_rng(0).integers(-9000, 9000, 320 * 50, dtype=np.int16)
    soundfile.write(tmp_path / "a.wav", samples, 8000, subtype="GSM610")
    whole = soundfile.read(tmp_path / "a.wav", dtype="float32")[0]
    for offset, duration, part in ((0.0, None, slice(None)), (0.5, 1.0, slice(4000, 12000))):
        loaded, _ = LocalFiles().read_audio(tmp_path / "a.wav", offset, duration)
        np.testing.assert_array_equal(loaded[0], whole[part])
    loaded, rate = LocalFiles().read_audio(tmp_path / "a.wav", 0.5)
    np.testing.assert_array_equal(loaded[0], whole[4000:])
    assert rate == 8000


def test_a_cut_of_a_changed_file_names_the_file(make_cut):
    cut = make_cut("a", seconds=1.0)
    source = cut.recording.sources[0].source
    soundfile.write(source, np.zeros(8000), 16000)
    with pytest.raises(AudioError, match=r"a\.flac: the segment ends at 1\.000 s"):
        load_cut_audio(cut)


def test_never_runs_a_command(make_cut, tmp_path):
    cut = make_cut("a")
    cut.recording.sources[0].type = "command"
    cut.recording.sources[0].source = f"touch {tmp_path / 'ran'}"
    with pytest.raises(AudioError, match="not run"):
        load_cut_audio(cut)
    assert not (tmp_path / "ran").exists()


def as_mixed(cut):
    return cut.append(cut)


def as_response(cut):
    response = fastcopy(cut, recording=Recording.from_file(cut.custom["clean"]))
    transform = ReverbWithImpulseResponse(rir=cut.recording, rir_channels=[0])
    return fastcopy(response, recording=fastcopy(response.recording, transforms=[transform]))


def as_plain_response(cut):
    transform = as_response(cut).recording.transforms[0].to_dict()
    whole = Recording.from_file(cut.custom["clean"])
    return fastcopy(cut, recording=fastcopy(whole, transforms=[transform]))


def as_second_source(cut):
    first = Recording.from_file(cut.custom["clean"]).sources[0]
    second = fastcopy(cut.recording.sources[0], channels=[1])
    recording = fastcopy(cut.recording, sources=[first, second], channel_ids=[0, 1])
    return fastcopy(cut, recording=recording, custom={"mix_channels": True})


def as_transformed(cut):
    return cut.perturb_volume(0.5)


@pytest.mark.parametrize(
    "hide", [as_mixed, as_response, as_plain_response, as_second_source, as_transformed]
)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("command", "touch ran; cat {}"),
        ("file", "x; touch ran; .sph"),  # lhotse gives the names of such files to a shell
        ("file", "|touch ran; cat {}"),  # sox runs such names
        ("file", "pipe:touch ran"),
        ("url", "pipe:touch ran"),
    ],
)
def test_commands_of_cuts_made_in_memory_do_not_run(
    make_cut, tmp_path, monkeypatch, hide, kind, name
):
    monkeypatch.chdir(tmp_path)
    cut = make_cut("a")
    clean = cut.recording.sources[0].source
    cut.custom = {"clean": clean}
    cut.recording.sources = [AudioSource(kind, [0], name.format(clean))]
    with pytest.raises(AudioError, match="a: "):
        load_cut_audio(hide(cut).with_id("a"))
    assert not Path("ran").exists()


def test_a_file_named_like_a_command_is_only_a_file(make_cut, tmp_path, monkeypatch):
    """A file name may look like a command. The file is read and no command runs."""
    monkeypatch.chdir(tmp_path)
    cut = make_cut("a").perturb_volume(0.5)
    expected = load_cut_audio(cut)
    name = "x; touch ran; .sph"
    Path(name).write_bytes(Path(cut.recording.sources[0].source).read_bytes())
    cut.recording.sources[0].source = name
    assert torch.equal(load_cut_audio(cut), expected)
    assert not Path("ran").exists()


def test_audio_in_memory_is_read(make_cut):
    cut = make_cut("a", seconds=1.0)
    inside = fastcopy(cut, recording=cut.recording.move_to_memory())
    torch.testing.assert_close(load_cut_audio(inside), load_cut_audio(cut))


def test_mixed_and_multichannel_cuts_are_what_lhotse_reads(make_cut):
    foreground, background = make_cut("a", seconds=1.0), make_cut("b", seconds=0.5)
    mixed = foreground.mix(background, offset_other_by=0.25, snr=10)
    np.testing.assert_array_equal(load_cut_audio(mixed), mixed.load_audio()[0])
    room = foreground.reverb_rir(background.recording)
    np.testing.assert_array_equal(load_cut_audio(room), room.load_audio()[0])
    part = fastcopy(background, start=0.1, duration=0.2).perturb_speed(1.1)
    np.testing.assert_array_equal(load_cut_audio(part), part.load_audio()[0])


@pytest.mark.parametrize(
    ("transforms", "rates"),
    [
        ([Speed(1.00001)], "384004 to 384000"),
        ([Resample(384000, 16001), Speed(0.9)], "384000 to 16001"),
        ([{"name": "Speed", "kwargs": {"factor": 0.90001}}], "345604 to 384000"),
    ],
)
def test_resampling_that_would_take_gigabytes_is_refused(make_cut, transforms, rates):
    cut = make_cut("u1")
    recording = fastcopy(cut.recording, sampling_rate=384000, transforms=transforms)
    slow = fastcopy(cut, recording=recording)
    for resampled in slow, slow.pad(duration=9.0, preserve_id=True):
        with pytest.raises(AudioError, match=f"u1: .* from {rates} Hz"):
            load_cut_audio(resampled)


def test_narrow_bands_of_odd_rates_are_refused(make_cut):
    pytest.importorskip("torchaudio")
    cut = make_cut("u1")
    kwargs = {"codec": "mulaw", "source_sampling_rate": 383987, "restore_orig_sr": True}
    transforms = [{"name": "Narrowband", "kwargs": kwargs}]
    with pytest.raises(AudioError, match="from 383987 to 8000 Hz"):
        load_cut_audio(fastcopy(cut, recording=fastcopy(cut.recording, transforms=transforms)))


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000, 96000])
def test_usual_speeds_of_usual_rates_are_not_refused(make_cut, rate):
    cut = make_cut("u1")
    transforms = [Resample(rate, 16000), *map(Speed, (0.9, 1.1, 0.95, 1.05))]
    divisible = rate % 1000 == 0  # 0.95 of 22,050 takes 9 GB
    speeds = transforms if divisible else transforms[:3]
    rate = 16000 if rate == 11025 else rate  # whose 0.9 takes 3.5 GB: it is resampled first
    recording = fastcopy(cut.recording, sampling_rate=rate, transforms=speeds)
    check_resampling(fastcopy(cut, recording=recording))
