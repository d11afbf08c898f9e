from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from lhotse import AudioSource, Recording
from lhotse.augmentation import ReverbWithImpulseResponse
from lhotse.utils import fastcopy

from toolkit.features.audio import AudioError, load_audio
from toolkit.features.cut_audio import load_cut_audio


def test_a_cut_is_its_span_and_channel(make_cut):
    cut = make_cut("long", seconds=2.0, start=0.5, end=1.5, channels=2)
    expected = cut.load_audio()[0]
    np.testing.assert_array_equal(load_cut_audio(cut), expected)
    assert load_cut_audio(cut, 8000).shape == (8000,)


def test_a_cut_that_mixes_its_channels_is_their_mean(make_cut):
    cut = make_cut("long", seconds=1.0, channels=2)
    one = load_cut_audio(cut)
    cut.custom = {**(cut.custom or {}), "mix_channels": True}
    mixed = load_cut_audio(cut)
    torch.testing.assert_close(mixed, load_audio(Path(cut.recording.sources[0].source)))
    assert (mixed - one).abs().max() > 1e-3


def test_a_transformed_cut_goes_through_lhotse(make_cut):
    cut = make_cut("long", seconds=1.0).resample(8000)
    assert load_cut_audio(cut, 16000).shape == (16000,)


def test_a_cut_of_a_changed_file_names_the_file(make_cut):
    cut = make_cut("a", seconds=1.0)
    source = cut.recording.sources[0].source
    soundfile.write(source, np.zeros(8000), 16000)
    with pytest.raises(AudioError, match=r"a\.flac: 1\.000 s asked for"):
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
    other = fastcopy(cut, recording=Recording.from_file(cut.custom["clean"]))
    transform = ReverbWithImpulseResponse(rir=cut.recording, rir_channels=[0])
    return fastcopy(other, recording=fastcopy(other.recording, transforms=[transform]))


def as_plain_response(cut):
    plain = as_response(cut).recording.transforms[0].to_dict()
    whole = Recording.from_file(cut.custom["clean"])
    return fastcopy(cut, recording=fastcopy(whole, transforms=[plain]))


def as_second_source(cut):
    first = Recording.from_file(cut.custom["clean"]).sources[0]
    second = fastcopy(cut.recording.sources[0], channels=[1])
    both = fastcopy(cut.recording, sources=[first, second], channel_ids=[0, 1])
    return fastcopy(cut, recording=both, custom={"mix_channels": True})


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
    """Somebody's folder may hold files whose names are commands: even then none runs."""
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
    one, other = make_cut("a", seconds=1.0), make_cut("b", seconds=0.5)
    mixed = one.mix(other, offset_other_by=0.25, snr=10)
    np.testing.assert_array_equal(load_cut_audio(mixed), mixed.load_audio()[0])
    room = one.reverb_rir(other.recording)
    np.testing.assert_array_equal(load_cut_audio(room), room.load_audio()[0])
    part = fastcopy(other, start=0.1, duration=0.2).perturb_speed(1.1)
    np.testing.assert_array_equal(load_cut_audio(part), part.load_audio()[0])
