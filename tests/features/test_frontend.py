import math

import pytest
import torch

from tests.optional import load_torchaudio
from toolkit.features.cepstra import cepstral_transform
from toolkit.features.frontend import (
    PRESETS,
    Frontend,
    FrontendConfig,
    FrontendError,
    kaldifeat_computer,
)


@pytest.mark.parametrize(
    ("wrong", "message"),
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
def test_refuses_impossible_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        FrontendConfig(**wrong)


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
    got = Frontend(config, engine)(noise)
    common = {
        "num_mel_bins": config.mel_bins,
        "frame_length": 32.0,
        "high_freq": -400.0,
        "snip_edges": False,
        "dither": 0.0,
    }
    function = getattr(kaldi, kind)
    expected = function(noise.unsqueeze(0) * 32768, **common)
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-2)


def plp_of_frame(frame, mel_edges, order=12, num_ceps=13):
    """PLP of one frame in float64 from the definition (Hermansky 1990, with Kaldi's choices)."""
    length = len(frame)
    frame = frame.double() - frame.double().mean()
    frame = frame - 0.97 * torch.cat([frame[:1], frame[:-1]])
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(length).double() / (length - 1))
    spectrum = torch.fft.rfft(frame * window**0.85, n=512).abs().square()
    mel = 1127 * torch.log(1 + torch.arange(257).double() * 16000 / 512 / 700)
    points = torch.linspace(*mel_edges, 25, dtype=torch.float64)
    left, middle, right = (points[i : i + 23].unsqueeze(1) for i in range(3))
    weights = torch.minimum((mel - left) / (middle - left), (right - mel) / (right - middle))
    weights = weights.clamp(min=0)
    weights[:, 256] = 0  # Kaldi leaves the Nyquist bin out
    energies = weights @ spectrum
    hertz = 700 * (torch.exp(middle.squeeze(1) / 1127) - 1)
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
    got = Frontend(FrontendConfig(kind="plp"), engine)(noise)
    edges = tuple(1127 * math.log(1 + f / 700) for f in (20, 8000))
    for t in (10, 50):
        middle = t * 160 + 80
        expected = plp_of_frame(noise[middle - 200 : middle + 200] * 32768, edges)
        torch.testing.assert_close(got[t].double(), expected, rtol=1e-3, atol=1e-2)


def log_mel_magnitudes_of_frame(frame, num_bins):
    """Log-mel of one frame in float64, from the magnitude of the spectrum (A1), else as Kaldi."""
    length = len(frame)
    frame = frame.double() - frame.double().mean()
    frame = frame - 0.97 * torch.cat([frame[:1], frame[:-1]])
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(length).double() / (length - 1))
    spectrum = torch.fft.rfft(frame * window**0.85, n=512).abs()[:256]
    mel = 1127 * torch.log(1 + torch.arange(256).double() * 16000 / 512 / 700)
    edges = [1127 * math.log(1 + f / 700) for f in (20, 8000)]
    points = torch.linspace(*edges, num_bins + 2, dtype=torch.float64)
    left, middle, right = (points[i : i + num_bins].unsqueeze(1) for i in range(3))
    weights = torch.minimum((mel - left) / (middle - left), (right - mel) / (right - middle))
    return (weights.clamp(min=0) @ spectrum).log()


def test_log_mel_beside_mfcc_equals_its_definition(noise, engine):
    got = Frontend(PRESETS["fbank80-mfcc13"], engine)(noise)
    assert got.shape == (101, 93)
    n, k = torch.arange(80).double() + 0.5, torch.arange(13).double()
    for t in (10, 50):
        middle = t * 160 + 80
        log_mel = log_mel_magnitudes_of_frame(noise[middle - 256 : middle + 256] * 32768, 80)
        dct = (log_mel * torch.cos(math.pi / 80 * k[:, None] * n)).sum(dim=1) * (2 / 80) ** 0.5
        dct[0] /= 2**0.5
        lifted = dct * (1 + 11 * torch.sin(math.pi * k / 22))
        expected = torch.cat([log_mel, lifted])
        torch.testing.assert_close(got[t].double(), expected, rtol=1e-3, atol=5e-3)


