"""The torch engine equals kaldifeat, and a GPU equals the CPU."""

import math

import pytest
import torch

from toolkit.features import frontend as module
from toolkit.features.config import PRESETS, FrontendConfig
from toolkit.features.frontend import Frontend

CONFIGS = [
    *PRESETS.values(),
    FrontendConfig(),
    FrontendConfig(num_mel_bins=40, high_freq=-400.0, low_freq=60.0),
    FrontendConfig("mfcc"),
    FrontendConfig("mfcc", num_mel_bins=40, num_ceps=40, sampling_rate=8000),
    FrontendConfig("mfcc", sampling_rate=11025),  # windows of 275.6 samples: 275 in Kaldi
    FrontendConfig("plp"),
    FrontendConfig("plp", num_ceps=9, frame_length_ms=32.0, sampling_rate=22050),
]


@pytest.fixture(scope="module")
def speech():
    """Words of the demo corpus between two stretches of digital silence: int16."""
    pytest.importorskip("espeakng_loader")
    from local.synthetic.espeak import Voice, speak
    from local.synthetic.sound import to_corpus_rate

    parts = [torch.zeros(3000)]
    for voice in ("en-us", "en-us+f3"):
        spoken = speak("she had your dark suit in greasy wash water", Voice(voice)).samples
        parts += [torch.from_numpy(to_corpus_rate(spoken)).float(), torch.zeros(3000)]
    samples = torch.cat(parts)
    return (samples / samples.abs().max() * 20000).round().to(torch.int16)


@pytest.fixture(params=["speech", "noise", "quiet", "silence"])
def samples(request):
    if request.param == "speech":
        return request.getfixturevalue("speech")
    level = {"noise": 3000.0, "quiet": 3.0, "silence": 0.0}[request.param]
    noise = torch.randn(32123, generator=torch.Generator().manual_seed(1))
    return (noise * level).round().to(torch.int16)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_torch_agrees_with_kaldifeat(config, samples, monkeypatch):
    pytest.importorskip("kaldifeat")
    conditions = remember_conditions(monkeypatch)
    features, expected = Frontend(config, "torch")(samples), Frontend(config, "kaldifeat")(samples)
    assert features.shape == expected.shape
    difference = (features - expected).abs()
    if config.kind != "plp":
        assert difference.max() <= 2e-4
        return
    # kaldifeat solves the normal equations in float32: the relative error of a predictor is at
    # most its condition number in units of roundoff, and the lifter multiplies it by up to 12.
    # 2e-5 is what other roundings amount to.
    bound = 2e-5 + 12 * 2**-24 * conditions[0]
    is_finite = conditions[0].isfinite()
    assert (difference.amax(dim=1)[is_finite] <= bound[is_finite]).all()
    assert difference.max() <= 1e-3


def remember_conditions(monkeypatch):
    """Record the condition numbers [T] of the frames of every call of `durbin`."""
    conditions, durbin = [], module.durbin

    def remembering(autocorrelation):
        order = len(autocorrelation) - 1
        lags = torch.arange(order)
        matrices = autocorrelation[(lags[:, None] - lags).abs()].permute(2, 0, 1)
        whole = matrices.isfinite().all(dim=2).all(dim=1) & (autocorrelation[0] > 0)
        condition_numbers = torch.full((len(matrices),), math.inf, dtype=torch.float64)
        condition_numbers[whole] = torch.linalg.cond(matrices[whole])
        conditions.append(condition_numbers)
        return durbin(autocorrelation)

    monkeypatch.setattr(module, "durbin", remembering)
    return conditions


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_gpu_agrees_with_the_processor(config):
    noise = 3000 * torch.randn(32123, generator=torch.Generator().manual_seed(1))
    samples = torch.cat([noise, torch.zeros(4000)]).to(torch.int16)
    frontend = Frontend(config, "torch")
    features = frontend(samples.cuda())
    assert features.is_cuda
    torch.testing.assert_close(features.cpu(), frontend(samples), rtol=0, atol=5e-3)
