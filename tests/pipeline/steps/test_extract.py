import json
from dataclasses import replace

import pytest
import torch
from lhotse.serialization import deserialize_item

from tests.pipeline.synthetic_lake import SyntheticLakeConfig, make_lake
from toolkit.corpus.manifest import speaker_of
from toolkit.features.audio import decode_audio, load_audio
from toolkit.features.config import ExtractConfig as RecipeConfig
from toolkit.features.config import FrontendConfig
from toolkit.features.extract import extract
from toolkit.features.frontend import Frontend
from toolkit.features.shards import CmnState, FeatureStore
from toolkit.features.silence import counted_frames
from toolkit.pipeline.lake import Record
from toolkit.pipeline.shards import shards_of, write_manifests
from toolkit.pipeline.step import StepError
from toolkit.pipeline.steps.extract import (
    Extract,
    ExtractConfig,
    check_order,
    make_cut,
    plan_extract,
)

FRONTEND = FrontendConfig(num_mel_bins=8)


def run(here, store, lake, records, out):
    ref = store.put(f"{out}/records.jsonl", b"".join(r.to_line() for r in records))
    step = Extract(ExtractConfig(lake.url, FRONTEND))
    return here.run(step, plan_extract([ref]), str(out))[0]


def opened(store, out, result):
    write_manifests(store, str(out), [result], FRONTEND)
    return FeatureStore(out)


def test_features_and_causal_means_are_those_of_the_audio(
    lake, cuts, records, here, store, tmp_path
):
    extracted = opened(store, tmp_path / "f", run(here, store, lake, records, tmp_path / "f"))
    frontend, audio = Frontend(FRONTEND), {cut.id: cut.recording.sources[0].source for cut in cuts}
    assert extracted.ids == [record.id for record in records]
    states = {}
    for record in records:
        state = states.get(record.speaker, CmnState.empty(8))
        expected = frontend(load_audio(audio[record.id[:3]])).half()
        assert torch.equal(extracted.load(record.id), expected.float())
        assert extracted.cmn_state(record.id).frames == state.frames
        torch.testing.assert_close(
            extracted.cmn_state(record.id).sum, state.sum, rtol=1e-12, atol=0
        )
        states[record.speaker] = state.after(expected, counted_frames(expected, "fbank"))


def test_the_recipes_extraction_gives_the_same_store(cuts, here, store, tmp_path):
    lake = make_lake(
        cuts, store, str(tmp_path / "lake"), SyntheticLakeConfig(buckets=1, layout="in-place")
    )
    records = [Record.from_line(x) for r in lake.objects for x in store.get(r).splitlines()]
    records.sort(key=lambda record: (record.speaker, record.time))
    extracted = opened(store, tmp_path / "f", run(here, store, lake, records, tmp_path / "f"))
    times = {record.id[:3]: record.time for record in records}
    for cut in cuts:
        cut.custom = {"time": times[cut.id]}
    extract(cuts, RecipeConfig(FRONTEND, hours_per_shard=5), tmp_path / "recipe")
    recipe_features = FeatureStore(tmp_path / "recipe")
    assert len(extracted) == len(recipe_features)
    for record in records:
        name = record.id[:3]
        assert torch.equal(extracted.load(record.id), recipe_features.load(name))
        assert torch.equal(extracted.cmn_state(record.id).sum, recipe_features.cmn_state(name).sum)


@pytest.mark.parametrize("layout", ["single", "in-place"])
@pytest.mark.parametrize("encoding", ["WAV", "FLAC"])
def test_features_do_not_depend_on_how_audio_is_stored(
    cuts, lake, records, here, store, tmp_path, layout, encoding
):
    hours = sum(record.duration for record in records) / 3600 - 1e-6
    config = SyntheticLakeConfig(hours=hours, days=60, buckets=2, layout=layout, encoding=encoding)
    other_lake = make_lake(cuts, store, str(tmp_path / "other"), config)
    other_records = [
        Record.from_line(x) for r in other_lake.objects for x in store.get(r).splitlines()
    ]
    other_records.sort(key=lambda record: (record.speaker, record.time, record.id))
    assert [r.id for r in other_records] == [r.id for r in records]
    run(here, store, lake, records, tmp_path / "a")
    run(here, store, other_lake, other_records, tmp_path / "b")
    tar = "shards/features.000000.tar"
    assert (tmp_path / "a" / tar).read_bytes() == (tmp_path / "b" / tar).read_bytes()


def test_broken_audio_fails_only_its_utterance(lake, records, here, store, tmp_path):
    first = [record for record in records if record.speaker == records[0].speaker]
    store.put(f"{lake.url}/nonsense.wav", b"RIFF of nonsense")
    broken = [
        first[0],
        replace(first[1], audio="none.tar"),
        replace(first[2], audio="nonsense.wav", offset=None, size=None),
        replace(first[3], size=first[3].size - 4000),
        replace(first[4], duration=first[4].duration + 1),
        first[5],
    ]
    result = run(here, store, lake, broken, tmp_path / "f")
    assert [name for name, _ in result.failures] == [record.id for record in broken[1:5]]
    reasons = dict(result.failures)
    assert "no such object" in reasons[broken[1].id]
    assert "nonsense.wav" in reasons[broken[2].id]
    assert "but its record has a duration of" in reasons[broken[4].id]
    assert str(tmp_path) not in str(reasons)  # the same wherever the lake lies
    extracted = opened(store, tmp_path / "f", result)
    assert extracted.ids == [first[0].id, first[5].id]
    assert extracted.cmn_state(first[5].id).frames == extracted.num_frames(first[0].id)
    listed = (tmp_path / "f" / "failed.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in listed] == [record.id for record in broken[1:5]]


def test_the_about_of_a_shard_describes_its_contents(lake, records, here, store, tmp_path):
    result = run(here, store, lake, records, tmp_path / "f")
    (shard,) = shards_of(result.outputs)
    assert shard.utterances == len(records)
    assert shard.hours == pytest.approx(sum(record.duration for record in records) / 3600)
    for ref in shard.inputs:
        assert store.get(ref)  # size and digest are checked


def test_make_cut_writes_what_lhotse_writes(lake, records, store):
    record = records[0]
    content = store.get_range(f"{lake.url}/{record.audio}", record.offset, record.size)
    manifest = make_cut(record, decode_audio(content, "a"))
    cut = deserialize_item(json.loads(json.dumps(manifest)))
    assert list(cut.to_dict().items()) == list(manifest.items())
    assert speaker_of(cut) == record.speaker
    assert cut.recording.num_samples == round(record.duration * 16000)


def test_records_out_of_order_are_refused(records):
    check_order(records)
    same_speaker = [record for record in records if record.speaker == records[0].speaker]
    other_speaker = records[-1]
    with pytest.raises(StepError, match="must be later"):
        check_order([same_speaker[1], same_speaker[0]])
    with pytest.raises(StepError, match="not contiguous"):
        check_order([same_speaker[0], other_speaker, same_speaker[1]])
