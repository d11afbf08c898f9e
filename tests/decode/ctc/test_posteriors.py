import pytest
import torch

from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.ctc.system import Posteriors, write_posteriors
from toolkit.features.normalise import Cmvn, estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.models.config import CtcConfig
from toolkit.models.ctc import CtcModel
from toolkit.models.store import load_model, save_model

lhotse = pytest.importorskip("lhotse")


@pytest.fixture
def system(tmp_path):
    """Features of three utterances, the last too short for the network; a network."""
    from tests.dummies import dummy_recording
    from toolkit.corpus.manifest import make_cut
    from toolkit.features.config import FrontendConfig
    from toolkit.features.shards import write_manifest, write_shard

    torch.manual_seed(0)
    config = FrontendConfig(num_mel_bins=4)
    rows = [
        (make_cut(f"u{n}", dummy_recording(0), "", "s"), "s", torch.randn(frames, 4))
        for n, frames in enumerate((40, 60, 5))
    ]
    utterances, frames = write_shard(tmp_path / "features/shards", 0, rows, config)
    write_manifest(tmp_path / "features", config, [{"utterances": utterances, "frames": frames}])
    estimate_normaliser(FeatureStore(tmp_path / "features"), 100).save(tmp_path / "norm.json")
    sizes = {"input_dim": 4, "output_dim": 5, "channels": (6,), "hidden": 7, "lstm_layers": 1}
    (tmp_path / "model").mkdir()
    save_model(tmp_path / "model", CtcModel(CtcConfig(**sizes)))
    return tmp_path


def write(system):
    paths = (system / name for name in ("model", "norm.json", "features", "posteriors"))
    write_posteriors(*paths)
    return Posteriors(system / "posteriors")


def test_equal_to_the_network_on_each_utterance(system):
    posteriors = write(system)
    store, normaliser = FeatureStore(system / "features"), Cmvn.load(system / "norm.json")
    model = load_model(system / "model").eval()
    assert list(posteriors) == ["u0", "u1", "u2"]
    for name in ("u0", "u1"):
        x = normaliser.apply(store.load(name), store.cmn_state(name))
        with torch.inference_mode():
            expected, _ = model(x[None])
        torch.testing.assert_close(posteriors[name], expected[0], rtol=1e-5, atol=1e-5)
    assert posteriors["u2"].shape == (0, 5)


def test_a_killed_run_keeps_what_is_there(system):
    write(system)
    (system / "posteriors" / "posteriors.json").unlink()
    with pytest.raises(CtcDecodeError, match="decode again"):
        Posteriors(system / "posteriors")
    file = system / "posteriors" / "posteriors.000000.tar"
    modified_ns = file.stat().st_mtime_ns
    assert len(write(system)) == 3
    assert file.stat().st_mtime_ns == modified_ns
