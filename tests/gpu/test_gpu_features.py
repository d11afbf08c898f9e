"""The front end on a GPU equals that on the CPU."""

import numpy as np
import pytest
import torch

from benchmarks.synthetic import write_noise
from toolkit.features.config import PRESETS, ExtractConfig, FrontendConfig
from toolkit.features.extract import extract
from toolkit.features.frontend import Frontend, FrontendError
from toolkit.features.shards import FeatureStore

CONFIGS = [FrontendConfig(kind) for kind in ("fbank", "mfcc", "plp")] + list(PRESETS.values())


@pytest.fixture
def utterances():
    """Noise of several lengths, the last with digital silence at its end, as float32 samples."""
    rng = np.random.default_rng(0)
    samples = [rng.normal(0, 0.1, n).astype(np.float32) for n in (16000, 9123, 30111, 12000)]
    samples[-1][6000:] = 0
    return [torch.from_numpy(x) for x in samples]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_batch_on_the_device_equals_the_cpu(config, device, utterances):
    cpu_frontend = Frontend(config, "torch")
    batch = Frontend(config, "torch", str(device)).batch(utterances)
    for features, samples in zip(batch, utterances, strict=True):
        expected = cpu_frontend(samples)
        # A narrow filter that holds next to nothing shows roundings, and PLP amplifies them.
        torch.testing.assert_close(features, expected, rtol=0, atol=5e-3)
        if config.kind != "plp":
            differs = (features - expected).abs() > 2e-4
            assert differs.float().mean() < 1e-3


def test_an_utterance_that_is_too_short_does_not_spoil_its_batch(device, utterances):
    frontend = Frontend(FrontendConfig(), "torch", str(device))
    first, error, last = frontend.batch([utterances[0], torch.zeros(100), utterances[1]])
    assert isinstance(error, FrontendError)
    assert (len(first), len(last)) == (100, 57)
    assert isinstance(frontend.batch([torch.zeros(9)])[0], FrontendError)


def test_extraction_stores_what_the_cpu_stores(device, tmp_path):
    (tmp_path / "audio").mkdir()
    cuts = [write_noise(tmp_path / "audio", number, 0.7) for number in range(7)]
    (tmp_path / "audio" / "noise-3.flac").write_bytes(b"broken")
    config = ExtractConfig(hours_per_shard=2 / 3600, max_failed_share=0.2)
    for cut in cuts[:3]:
        cut.supervisions[0].speaker = "another"
    expected = extract(cuts, config, tmp_path / "cpu")
    headline = extract(cuts, config, tmp_path / "device", jobs=3, device=str(device))
    assert {**headline, "xRT": 0} == {**expected, "xRT": 0}
    assert headline["failed"] == 1
    stores = FeatureStore(tmp_path / "cpu"), FeatureStore(tmp_path / "device")
    assert stores[0].shards == stores[1].shards
    assert len(stores[0].shards) == 2
    for name in stores[0].ids:
        features = [store.load(name) for store in stores]
        torch.testing.assert_close(*features, rtol=2**-10, atol=1e-3)  # stored as float16
    lines = [(tmp_path / name / "failed.tsv").read_text() for name in ("cpu", "device")]
    assert lines[0] == lines[1]
    assert extract(cuts, config, tmp_path / "device", device=str(device)).keys() == {
        "hours",
        "utterances",
        "failed",
    }  # nothing was left to do
