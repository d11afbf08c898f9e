"""The front ends of both engines, their mel filters and cepstra."""

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.optional import load_torchaudio
from toolkit.engines import FRONTEND_VARIABLE, EngineError, engines, frontend_engine
from toolkit.features import frontend as module
from toolkit.features.config import PRESETS, FrontendConfig
from toolkit.features.frontend import (
    FilterBank,
    Frontend,
    FrontendError,
    PerceptualLinearPrediction,
    cepstral_transform,
    cepstrum,
    durbin,
    engine_version,
    feature_backend,
    hertz_to_mel,
    kaldifeat_computer,
    lifter,
    mel_filters,
    mel_points,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "lpc"}, "kind"),
        ({"num_mel_bins": 2}, "num_mel_bins"),
        ({"kind": "mfcc", "num_ceps": 24}, "num_ceps"),
        ({"kind": "plp", "num_ceps": 14}, "num_ceps"),
        ({"frame_shift_ms": 30.0}, "frame_shift_ms"),
        ({"low_freq": 9000.0}, "low_freq"),
        ({"high_freq": -7990.0}, "high_freq"),
        ({"num_mel_bins": 200}, "num_mel_bins"),
        ({"num_mel_bins": 80, "frame_length_ms": 10.0}, "num_mel_bins"),
        ({"kind": "fbank_mfcc", "num_ceps": 81}, "num_ceps"),
    ],
)
def test_refuses_impossible_settings(options, message):
    with pytest.raises(ValueError, match=message):
        FrontendConfig(**options)


def test_dimensions():
    assert FrontendConfig().dimension == 64
    assert FrontendConfig(num_mel_bins=80).dimension == 80
    assert FrontendConfig(kind="plp").dimension == 13
    assert FrontendConfig(kind="mfcc").mel_bins == 23
    assert FrontendConfig(kind="fbank_mfcc").dimension == 93
    assert [config.dimension for config in PRESETS.values()] == [93, 80, 40]
    assert [config.frame_length_ms for config in PRESETS.values()] == [32.0, 25.0, 10.0]


@pytest.fixture
def noise():
    return 0.1 * torch.randn(16123, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["fbank", "mfcc"])
def test_equals_torchaudio(kind, noise, engine):
    kaldi = load_torchaudio("compliance.kaldi")
    config = FrontendConfig(kind=kind, frame_length_ms=32.0, high_freq=-400.0)
    features = Frontend(config, engine)(noise)
    common = {
        "num_mel_bins": config.mel_bins,
        "frame_length": 32.0,
        "high_freq": -400.0,
        "snip_edges": False,
        "dither": 0.0,
    }
    function = getattr(kaldi, kind)
    expected = function(noise.unsqueeze(0) * 32768, **common)
    assert features.shape == expected.shape
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-2)


def plp_of_frame(frame, mel_edges, order=12, num_ceps=13):
    """PLP of one frame in float64 from the definition (Hermansky 1990, with Kaldi's choices)."""
    length = len(frame)
    frame = frame.double() - frame.double().mean()
    frame = frame - 0.97 * torch.cat([frame[:1], frame[:-1]])
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(length).double() / (length - 1))
    spectrum = torch.fft.rfft(frame * window**0.85, n=512).abs().square()
    mels = 1127 * torch.log(1 + torch.arange(257).double() * 16000 / 512 / 700)
    points = torch.linspace(*mel_edges, 25, dtype=torch.float64)
    lower, centres, upper = (points[i : i + 23].unsqueeze(1) for i in range(3))
    weights = torch.minimum((mels - lower) / (centres - lower), (upper - mels) / (upper - centres))
    weights = weights.clamp(min=0)
    weights[:, 256] = 0  # Kaldi leaves the Nyquist bin out
    energies = weights @ spectrum
    hertz = 700 * (torch.exp(centres.squeeze(1) / 1127) - 1)
    square = hertz**2
    loudness = (square / (square + 1.6e5)) ** 2 * ((square + 1.44e6) / (square + 9.61e6))
    compressed = (energies * loudness) ** (1 / 3)
    padded = torch.cat([compressed[:1], compressed, compressed[-1:]])
    autocorrelation = torch.fft.irfft(padded.to(torch.complex128), n=48)[: order + 1]
    matrix = torch.stack([autocorrelation[(torch.arange(order) - i).abs()] for i in range(order)])
    lpc = torch.linalg.solve(matrix, autocorrelation[1:])  # x_t is predicted by sum lpc_i x_{t-i}
    residual = autocorrelation[0] - lpc @ autocorrelation[1:]
    cepstrum = [residual.log()]
    for n in range(1, num_ceps):
        cepstrum.append(lpc[n - 1] + sum(k / n * cepstrum[k] * lpc[n - k - 1] for k in range(1, n)))
    lifter = 1 + 11 * torch.sin(math.pi * torch.arange(num_ceps).double() / 22)
    return torch.stack(cepstrum) * lifter


