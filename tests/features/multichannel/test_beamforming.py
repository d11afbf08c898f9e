"""Beamforming and the enhancement of array recordings."""

import json
import math

import numpy as np
import pytest
import soundfile
import torch
from lhotse import Recording, SupervisionSegment
from lhotse.cut import MultiCut

from tests.optional import load_torchaudio
from toolkit.corpus.manifest import speaker_of, text_of
from toolkit.features.config import BeamformingConfig, EchoConfig, EnhanceConfig
from toolkit.features.multichannel.beamforming import (
    ArrayError,
    Components,
    EnhanceError,
    apply_weights,
    beamform_weights,
    enhance,
    enhance_utterance,
    enhanced_cuts,
    load_array,
    load_components,
    masks,
    mvdr_weights,
    stft,
)
from toolkit.storage.paths import UnsafePathError

RATE, LENGTH, MICROPHONES = 16000, 32000, 4


def delayed(samples, delays):
    """Delay samples by fractions of a sample with a linear phase: [M, S]."""
    spectrum = torch.fft.rfft(torch.from_numpy(samples))
    frequency = torch.arange(len(spectrum)) / len(samples)
    phases = [torch.exp(-2j * math.pi * frequency * delay) for delay in delays]
    return torch.stack([torch.fft.irfft(spectrum * p, len(samples)) for p in phases]).float()


def plane_wave(samples, angle, radius=0.035):
    """A plane wave at a circle of microphones, relative to the first one."""
    around = np.arange(MICROPHONES) * 2 * np.pi / MICROPHONES
    arrival = -radius * np.cos(around - angle) / 343 * RATE
    return delayed(samples, arrival - arrival[0])


@pytest.fixture(scope="module")
def scene():
    """Speech-like bursts from the front, steady noise from the side, hiss in the microphones."""
    rng = np.random.default_rng(1)
    bursts = np.repeat(rng.random(40) < 0.6, LENGTH // 40)
    bursts[:6400] = False
    speech = plane_wave(bursts * rng.standard_normal(LENGTH), 0.3)
    noise = plane_wave(0.5 * rng.standard_normal(LENGTH), 2.0)
    hiss = torch.from_numpy(0.03 * rng.standard_normal((MICROPHONES, LENGTH))).float()
    return speech, noise + hiss


def gain(scene, config):
    speech, noise = scene
    weights = beamform_weights(speech + noise, config)

    def ratio(s, n):
        return 10 * math.log10(float(s.square().sum() / n.square().sum()))

    output_snr_db = ratio(
        apply_weights(speech, weights, config), apply_weights(noise, weights, config)
    )
    return output_snr_db - ratio(speech[0], noise[0])


def test_delay_and_sum_undoes_the_delays_of_the_speech(scene):
    speech, _ = scene
    config = BeamformingConfig("delay-and-sum")
    weights = beamform_weights(speech + 1e-3 * torch.randn(speech.shape), config)
    beam = apply_weights(speech, weights, config)
    error = (beam - speech[0])[512:-512]
    assert error.square().mean() < 1e-2 * speech[0].square().mean()
    torch.testing.assert_close(weights.abs(), torch.full_like(weights.abs(), 1 / MICROPHONES))


def test_mvdr_removes_noise_and_keeps_the_speech(scene):
    config = BeamformingConfig()
    assert gain(scene, config) > gain(scene, BeamformingConfig("delay-and-sum")) + 3
    weights = beamform_weights(scene[0] + scene[1], config)
    beam = apply_weights(scene[0], weights, config)
    error = (beam - scene[0][0])[512:-512]
    assert error.square().mean() < 0.1 * scene[0][0].square().mean()


def test_the_beam_does_not_depend_on_the_loudness(scene):
    mixture = scene[0] + scene[1]
    loud = beamform_weights(mixture, BeamformingConfig())
    faint = beamform_weights(mixture * 1e-4, BeamformingConfig())
    torch.testing.assert_close(faint, loud, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", ["none", "one microphone"])
def test_without_a_beam_the_output_is_the_first_microphone(scene, case):
    config = BeamformingConfig("none" if case == "none" else "mvdr")
    microphones = scene[0] if case == "none" else scene[0][:1]
    beam = apply_weights(microphones, beamform_weights(microphones, config), config)
    torch.testing.assert_close(beam, microphones[0], atol=1e-5, rtol=0)


def test_masks_find_the_pauses(scene):
    speech, noise = scene
    config = BeamformingConfig(oversubtraction=2.0)
    share, quiet = masks(stft(speech + noise, config), config)
    frames = quiet[0].nonzero()[:, 0] * config.shift
    speech_energy = speech[0].unfold(0, 512, 1).square().mean(dim=1)
    assert len(frames) == int(config.quiet_share * quiet.shape[1])
    assert all(speech_energy[max(0, int(at) - 256)] < 0.3 for at in frames if at < LENGTH - 512)
    assert share[:, 10:40].mean() < 0.1 < share.mean()


def test_mvdr_equals_torchaudio(scene):
    functional = load_torchaudio("functional")
    config = BeamformingConfig()
    spectra = stft(scene[0] + scene[1], config)
    speech, noise = masks(spectra, config)
    transfer = functional.rtf_evd(functional.psd(spectra, speech))
    covariance = functional.psd(spectra, noise)
    expected = functional.mvdr_weights_rtf(transfer, covariance, 0, diag_eps=config.loading)
    weights = mvdr_weights(spectra, speech, noise, config.loading)
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-8)


def test_mvdr_of_one_direction_has_the_weights_of_the_formula():
    # Covariance of the noise I + n n^H, whose inverse is known (Sherman and Morrison).
    generator = torch.Generator().manual_seed(2)
    speech, noise = torch.randn(2, 3, dtype=torch.complex128, generator=generator)
    frames = torch.eye(3, dtype=torch.complex128) * math.sqrt(4)
    spectra = torch.stack([*frames, noise * 2, speech], dim=1)[:, None]  # [M, 1, T]
    is_noise = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    weights = mvdr_weights(spectra, 1 - is_noise, is_noise, 0.0)[0]
    inverse = torch.eye(3) - torch.outer(noise, noise.conj()) / (1 + noise.abs().square().sum())
    whitened = inverse @ speech
    expected = whitened / (speech.conj() @ whitened) * speech[0].conj()
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-7)


