import io
import json
import tarfile

import pytest
import soundfile

from tests.pipeline.synthetic_lake import SyntheticLakeConfig, make_metadata
from toolkit.pipeline.lake import LakeError, Record, bucket_of, metadata_totals, open_lake, resolve
from toolkit.pipeline.objects import ObjectStore

RECORD = Record("u1", "sé", 1.5, 1.77e9, "en-US", "audio/a.tar", 512, 100)


def test_a_record_round_trips():
    assert Record.from_line(RECORD.to_line()) == RECORD
    single = Record("u1", "s", 1.5, 1.77e9, "en-US", "audio/a.wav")
    assert Record.from_line(single.to_line()) == single
    assert b"offset" not in single.to_line()
    assert RECORD.to_line().startswith(b'{"id": "')  # what sampling reads fast
    more = json.loads(RECORD.to_line()) | {"transcript": "never read"}
    assert Record.from_line(json.dumps(more).encode()) == RECORD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": ""}, "name"),
        ({"speaker": 3}, "name"),
        ({"duration": "x"}, "not a metadata record"),
        ({"duration": -1}, "-1 s"),
        ({"duration": None}, "not a metadata record"),
        ({"size": None}, "together"),
    ],
)
def test_an_invalid_record_is_refused(change, message):
    fields = json.loads(RECORD.to_line()) | change
    with pytest.raises(LakeError, match=message):
        Record.from_line(json.dumps(fields).encode())


@pytest.mark.parametrize("line", [b"{", b"[]", b"\xff", b'"x"', b'{"id": "a"}'])
def test_a_line_that_is_no_record_is_refused(line):
    with pytest.raises(LakeError):
        Record.from_line(line)


def test_a_lake_of_metadata(tmp_path):
    store, url = ObjectStore(), str(tmp_path / "lake")
    config = SyntheticLakeConfig(days=60, interval_days=30, buckets=3)
    lake = make_metadata(store, url, 1000, 20, config)
    opened = open_lake(store, url)
    assert opened == lake
    assert metadata_totals(opened.objects)["utterances"] == 1000
    ids = set()
    for ref in opened.objects:
        bucket = int(ref.path.rsplit(".", 2)[1])
        records = [Record.from_line(line) for line in store.get(ref).splitlines()]
        ids |= {record.id for record in records}
        assert {bucket_of(record.speaker, 3) for record in records} <= {bucket}
        hours = sum(record.duration for record in records) / 3600
        assert ref.about["hours"] == pytest.approx(hours)
    assert len(ids) == 1000
    (tmp_path / "lake" / "lake.json").unlink()
    listed = open_lake(store, url)
    assert [ref.path for ref in listed.objects] == [ref.path for ref in lake.objects]
    assert listed.buckets == 3
    assert metadata_totals(listed.objects) is None
    with pytest.raises(LakeError, match="is not a data lake"):
        open_lake(store, str(tmp_path))
    (tmp_path / "lake" / "metadata" / "more.jsonl").write_text("")
    assert open_lake(store, url).buckets is None


def test_paths_of_audio_are_resolved_against_the_lake():
    assert resolve("audio/a.wav", "s3://b/lake/") == "s3://b/lake/audio/a.wav"
    assert resolve("/x/a.wav", "s3://b/lake") == "/x/a.wav"
    assert resolve("s3://c/a.wav", "/lake") == "s3://c/a.wav"


def test_a_damaged_lake_is_an_error(tmp_path):
    for damage in ("{}", '{"objects": [], "buckets": 4}'):
        (tmp_path / "lake.json").write_text(damage)
        with pytest.raises(LakeError, match="damaged"):
            open_lake(ObjectStore(), str(tmp_path))


def test_offsets_of_aggregated_audio_are_those_of_the_tar(tmp_path):
    from lhotse import MonoCut, Recording, SupervisionSegment

    from tests.pipeline.synthetic_lake import make_lake

    soundfile.write(tmp_path / "a.wav", [0.1] * 1600, 16000)
    recording = Recording.from_file(tmp_path / "a.wav", recording_id="a")
    cut = MonoCut(
        "a", 0.0, 0.1, 0, recording=recording,
        supervisions=[SupervisionSegment("a", "a", 0.0, 0.1, speaker="s")],
    )  # fmt: skip
    store = ObjectStore()
    lake = make_lake(
        [cut], store, str(tmp_path / "l"), SyntheticLakeConfig(hours=0.95 / 3600, buckets=1)
    )
    records = [
        Record.from_line(line) for ref in lake.objects for line in store.get(ref).splitlines()
    ]
    assert len(records) == 10
    for record in records:
        content = store.get(f"{lake.url}/{record.audio}")
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            expected = tar.extractfile(f"{record.id}.wav").read()
        assert content[record.offset : record.offset + record.size] == expected
        assert soundfile.info(io.BytesIO(expected)).duration == pytest.approx(0.1)