def test_plp_equals_its_definition(noise, engine):
    features = Frontend(FrontendConfig(kind="plp"), engine)(noise)
    edges = tuple(1127 * math.log(1 + f / 700) for f in (20, 8000))
    for t in (10, 50):
        middle = t * 160 + 80
        expected = plp_of_frame(noise[middle - 200 : middle + 200] * 32768, edges)
        torch.testing.assert_close(features[t].double(), expected, rtol=1e-3, atol=1e-2)


def log_mel_magnitudes_of_frame(frame, num_bins):
    """Log-mel features of one frame in float64: Kaldi's, but of the magnitude spectrum (A1)."""
    length = len(frame)
    frame = frame.double() - frame.double().mean()
    frame = frame - 0.97 * torch.cat([frame[:1], frame[:-1]])
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(length).double() / (length - 1))
    spectrum = torch.fft.rfft(frame * window**0.85, n=512).abs()[:256]
    mels = 1127 * torch.log(1 + torch.arange(256).double() * 16000 / 512 / 700)
    edges = [1127 * math.log(1 + f / 700) for f in (20, 8000)]
    points = torch.linspace(*edges, num_bins + 2, dtype=torch.float64)
    lower, centres, upper = (points[i : i + num_bins].unsqueeze(1) for i in range(3))
    weights = torch.minimum((mels - lower) / (centres - lower), (upper - mels) / (upper - centres))
    return (weights.clamp(min=0) @ spectrum).log()


def test_log_mel_beside_mfcc_equals_its_definition(noise, engine):
    features = Frontend(PRESETS["fbank80-mfcc13"], engine)(noise)
    assert features.shape == (101, 93)
    n, k = torch.arange(80).double() + 0.5, torch.arange(13).double()
    for t in (10, 50):
        middle = t * 160 + 80
        log_mel = log_mel_magnitudes_of_frame(noise[middle - 256 : middle + 256] * 32768, 80)
        dct = (log_mel * torch.cos(math.pi / 80 * k[:, None] * n)).sum(dim=1) * (2 / 80) ** 0.5
        dct[0] /= 2**0.5
        lifted = dct * (1 + 11 * torch.sin(math.pi * k / 22))
        expected = torch.cat([log_mel, lifted])
        torch.testing.assert_close(features[t].double(), expected, rtol=1e-3, atol=5e-3)


def test_the_cepstral_transform_equals_kaldi(noise, engine):
    common = {"num_mel_bins": 80, "frame_length_ms": 32.0}
    log_mel = Frontend(FrontendConfig(**common), engine)(noise).double()
    expected = Frontend(FrontendConfig("mfcc", num_ceps=20, **common), engine)(noise)
    cepstra = log_mel @ cepstral_transform(80, 20)
    torch.testing.assert_close(cepstra.float(), expected, rtol=1e-4, atol=1e-3)


def test_every_preset_has_lines_of_the_spectrum_in_its_filters(noise, engine):
    for config in PRESETS.values():
        features = Frontend(config, engine)(noise)
        assert features.shape == (101, config.dimension)
        assert features[:, : config.mel_bins].min() > -15  # the logarithm of nothing is -15.9


