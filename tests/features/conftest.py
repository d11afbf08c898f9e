"""Small stores and recordings shared by the tests of this folder."""

from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from toolkit.engines import FRONTENDS

RATE = 16000


@pytest.fixture(params=[name for name in FRONTENDS if find_spec(name)])
def engine(request):
    """Each engine of the front end that is installed."""
    return request.param


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def make_cut(tmp_path):
    """Write noise as FLAC and return a cut of it."""
    from lhotse import Recording, SupervisionSegment
    from lhotse.cut import MonoCut

    def make(name, speaker="a", seconds=0.5, start=0.0, end=None, rate=RATE, channels=1, **custom):
        path = tmp_path / "audio" / f"{name}.flac"
        path.parent.mkdir(exist_ok=True)
        seed = sum(name.encode())
        noise = np.random.default_rng(seed).uniform(-0.5, 0.5, (round(seconds * rate), channels))
        soundfile.write(path, noise, rate)
        recording = Recording.from_file(path, recording_id=name)
        duration = (seconds if end is None else end) - start
        supervision = SupervisionSegment(name, name, 0.0, duration, text="x", speaker=speaker)
        return MonoCut(
            name, start, duration, 0, supervisions=[supervision], recording=recording,
            custom=custom or None,
        )  # fmt: skip

    return make


@pytest.fixture
def small_store(tmp_path, make_cut):
    """A store of random features written without a front end: two shards, three speakers."""
    from toolkit.features.config import FrontendConfig
    from toolkit.features.shards import FeatureStore, write_manifest, write_shard

    config = FrontendConfig(num_mel_bins=4)
    generator = torch.Generator().manual_seed(1)
    folder = tmp_path / "fbank"
    features, cuts, shards = {}, {}, []
    for index, speakers in enumerate((("anna", "bert"), ("carl",))):
        utterances = []
        for speaker in speakers:
            for number in range(3):
                name = f"{speaker}.x/{number}"  # a dot and a slash, as real ids have
                frames = 20 + 7 * number + 11 * index
                cut = make_cut(name.replace("/", "-"), speaker, seconds=frames / 100)
                cut.id = name
                x = 15 + 4 * torch.randn(frames, 4, generator=generator)
                features[name], cuts[name] = x.half().float(), cut
                utterances.append((cut, speaker, x))
        written = write_shard(folder / "shards", index, utterances, config)
        shards.append(dict(zip(("utterances", "frames"), written, strict=True)))
    write_manifest(folder, config, shards)
    return SimpleNamespace(
        store=FeatureStore(folder), path=folder, features=features, cuts=cuts, config=config
    )