def test_silence_has_finite_weights():
    assert beamform_weights(torch.zeros(3, 4096), BeamformingConfig()).isfinite().all()


@pytest.mark.parametrize(
    "options",
    [
        {"method": "gev"},
        {"shift": 300},
        {"quiet_share": 1.0},
        {"oversubtraction": 0.0},
        {"loading": -1.0},
    ],
)
def test_invalid_settings_are_refused(options):
    with pytest.raises(ValueError, match=r" be | is "):
        BeamformingConfig(**options)


ENHANCE_RATE, SCENE_LENGTH = 16000, 24000
SCENE_SECONDS = SCENE_LENGTH / ENHANCE_RATE
QUICK = EnhanceConfig(
    echo=EchoConfig(taps=128, block=64), beamforming=BeamformingConfig("delay-and-sum")
)


def echo_scene(seed, microphones=3, plays=True):
    """Bursts of speech, steady noise and an echo at microphones in one place."""
    rng = np.random.default_rng(seed)
    bursts = np.repeat(rng.random(30) < 0.6, SCENE_LENGTH // 30) * (np.arange(SCENE_LENGTH) > 4800)
    speech = np.tile(0.05 * bursts * rng.standard_normal(SCENE_LENGTH), (microphones, 1))
    played = 0.2 * rng.standard_normal(SCENE_LENGTH) if plays else np.zeros(SCENE_LENGTH)
    path = rng.standard_normal(60) * np.exp(-np.arange(60) / 8) * 0.2
    echo = np.tile(np.convolve(played, path)[:SCENE_LENGTH], (microphones, 1))
    noise = 0.01 * rng.standard_normal((microphones, SCENE_LENGTH))
    parts = (speech, echo, speech + echo + noise, played)
    return tuple(part.astype(np.float32) for part in parts)


@pytest.fixture
def array_cut(tmp_path):
    def make(name, seed, plays=True, with_components=True):
        speech, echo, mixture, played = echo_scene(seed, plays=plays)
        files = {"array": np.concatenate([mixture, played[None]])}
        files |= {"speech": speech} | ({"echo": echo} if plays else {}) if with_components else {}
        paths = {}
        for part, channels in files.items():
            paths[part] = str(tmp_path / f"{seed}.{part}.flac")
            soundfile.write(paths[part], channels.T, ENHANCE_RATE, subtype="PCM_16")
        recording = Recording.from_file(paths.pop("array"), recording_id=name)
        supervision = SupervisionSegment(
            name,
            name,
            0.0,
            SCENE_SECONDS,
            channel=[0, 1, 2, 3],
            text="ONE TWO",
            speaker="anna",
        )
        return MultiCut(
            name, 0.0, SCENE_SECONDS, [0, 1, 2, 3], [supervision], recording=recording,
            custom={"placement": "DP1"} | ({"components": paths} if with_components else {}),
        )  # fmt: skip

    return make


def test_measures_equal_those_of_the_components():
    speech, echo, mixture, played = echo_scene(1)
    nothing = EnhanceConfig(cancel_echo=False, beamforming=BeamformingConfig("none"))
    bypassed = enhance_utterance(mixture, played, nothing, Components(speech, echo))
    assert bypassed.erle_db == pytest.approx(0)
    assert bypassed.snr_gain_db == pytest.approx(0, abs=1e-3)
    np.testing.assert_allclose(bypassed.samples, mixture[0], atol=1e-5)
    enhanced = enhance_utterance(mixture, played, QUICK, Components(speech, echo))
    assert enhanced.erle_db > 12
    # Three microphones in one place: noise falls by 4.8 dB besides the echo's part.
    without_echo = enhance_utterance(
        speech + mixture - speech - echo, 0 * played, QUICK, Components(speech, 0 * echo)
    )
    assert without_echo.erle_db is None
    assert without_echo.snr_gain_db == pytest.approx(10 * np.log10(3), abs=0.3)
    assert enhanced.snr_gain_db > without_echo.snr_gain_db + 3


def test_without_components_there_are_no_measures():
    _, _, mixture, played = echo_scene(1)
    enhanced = enhance_utterance(mixture, played, QUICK)
    assert (enhanced.erle_db, enhanced.snr_gain_db) == (None, None)


def test_sets_are_written_measured_and_read_back(array_cut, tmp_path):
    sets = {"near": [array_cut("a/1", 1), array_cut("b", 2, plays=False)], "far": []}
    progress = []
    headline = enhance(sets, QUICK, tmp_path / "one", 1, lambda *counts: progress.append(counts))
    assert set(headline) == {"near ERLE dB", "near SNR gain dB"}
    assert headline["near ERLE dB"] > 12
    assert progress == [(1, 2), (2, 2)]
    cuts = enhanced_cuts(sets, tmp_path / "one")
    assert [cut.id for cut in cuts["near"]] == ["a/1", "b"]
    assert cuts["far"] == []
    cut = cuts["near"][0]
    assert (text_of(cut), speaker_of(cut), cut.duration) == (
        "ONE TWO",
        "anna",
        SCENE_SECONDS,
    )
    assert cut.custom == {"placement": "DP1"}
    array, parts = load_array(sets["near"][0]), load_components(sets["near"][0])
    direct = enhance_utterance(array.microphones, array.playback, QUICK, parts)
    np.testing.assert_allclose(cut.load_audio()[0], direct.samples, atol=1e-4)
    two = enhance(sets, QUICK, tmp_path / "two", 2)
    assert two == headline
    for path in sorted((tmp_path / "one").rglob("*.*")):
        two_jobs_path = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == two_jobs_path.read_bytes()


def test_existing_outputs_are_kept(array_cut, tmp_path):
    sets = {"near": [array_cut("a", 1)]}
    enhance(sets, QUICK, tmp_path / "out")
    report = tmp_path / "out" / "near" / "a.json"
    report.write_text(json.dumps({"erle_db": None, "snr_gain_db": 5.0}))
    assert enhance(sets, QUICK, tmp_path / "out") == {"near SNR gain dB": 5.0}


def test_sets_without_components_are_not_in_the_headline(array_cut, tmp_path):
    cut = array_cut("a", 1, with_components=False)
    assert enhance({"near": [cut]}, QUICK, tmp_path / "out") == {}


def test_faults_name_the_utterance(array_cut, tmp_path):
    with pytest.raises(EnhanceError, match="no array recordings"):
        enhance({"near": []}, QUICK, tmp_path / "out")
    cut = array_cut("a", 1)
    (tmp_path / "1.array.flac").write_bytes(b"")
    with pytest.raises(ArrayError, match=r"a: .*1\.array\.flac"):
        enhance({"near": [cut]}, QUICK, tmp_path / "out")
    with pytest.raises(EnhanceError, match="no such file"):
        enhanced_cuts({"near": [cut]}, tmp_path / "out")
    cut = array_cut("b", 2)
    cut.channel = [0]
    cut.recording.sources[0].channels = [0]
    with pytest.raises(ArrayError, match="at least one microphone channel and a playback"):
        load_array(cut)


def test_ids_and_links_do_not_lead_out_of_the_folder(array_cut, tmp_path):
    out, outside = tmp_path / "out", tmp_path / "other"
    enhance({"near": [array_cut("../../up", 1)]}, QUICK, out)
    assert sorted(path.name for path in out.rglob("*.flac")) == ["..%2F..%2Fup.flac"]
    (out / "away").symlink_to(outside)
    with pytest.raises(UnsafePathError, match="away"):
        enhance({"away": [array_cut("b", 2)]}, QUICK, out)
    assert not outside.exists()