def test_log_mel_beside_mfcc_is_extracted_and_stored(make_cut, tmp_path):
    from toolkit.features.config import ExtractConfig
    from toolkit.features.cut_audio import load_cut_audio
    from toolkit.features.extract import extract
    from toolkit.features.shards import FeatureStore

    config, cut = PRESETS["fbank80-mfcc13"], make_cut("a", seconds=0.6)
    extract([cut], ExtractConfig(config), tmp_path / "f")
    store = FeatureStore(tmp_path / "f")
    assert store.dimension == 93
    assert FrontendConfig(**store.manifest["frontend"]) == config
    expected = Frontend(config)(load_cut_audio(cut))
    torch.testing.assert_close(store.load("a"), expected, rtol=2**-11, atol=1e-6)


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp", "fbank_mfcc"])
@pytest.mark.parametrize("num_samples", [400, 479, 480, 16000, 16079, 16080])
def test_every_kind_has_the_same_number_of_frames(kind, num_samples, engine):
    config = FrontendConfig(kind=kind)
    features = Frontend(config, engine)(torch.randn(num_samples) * 0.1)
    assert features.shape == ((num_samples + 80) // 160, config.dimension)
    assert features.dtype == torch.float32


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp", "fbank_mfcc"])
def test_features_are_contiguous(kind, engine):
    """Files and kernels need contiguous rows."""
    assert Frontend(FrontendConfig(kind), engine)(torch.randn(16000)).is_contiguous()


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp", "fbank_mfcc"])
def test_digital_silence_is_finite(kind, engine):
    assert Frontend(FrontendConfig(kind=kind), engine)(torch.zeros(4000)).isfinite().all()


def test_silence_changes_no_other_frame(engine):
    frontend = Frontend(FrontendConfig(kind="plp"), engine)
    noise = 0.1 * torch.randn(8000)
    features = frontend(torch.cat([noise, torch.zeros(4000)]))
    assert features.isfinite().all()
    torch.testing.assert_close(features[:47], frontend(noise)[:47], rtol=0, atol=1e-3)
    assert torch.equal(features, frontend(torch.cat([noise, torch.zeros(4000)])))


def test_too_few_or_not_finite_samples_are_an_error(engine):
    frontend = Frontend(FrontendConfig(), engine)
    with pytest.raises(FrontendError, match="399 samples"):
        frontend(torch.zeros(399))
    with pytest.raises(FrontendError, match="finite"):
        frontend(torch.full((4000,), math.nan))


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp", "fbank_mfcc"])
def test_16_bit_samples_give_exactly_the_features_of_one_kaldifeat_call(kind, engine):
    config = FrontendConfig(kind, frame_length_ms=32.0 if kind == "fbank_mfcc" else 25.0)
    compute = Frontend(config, engine)
    samples = torch.randint(-9000, 9000, (12345,), generator=torch.Generator().manual_seed(0))
    as_stored = samples.to(torch.int16)
    features = compute(as_stored)
    assert torch.equal(features, compute(as_stored.float() / 32768))
    if engine == "kaldifeat":
        at_once = kaldifeat_computer(config)(as_stored.float())
        assert torch.equal(features[:, : at_once.shape[1]], at_once)


@pytest.mark.parametrize(
    "options",
    [{"sampling_rate": 10**12}, {"sampling_rate": 0}, {"frame_length_ms": math.inf}],
)
def test_refuses_windows_that_would_take_all_memory(options):
    with pytest.raises(ValueError, match=r"sampling_rate|frame_length_ms|low_freq"):
        FrontendConfig(**options)


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp", "fbank_mfcc"])
def test_a_batch_equals_its_utterances(kind, engine):
    frontend = Frontend(FrontendConfig(kind), engine)
    utterances = [0.1 * torch.randn(n) for n in (16000, 479, 8123)]
    utterances += [torch.zeros(4000), torch.zeros(100), torch.full((4000,), float("nan"))]
    *noise_features, silence, short, broken = frontend.batch(utterances)
    for features, samples in zip([*noise_features, silence], utterances, strict=False):
        torch.testing.assert_close(features, frontend(samples), rtol=2e-6, atol=5e-5)
    for error, message in ((short, "fewer than one window"), (broken, "not finite")):
        assert isinstance(error, FrontendError)
        assert message in str(error)
    assert frontend.batch([]) == []


@pytest.fixture(autouse=True)
def no_engine_set(monkeypatch):
    """Unset the variable of the engine and clear the cached import of kaldifeat."""
    monkeypatch.delenv(FRONTEND_VARIABLE, raising=False)
    module.kaldifeat_import_error.cache_clear()
    yield
    module.kaldifeat_import_error.cache_clear()


def test_kaldifeat_is_the_engine_when_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldifeat", sys)
    assert feature_backend() == frontend_engine() == engines()["front end"] == "kaldifeat"


def test_torch_is_the_engine_without_kaldifeat(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldifeat", None)
    assert feature_backend() == frontend_engine() == engines()["front end"] == "torch"
    assert Frontend(FrontendConfig()).engine == "torch"


def test_the_variable_forces_an_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldifeat", sys)
    monkeypatch.setenv(FRONTEND_VARIABLE, "torch")
    assert feature_backend() == "torch"
    monkeypatch.setenv(FRONTEND_VARIABLE, "")
    assert feature_backend() == "kaldifeat"


def test_an_unknown_or_missing_engine_is_an_error(monkeypatch):
    monkeypatch.setenv(FRONTEND_VARIABLE, "kaldi")
    with pytest.raises(EngineError, match="'kaldi' but must be one of kaldifeat"):
        feature_backend()
    monkeypatch.setitem(sys.modules, "kaldifeat", None)
    monkeypatch.setenv(FRONTEND_VARIABLE, "kaldifeat")
    with pytest.raises(EngineError, match="is 'kaldifeat', which is not installed"):
        Frontend(FrontendConfig())


def test_a_broken_installed_engine_is_an_error(monkeypatch):
    """Another engine gives other features, so there is no silent fallback."""
    monkeypatch.setattr(module, "frontend_engine", lambda: "kaldifeat")
    monkeypatch.setitem(sys.modules, "kaldifeat", None)
    with pytest.raises(EngineError, match="kaldifeat cannot be imported"):
        Frontend(FrontendConfig())


def test_versions_name_the_engine():
    torch = pytest.importorskip("torch")
    assert engine_version("torch").split("+")[0] == f"torch {torch.__version__.split('+')[0]}"


@given(st.floats(0, 24000))
def test_the_mel_scale_is_rounded_once_per_operation(hertz):
    assert float(hertz_to_mel(torch.tensor(hertz))) == pytest.approx(
        1127 * math.log(1 + hertz / 700), rel=3e-7, abs=1e-4
    )


@pytest.mark.parametrize(("bins", "size", "rate"), [(23, 512, 16000), (40, 256, 8000)])
def test_filters_rise_and_fall_from_peak_to_peak(bins, size, rate):
    low, high = 20.0, rate / 2 - 100
    points = torch.linspace(
        1127 * math.log(1 + low / 700), 1127 * math.log(1 + high / 700), bins + 2,
        dtype=torch.float64,
    )  # fmt: skip
    torch.testing.assert_close(mel_points(bins, low, high).double(), points, rtol=0, atol=1e-3)
    filters = mel_filters(mel_points(bins, low, high), size, rate)
    assert filters.shape == (size // 2, bins)
    assert filters.min() == 0
    for i in range(size // 2):
        position = (1127 * math.log(1 + i * rate / size / 700) - points[0]) / (
            points[1] - points[0]
        )
        for m in range(bins):
            expected = max(0.0, 1 - abs(float(position) - (m + 1)))
            assert float(filters[i, m]) == pytest.approx(expected, abs=2e-5)


@pytest.fixture
def filters():
    return mel_filters(mel_points(23, 20.0, 8000.0), 512, 16000)


@pytest.fixture
def bank(filters):
    return FilterBank(filters, 400, 160)


@pytest.mark.parametrize("length", [400, 479, 480, 1040, 5000])
def test_frames_equal_their_definition_with_samples_mirrored_at_the_ends(bank, filters, length):
    samples = 1000 * torch.randn(length)
    energies = bank(samples)
    assert energies.shape == ((length + 80) // 160, 23)
    for t, frame_energies in enumerate(energies):
        places = [160 * t + 80 - 200 + i for i in range(400)]
        frame = samples.double()[[_mirrored(place, length) for place in places]]
        frame = frame - frame.mean()
        frame = frame - 0.97 * torch.cat([frame[:1], frame[:-1]])
        window = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(400).double() / 399)
        power = torch.fft.rfft(frame * window**0.85, n=512).abs().square()[:-1]
        expected = power @ filters.double()
        torch.testing.assert_close(frame_energies.double(), expected, rtol=1e-4, atol=0)


def _mirrored(place, length):
    return -1 - place if place < 0 else min(place, 2 * length - 1 - place)


def test_blocks_of_frames_give_the_energies_of_one_block(bank, monkeypatch):
    samples = 1000 * torch.randn(16000)
    whole = bank(samples)
    monkeypatch.setattr(module, "FRAMES_PER_BLOCK", 7)
    torch.testing.assert_close(bank(samples), whole, rtol=1e-5, atol=0)


def test_constant_samples_have_no_energy(bank):
    assert bank(torch.full((4000,), 12345.0)).max() < 1e-6


SPECTRA = st.lists(st.floats(1e-3, 1e3), min_size=16, max_size=16)
SMOOTH = st.lists(st.floats(0.1, 10), min_size=16, max_size=16)
"""Whose poles are far enough from the unit circle for a spectrum of 4,096 points."""


def autocorrelation(spectrum, order):
    """Autocorrelation [order + 1] of a power spectrum at 16 frequencies from 0 to Nyquist."""
    return torch.fft.irfft(torch.tensor(spectrum, dtype=torch.complex128))[: order + 1]


@settings(deadline=None)
@given(st.lists(SPECTRA, min_size=1, max_size=3))
def test_durbin_solves_the_normal_equations(spectra):
    order = 6
    frames = torch.stack([autocorrelation(spectrum, order) for spectrum in spectra], dim=1)
    predictor, energy = durbin(frames)
    for t in range(len(spectra)):
        r = frames[:, t]
        matrix = torch.stack([r[(torch.arange(order) - i).abs()] for i in range(order)])
        expected = torch.linalg.solve(matrix, -r[1:])
        torch.testing.assert_close(predictor[:, t], expected, rtol=1e-6, atol=1e-9)
        assert float(energy[t]) == pytest.approx(float(r[0] + expected @ r[1:]), rel=1e-6)


def test_the_residual_of_a_tone_is_floored():
    tone = torch.cos(torch.arange(3, dtype=torch.float64))[:, None]
    _, energy = durbin(tone)
    assert float(energy) == pytest.approx((1 - math.cos(1) ** 2) * 1e-5)


@settings(deadline=None)
@given(SMOOTH)
def test_the_cepstrum_is_that_of_the_filters_spectrum(spectrum):
    predictor, _ = durbin(autocorrelation(spectrum, 4)[:, None])
    size = 4096
    polynomial = torch.cat([torch.ones(1, dtype=torch.float64), predictor[:, 0]])
    log_power = -2 * torch.fft.rfft(polynomial, n=size).abs().log()
    expected = torch.fft.irfft(log_power, n=size)[1:5]  # of both sides: half of each on either
    torch.testing.assert_close(cepstrum(predictor)[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_silence_is_not_a_number_and_loudness_adds_to_c0_alone():
    plp = PerceptualLinearPrediction(mel_points(23, 20.0, 8000.0), 13)
    energies = 1e6 * torch.rand(2, 23) + 1e5
    assert plp(torch.zeros(1, 23)).isnan().any()
    low, high = plp(energies), plp(1e6 * energies)
    torch.testing.assert_close(high[:, 1:], low[:, 1:], rtol=0, atol=1e-4)
    # Kaldi's exponent is 0.33333
    assert float((high - low)[0, 0]) == pytest.approx(0.33333 * math.log(1e6), abs=1e-4)


def test_the_lifter_is_highest_in_its_middle():
    assert float(lifter(13)[0]) == 1
    assert float(lifter(13)[11]) == 12
