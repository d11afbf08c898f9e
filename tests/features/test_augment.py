from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import soundfile
from lhotse.serialization import deserialize_item

from toolkit.corpus.manifest import make_cut as toolkit_cut
from toolkit.corpus.manifest import probe_recording
from toolkit.features.audio import AudioError
from toolkit.features.augment import AugmentError, augmented, original_and_speed, original_id
from toolkit.features.config import AugmentConfig
from toolkit.features.cut_audio import AddNoise, Reverberate, load_cut_audio

RATE = 16000


@pytest.fixture
def sounds(tmp_path):
    """Folders of noises (one nested, one short) and of impulse responses."""
    chance = np.random.default_rng(0)
    (tmp_path / "noise/deep").mkdir(parents=True)
    (tmp_path / "rooms").mkdir()
    soundfile.write(tmp_path / "noise/a.wav", chance.uniform(-0.1, 0.1, 4000), RATE)
    soundfile.write(tmp_path / "noise/deep/b.wav", chance.uniform(-0.3, 0.3, 30000), RATE)
    decay = np.exp(-np.arange(2000) / 300)[:, None] * chance.uniform(-0.3, 0.3, (2000, 2))
    decay[:40] = 0
    decay[40] = 0.9
    soundfile.write(tmp_path / "rooms/r.wav", decay, RATE)
    return tmp_path / "noise", tmp_path / "rooms"


@pytest.mark.parametrize("speed", [1.0, 0.9])
def test_copies_of_one_channel_equal_those_of_a_mono_file(sounds, tmp_path, speed):
    samples = np.random.default_rng(1).integers(-9000, 9000, (16000, 2)).astype("int16")
    samples[:, 0] //= 7
    soundfile.write(tmp_path / "s.wav", samples, RATE)
    soundfile.write(tmp_path / "b.wav", samples[:, 1], RATE)
    (stereo, _), (mono, _) = (probe_recording(tmp_path / f"{n}.wav", "r") for n in "sb")
    noise, rooms = sounds
    config = AugmentConfig((speed,), noise, 1.0, rooms=rooms, rooms_share=1.0)
    cuts = [
        toolkit_cut("u", stereo, "x", "s", 0.1, 0.9, channel=1),
        toolkit_cut("u", mono, "x", "s", 0.1, 0.9),
    ]
    stereo_copy, mono_copy = (
        load_cut_audio(copy) for cut in cuts for copy in augmented([cut], config)
    )
    assert np.array_equal(stereo_copy.numpy(), mono_copy.numpy())


def test_ids_and_speakers_of_copies(make_cut, sounds):
    cuts = [make_cut(name, speaker) for name, speaker in (("u1", "a"), ("u2", "b"))]
    copies = list(augmented(cuts, AugmentConfig(speeds=(0.9, 1.1))))
    assert [c.id for c in copies] == ["u1_sp0.9", "u2_sp0.9", "u1_sp1.1", "u2_sp1.1"]
    speakers = [c.supervisions[0].speaker for c in copies]
    assert speakers == ["a_sp0.9", "b_sp0.9", "a_sp1.1", "b_sp1.1"]
    assert all(c.supervisions[0].text == "x" for c in copies)
    noisy = augmented(cuts, AugmentConfig(speeds=(1.0, 0.9), noise=sounds[0]))
    assert [c.id for c in noisy] == ["u1_aug", "u2_aug", "u1_sp0.9_aug", "u2_sp0.9_aug"]


@pytest.mark.parametrize(
    ("name", "expected", "origin"),
    [
        ("u1_sp0.9", ("u1", Fraction(9, 10)), "u1"),
        ("u1_sp1.1_aug", ("u1", Fraction(11, 10)), "u1"),
        ("u_sp1_sp0.9", ("u_sp1", Fraction(9, 10)), "u"),
        ("u1_aug", ("u1", Fraction(1)), "u1"),
        ("u_spring", ("u_spring", Fraction(1)), "u_spring"),
    ],
)
def test_originals_of_ids(name, expected, origin):
    assert original_and_speed(name) == expected
    assert original_id(name) == origin


@pytest.mark.parametrize("rate", [16000, 11025])
def test_speed_scales_time_and_pitch(tmp_path, make_cut, rate):
    cut = make_cut("tone", seconds=2.0, start=0.5, rate=rate)
    time = np.arange(2 * rate) / rate
    soundfile.write(cut.recording.sources[0].source, 0.3 * np.sin(2000 * np.pi * time), rate)
    for copy in augmented([cut], AugmentConfig(speeds=(0.9, 1.1))):
        speed = float(original_and_speed(copy.id)[1])
        samples = load_cut_audio(copy).numpy()
        assert len(samples) == round(1.5 * RATE / speed)
        spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
        peak = spectrum.argmax() * RATE / len(samples)
        assert peak == pytest.approx(1000 * speed, abs=1)


def test_copies_of_many_channels_are_their_mean(make_cut):
    cut = make_cut("stereo", channels=2, mix_channels=True)
    speeds = AugmentConfig(speeds=(0.9,))
    difference = load_cut_audio(next(augmented([cut], speeds)))
    for channel in (0, 1):
        single = replace(cut, channel=channel, custom=None)
        difference -= load_cut_audio(next(augmented([single], speeds))) / 2
    assert difference.abs().max() < 1e-6


