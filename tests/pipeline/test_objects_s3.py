import os

import pytest

pytest.importorskip("s3fs")
pytest.importorskip("moto")

from toolkit.pipeline.config import ExecutorConfig, StoreConfig
from toolkit.pipeline.executor import outputs_digest
from toolkit.pipeline.local import LocalExecutor, cpu_slots
from toolkit.pipeline.objects import MissingObjectError, ObjectError, ObjectStore

STORM = {"error": 0.1, "reset": 0.05, "lost": 0.05, "truncate": 0.05, "corrupt": 0.05}


def counted(proxy):
    return tuple(proxy.calls(method) for method in ("PUT", "GET", "HEAD", "POST"))


def test_one_call_per_object_and_counts_as_on_the_wire(s3):
    ref = s3.store.put(f"{s3.base}/a/one", b"content")
    assert counted(s3) == (1, 0, 0, 0)
    assert s3.store.get(ref) == b"content"
    assert s3.store.get_range(ref.path, 3, 2) == b"te"
    assert counted(s3) == (1, 2, 0, 0)
    assert s3.store.size(ref.path) == 7
    assert counted(s3) == (1, 2, 1, 0)
    counts = s3.store.counts
    assert (counts.put, counts.get, counts.head, counts.list) == (1, 2, 1, 0)
    assert (counts.bytes_written, counts.bytes_read) == (7, 9)
    assert counts.repeated == 0


def test_missing_objects_are_errors(s3):
    with pytest.raises(MissingObjectError, match="/none: no such object"):
        s3.store.get(f"{s3.base}/none")
    assert counted(s3) == (0, 1, 0, 0)  # no try is repeated, no LIST
    assert s3.store.size(f"{s3.base}/none") is None
    assert s3.store.list(f"{s3.base}/none") == []


def test_listing_is_by_name_and_below_the_prefix(s3):
    for name in ("b/2", "b/10", "a", "b/c/d", "bb/1"):
        s3.store.put(f"{s3.base}/{name}", name.encode())
    listed = s3.store.list(f"{s3.base}/b/")
    assert [ref.path.removeprefix(f"{s3.base}/b/") for ref in listed] == ["10", "2", "c/d"]
    assert [ref.size for ref in listed] == [4, 3, 5]


def test_large_objects_go_in_parts(s3, tmp_path):
    store = ObjectStore(StoreConfig({"endpoint_url": s3.url}, part_bytes=5 << 20))
    content = os.urandom(11 << 20)
    (tmp_path / "large").write_bytes(content)
    for ref in (
        store.put(f"{s3.base}/large", content),
        store.put_file(tmp_path / "large", f"{s3.base}/large-file"),
    ):
        assert store.get(ref) == content
    assert counted(s3) == (6, 2, 0, 4)
    assert store.counts.put == 10
    copy = store.local(ref, tmp_path / "copies")
    assert copy.read_bytes() == content


def test_an_object_is_created_once_even_if_answers_are_lost(s3):
    s3.faults.lost = 0.3
    for number in range(20):
        path = f"{s3.base}/{number}"
        s3.store.create(path, b"one")
        assert not s3.store.create(path, b"two")
        assert s3.store.get(path) == b"one"
    assert s3.store.counts.repeated > 0


def test_faults_of_s3_change_only_the_number_of_calls(s3, tmp_path):
    for name, value in STORM.items():
        setattr(s3.faults, name, value)
    refs = [s3.store.put(f"{s3.base}/{i}", b"%d" % i * 1000) for i in range(40)]
    assert [s3.store.get(ref)[:2] for ref in refs] == [(b"%d" % i * 1000)[:2] for i in range(40)]
    assert [s3.store.local(r, tmp_path).read_bytes() for r in refs[:20]] == [
        b"%d" % i * 1000 for i in range(20)
    ]
    assert [s3.store.size(ref.path) for ref in refs] == [ref.size for ref in refs]
    assert {entry[3] for entry in s3.log} == {"", *STORM}
    assert s3.store.counts.repeated >= 20


def test_retries_are_bounded_and_messages_hold_no_secret(s3):
    s3.faults.error = 1.0
    config = StoreConfig({"endpoint_url": s3.url}, tries=3, first_wait=0.01)
    with pytest.raises(ObjectError, match="PUT failed 3 times") as caught:
        ObjectStore(config).put(f"{s3.base}/x", b"x")
    assert counted(s3)[0] == 3
    assert "very-secret" not in str(caught.value)
    s3.faults.error, s3.faults.corrupt = 0.0, 1.0
    ref = ObjectStore(config).put(f"{s3.base}/x", b"xxxx")
    with pytest.raises(ObjectError, match=r"GET failed 3 times.*digest"):
        ObjectStore(config).get(ref)


def test_without_credentials_it_fails_at_once(s3, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nowhere")
    store = ObjectStore(StoreConfig({"endpoint_url": s3.url, "anon": False}))
    with pytest.raises(ObjectError, match=r"failed 1 times.*redentials"):
        store.get(f"{s3.base}/x")


def test_local_executor_on_a_faulty_s3_gives_the_digests_of_a_local_disk(
    s3, tmp_path, make_step, make_partitions
):
    calm = LocalExecutor().run(make_step(), make_partitions(4, bad={2}), str(tmp_path / "out"))
    partitions = make_partitions(4, f"{s3.base}/in", bad={2}, store=s3.store)
    for name, value in STORM.items():
        setattr(s3.faults, name, value)
    executor = LocalExecutor(ExecutorConfig(store=s3.config), cpu_slots(2))
    step = make_step(faults={"p001": "kill-once"})
    stormy = executor.run(step, partitions, f"{s3.base}/out")
    assert outputs_digest(f"{s3.base}/out", stormy) == outputs_digest(str(tmp_path / "out"), calm)
    assert [result.failures for result in stormy] == [result.failures for result in calm]
    again = executor.run(step, partitions, f"{s3.base}/out")
    assert again == stormy
    assert sum(a[0] == "p001" for a in make_step.attempts(step)) == 2
