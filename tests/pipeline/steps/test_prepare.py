import json
from dataclasses import replace

import pytest
import torch

from toolkit.features.config import FrontendConfig
from toolkit.features.extract import FAILED
from toolkit.features.normalise import Cmvn, estimate_normaliser
from toolkit.features.shards import FeatureStore, StoreError
from toolkit.pipeline.config import PrepareConfig, SelectConfig, ShuffleConfig
from toolkit.pipeline.lake import Lake, Record, open_lake, resolve
from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.markers import plain_name
from toolkit.pipeline.prepare import prepare_features
from toolkit.pipeline.shards import shards_of, write_manifests
from toolkit.pipeline.steps.extract import Extract, ExtractConfig, plan_extract
from toolkit.pipeline.steps.select import select_records
from toolkit.pipeline.steps.shuffle import Shuffle, plan_shuffle
from toolkit.pipeline.steps.stats import NormaliserStatsError

CONFIG = PrepareConfig(
    SelectConfig(hours=0.01, hours_per_file=0.003), FrontendConfig(num_mel_bins=8)
)


def data(contents):
    """Files of the steps by the names that the steps chose, without those of the executor."""
    names = {}
    for name in contents:
        out, _, inside = name.partition("/")
        names[name] = f"{out}/{plain_name(f'/{inside}', '')}"
    return {
        plain_path: contents[name]
        for name, plain_path in names.items()
        if not any(part.startswith("_") for part in plain_path.split("/"))
    }


def test_prepare_features_from_a_lake(lake, here, store, tmp_path):
    features, normaliser = prepare_features(lake, CONFIG, here, store, str(tmp_path / "out"))
    feature_store = FeatureStore(features.url)
    assert len(features.shards) == 3
    assert sum(shard.hours for shard in features.shards) == pytest.approx(0.01, rel=0.06)
    expected = estimate_normaliser(feature_store)
    torch.testing.assert_close(normaliser.residual.std, expected.residual.std, rtol=1e-12, atol=0)
    torch.testing.assert_close(normaliser.prior_mean, expected.prior_mean, rtol=1e-13, atol=0)
    stored = Cmvn.load(f"{features.url}/normaliser.json")
    assert stored.to_json() == normaliser.to_json()
    assert features.failures == []


def test_a_file_without_any_audio_is_empty_and_its_failures_are_listed(lake, here, store, tmp_path):
    records = [
        Record.from_line(line) for ref in lake.objects for line in store.get(ref).splitlines()
    ]
    speakers = sorted({record.speaker for record in records})
    lost = [record for record in records if record.speaker == speakers[0]]
    missing = [replace(record, audio=f"{record.audio}.gone") for record in lost]
    content = b"".join(r.to_line() for r in [*records, *missing] if r not in lost) + b"nonsense"
    url = str(tmp_path / "lake")
    ref = store.put(f"{url}/metadata/2026/speakers.0000.jsonl", content)
    for record in records:
        audio = resolve(record.audio, lake.url)
        if record.offset is None:
            store.put(resolve(record.audio, url), store.get(audio))
    config = replace(CONFIG, select=SelectConfig(hours=1.0, hours_per_file=1e-4))
    features, normaliser = prepare_features(
        Lake(url, (ref,)), config, here, store, str(tmp_path / "out"), up_to=True
    )
    assert {shard.utterances for shard in features.shards} > {0}
    assert len(FeatureStore(features.url)) == len(records) - len(lost)
    reasons = dict(features.failures)
    assert {record.id for record in lost} <= reasons.keys()
    assert "not a metadata record" in reasons[f"2026/speakers.0000.jsonl:{len(records) + 1}"]
    listed = store.get(f"{features.url}/{FAILED}").decode().splitlines()
    assert [line.split("\t")[0] for line in listed] == [name for name, _ in features.failures]
    expected = estimate_normaliser(FeatureStore(features.url))
    torch.testing.assert_close(normaliser.prior_mean, expected.prior_mean, rtol=1e-12, atol=0)


def test_a_lake_without_readable_audio_is_an_error(here, store, tmp_path):
    url = str(tmp_path / "lake")
    line = Record("u", "s", 3.0, 1.0, "", "u.wav").to_line()
    ref = store.put(f"{url}/metadata/2026/speakers.0000.jsonl", line)
    with pytest.raises(NormaliserStatsError, match="no utterance could be read"):
        prepare_features(Lake(url, (ref,)), CONFIG, here, store, str(tmp_path / "out"), up_to=True)


def test_an_id_of_several_speakers_is_named_when_features_are_read(cuts, here, store, tmp_path):
    url, audio = str(tmp_path / "lake"), cuts[0].recording.sources[0].source
    records = [Record("u", f"s{n}", cuts[0].duration, 1.0, "", audio) for n in range(8)]
    content = b"".join(record.to_line() for record in records)
    ref = store.put(f"{url}/metadata/2026/speakers.0000.jsonl", content)
    select = SelectConfig(hours=1.0, hours_per_file=1e-6)
    features, _ = prepare_features(
        Lake(url, (ref,), 8), replace(CONFIG, select=select), here, store, f"{url}/o", up_to=True
    )
    with pytest.raises(StoreError, match="'u' is the id of several utterances"):
        FeatureStore(features.url)


def test_fused_steps_write_what_single_steps_write(lake, here, store, tmp_path, contents):
    base = str(tmp_path / "out")
    features, _ = prepare_features(lake, CONFIG, here, store, base)
    files = select_records(lake, CONFIG.select, here, store, base).files
    extract = Extract(ExtractConfig(lake.url, CONFIG.frontend))
    results = here.run(extract, plan_extract(files), f"{base}/single")
    plan = plan_shuffle(shards_of(ref for r in results for ref in r.outputs), ShuffleConfig())
    shuffled = here.run(Shuffle(ShuffleConfig()), plan, f"{base}/shuffled")
    write_manifests(store, f"{base}/shuffled", shuffled, CONFIG.frontend)
    fused = contents(features.url)
    del fused["normaliser.json"]
    assert fused == contents(f"{base}/shuffled")


@pytest.mark.long
def test_processes_and_order_do_not_change_a_byte(lake, here, store, tmp_path, contents):
    class Backwards:
        def run(self, step, partitions, out):
            results = here.run(step, partitions[::-1], out)
            return results[::-1]

    backward_features, _ = prepare_features(lake, CONFIG, Backwards(), store, str(tmp_path / "one"))
    with LocalExecutor(slots=("cpu", "cpu")) as executor:
        process_features, _ = prepare_features(
            open_lake(store, lake.url), CONFIG, executor, store, str(tmp_path / "two")
        )
    first, second = contents(tmp_path / "one"), data(contents(tmp_path / "two"))
    assert first == second
    assert backward_features.url.removeprefix(
        str(tmp_path / "one")
    ) == process_features.url.removeprefix(str(tmp_path / "two"))
    assert json.loads(first[next(n for n in first if n.endswith("features.json"))])["failed"] == 0