def test_transforms_of_a_copy_depend_on_seed_and_id_alone(make_cut, sounds, tmp_path):
    cuts = [make_cut(f"u{i}") for i in range(40)]
    config = AugmentConfig((1.0,), *(sounds[0], 0.5, (0.0, 10.0)), *(sounds[1], 0.5))
    forward = {c.id: c.recording.transforms for c in augmented(cuts, config)}
    backward = {c.id: c.recording.transforms for c in augmented(cuts[:10:-1], config)}
    assert all(forward[name] == transforms for name, transforms in backward.items())
    kinds = [tuple(type(t) for t in transforms) for transforms in forward.values()]
    assert {(), (AddNoise,), (Reverberate,), (Reverberate, AddNoise)} == set(kinds)
    flat = [t for transforms in forward.values() for t in transforms]
    assert {t.channel for t in flat if type(t) is Reverberate} == {0, 1}
    noises = [t for t in flat if type(t) is AddNoise]
    assert {t.path for t in noises} == {str(p) for p in sorted(sounds[0].rglob("*.wav"))}
    assert all(0 <= t.snr <= 10 for t in noises)
    assert max(t.snr for t in noises) - min(t.snr for t in noises) > 5
    reseeded = AugmentConfig((1.0,), *(sounds[0], 0.5, (0.0, 10.0)), *(sounds[1], 0.5), seed=1)
    assert {c.id: c.recording.transforms for c in augmented(cuts, reseeded)} != forward


def test_a_stored_manifest_gives_the_same_audio(make_cut, sounds):
    cut = make_cut("u", seconds=1.0)
    config = AugmentConfig((0.9,), *(sounds[0], 1.0, (5.0, 5.0)), *(sounds[1], 1.0))
    copy = next(augmented([cut], config))
    restored = deserialize_item(copy.to_dict())
    assert (load_cut_audio(restored) == load_cut_audio(copy)).all()
    clean = load_cut_audio(next(augmented([cut], AugmentConfig((0.9,)))))
    assert len(clean) == len(load_cut_audio(copy))
    assert (clean - load_cut_audio(copy)).abs().max() > 0.01


@pytest.mark.parametrize("start", [0.0, 0.2, 1.8])
@pytest.mark.parametrize("name", ["a.wav", "deep/b.wav"])
def test_noise_has_the_requested_snr(sounds, name, start):
    speech = np.random.default_rng(1).normal(0, 0.1, (1, 20000)).astype(np.float32)
    noisy = AddNoise(str(sounds[0] / name), start, 7.0)(speech, RATE)
    noise = noisy.astype(np.float64) - speech
    ratio = 10 * np.log10((speech.astype(np.float64) ** 2).mean() / (noise**2).mean())
    assert ratio == pytest.approx(7.0, abs=1e-3)
    source, _ = soundfile.read(sounds[0] / name)
    first = min(round(start * RATE), len(source) - 1)
    expected = np.array([source[(first + i) % len(source)] for i in range(20000)])
    assert np.corrcoef(noise[0], expected)[0, 1] > 0.999


def test_reverberation_keeps_time_and_power(sounds, tmp_path):
    speech = np.random.default_rng(1).normal(0, 0.1, (1, 3000)).astype(np.float32)
    path = tmp_path / "delay.wav"
    soundfile.write(path, np.eye(1, 500, 123)[0] * 0.5, RATE, subtype="FLOAT")
    np.testing.assert_allclose(Reverberate(str(path), 0)(speech, RATE), speech, atol=1e-6)
    room = sounds[1] / "r.wav"
    wet = Reverberate(str(room), 1)(speech, RATE)[0]
    response = soundfile.read(room)[0][:, 1]
    expected = np.convolve(speech[0].astype(np.float64), response)[40:3040]
    expected *= np.sqrt((speech.astype(np.float64) ** 2).mean() / (expected**2).mean())
    np.testing.assert_allclose(wet, expected, atol=1e-5)


def test_silence_stays_silent(sounds):
    silence = np.zeros((1, 1000), np.float32)
    assert not Reverberate(str(sounds[1] / "r.wav"), 0)(silence, RATE).any()
    assert not AddNoise(str(sounds[0] / "a.wav"), 0.0, 5.0)(silence, RATE).any()


def test_unusable_folders_are_named(make_cut, tmp_path, sounds):
    config = AugmentConfig((1.0,), noise=tmp_path / "none")
    with pytest.raises(AugmentError, match="none contains no audio"):
        list(augmented([make_cut("u")], config))
    (sounds[0] / "broken.wav").write_bytes(b"RIFF")
    with pytest.raises(AugmentError, match=r"broken\.wav"):
        list(augmented([make_cut("u")], AugmentConfig((1.0,), noise=sounds[0])))
    (sounds[0] / "broken.wav").unlink()
    copy = next(augmented([make_cut("u")], AugmentConfig((1.0,), sounds[0], 1.0)))
    for path in sounds[0].rglob("*.wav"):
        path.unlink()
    with pytest.raises(AudioError, match=r"u_aug.*no such audio file"):
        load_cut_audio(copy)


@pytest.mark.parametrize(
    "options",
    [
        {"speeds": (0.9, 0.9)},
        {"speeds": (9.0,)},
        {"speeds": (1.0,)},
        {"noise": "n"},
        {"speeds": (0.9,), "rooms": "r", "rooms_share": 2},
        {"speeds": (0.9,), "snr": (9.0, 3.0)},
    ],
)
def test_impossible_configurations_are_refused(options):
    with pytest.raises(ValueError, match=r"speed|share|snr"):
        AugmentConfig(**options)
