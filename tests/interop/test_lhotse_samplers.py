"""lhotse's samplers batch the toolkit's cuts with the installed torch."""

import numpy as np
import pytest
import soundfile
from lhotse import CutSet
from lhotse.dataset import DynamicBucketingSampler, SimpleCutSampler

from toolkit.corpus.manifest import make_cut, probe_recording, write_cuts


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuts")
    cuts = []
    for n in range(12):
        path = folder / f"{n}.wav"
        soundfile.write(path, np.zeros(4000 * (1 + n % 3)), 16000)
        recording, fault = probe_recording(path, path.stem)
        assert fault is None
        cuts.append(make_cut(path.stem, recording, f"WORD {n}", f"speaker{n % 2}"))
    write_cuts(cuts, folder / "cuts.jsonl")
    return folder / "cuts.jsonl"


@pytest.mark.parametrize(
    ("sampler", "options"), [(SimpleCutSampler, {}), (DynamicBucketingSampler, {"num_buckets": 3})]
)
def test_every_cut_is_in_one_batch(manifest, sampler, options):
    batches = list(sampler(CutSet.from_file(manifest), max_duration=2.0, shuffle=True, **options))
    assert sorted(cut.id for batch in batches for cut in batch) == sorted(map(str, range(12)))
    assert all(sum(cut.duration for cut in batch) <= 2.0 for batch in batches)
    texts = {cut.id: cut.supervisions[0].text for batch in batches for cut in batch}
    assert texts == {str(n): f"WORD {n}" for n in range(12)}