def test_the_cepstral_transform_is_kaldis(noise, engine):
    common = {"num_mel_bins": 80, "frame_length_ms": 32.0}
    log_mel = Frontend(FrontendConfig(**common), engine)(noise).double()
    expected = Frontend(FrontendConfig("mfcc", num_ceps=20, **common), engine)(noise)
    got = log_mel @ cepstral_transform(80, 20)
    torch.testing.assert_close(got.float(), expected, rtol=1e-4, atol=1e-3)


def test_every_preset_has_lines_of_the_spectrum_in_its_filters(noise, engine):
    for config in PRESETS.values():
        features = Frontend(config, engine)(noise)
        assert features.shape == (101, config.dimension)
        assert features[:, : config.mel_bins].min() > -15  # the logarithm of nothing is -15.9


def test_log_mel_beside_mfcc_is_extracted_and_stored(make_cut, tmp_path):
    from toolkit.features.cut_audio import load_cut_audio
    from toolkit.features.extract import ExtractConfig, extract
    from toolkit.features.store import FeatureStore

    config, cut = PRESETS["fbank80-mfcc13"], make_cut("a", seconds=0.6)
    extract([cut], ExtractConfig(config), tmp_path / "f")
    store = FeatureStore(tmp_path / "f")
    assert store.dimension == 93
    assert FrontendConfig(**store.manifest["frontend"]) == config
    expected = Frontend(config)(load_cut_audio(cut))
    torch.testing.assert_close(store.load("a"), expected, rtol=2**-11, atol=1e-6)


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp", "fbank_mfcc"])
@pytest.mark.parametrize("num_samples", [400, 479, 480, 16000, 16079, 16080])
def test_the_number_of_frames_is_that_of_every_kind(kind, num_samples, engine):
    config = FrontendConfig(kind=kind)
    got = Frontend(config, engine)(torch.randn(num_samples) * 0.1)
    assert got.shape == ((num_samples + 80) // 160, config.dimension)
    assert got.dtype == torch.float32


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp", "fbank_mfcc"])
def test_rows_are_frames_in_memory_too(kind, engine):
    """As files and kernels want them."""
    assert Frontend(FrontendConfig(kind), engine)(torch.randn(16000)).is_contiguous()


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp", "fbank_mfcc"])
def test_digital_silence_is_finite(kind, engine):
    assert Frontend(FrontendConfig(kind=kind), engine)(torch.zeros(4000)).isfinite().all()


def test_silence_changes_no_other_frame(engine):
    frontend = Frontend(FrontendConfig(kind="plp"), engine)
    noise = 0.1 * torch.randn(8000)
    got = frontend(torch.cat([noise, torch.zeros(4000)]))
    assert got.isfinite().all()
    torch.testing.assert_close(got[:47], frontend(noise)[:47], rtol=0, atol=1e-3)
    assert torch.equal(got, frontend(torch.cat([noise, torch.zeros(4000)])))


def test_too_short_and_not_a_number(engine):
    frontend = Frontend(FrontendConfig(), engine)
    with pytest.raises(FrontendError, match="399 samples"):
        frontend(torch.zeros(399))
    with pytest.raises(FrontendError, match="finite"):
        frontend(torch.full((4000,), math.nan))


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp", "fbank_mfcc"])
def test_samples_of_16_bits_give_the_same_bits_as_kaldifeat_at_once(kind, engine):
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
    "wrong",
    [{"sampling_rate": 10**12}, {"sampling_rate": 0}, {"frame_length_ms": math.inf}],
)
def test_refuses_windows_that_would_take_all_memory(wrong):
    with pytest.raises(ValueError, match=r"sampling_rate|frame_length_ms|low_freq"):
        FrontendConfig(**wrong)


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp", "fbank_mfcc"])
def test_a_batch_is_its_utterances(kind, engine):
    frontend = Frontend(FrontendConfig(kind), engine)
    utterances = [0.1 * torch.randn(n) for n in (16000, 479, 8123)]
    utterances += [torch.zeros(4000), torch.zeros(100), torch.full((4000,), float("nan"))]
    *found, silence, short, broken = frontend.batch(utterances)
    for features, samples in zip([*found, silence], utterances, strict=False):
        torch.testing.assert_close(features, frontend(samples), rtol=2e-6, atol=5e-5)
    for error, message in ((short, "fewer than one window"), (broken, "not finite")):
        assert isinstance(error, FrontendError)
        assert message in str(error)
    assert frontend.batch([]) == []
