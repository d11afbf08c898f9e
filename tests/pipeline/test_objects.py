import os
import threading
import time

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from toolkit.pipeline.config import StoreConfig
from toolkit.pipeline.objects import (
    Counts,
    FilesystemError,
    MissingObjectError,
    ObjectError,
    ObjectRef,
    ObjectStore,
    is_transient,
    redact,
)
from toolkit.storage.digests import digest_bytes


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def test_objects_are_read_as_they_were_written(place, tmp_path):
    store = ObjectStore()
    ref = store.put(f"{place}/a/b", b"content", {"hours": 1.0})
    assert ref == ObjectRef(f"{place}/a/b", 7, digest_bytes(b"content"), {"hours": 1.0})
    assert ObjectRef.from_dict(ref.to_dict()) == ref
    assert store.get(ref) == store.get(ref.path) == b"content"
    assert store.get_range(ref.path, 2, 3) == b"nte"
    assert store.local(ref, tmp_path / "copies").read_bytes() == b"content"
    assert store.size(ref.path) == 7
    assert store.size(f"{place}/a/c") is None
    (tmp_path / "file").write_bytes(b"other")
    assert store.get(store.put_file(tmp_path / "file", f"{place}/a/b")) == b"other"
    assert [r.path for r in store.list(f"{place}/a/")] == [f"{place}/a/b"]
    assert store.counts.put == 2
    assert store.counts.get == 5


@pytest.mark.parametrize("change", ["size", "digest"])
def test_an_object_that_differs_from_its_reference_is_refused(place, change, tmp_path):
    store = ObjectStore(StoreConfig(tries=2, first_wait=0.0))
    ref = store.put(f"{place}/x", b"content")
    store.put(f"{place}/x", b"contents" if change == "size" else b"kontent")
    for read in (store.get, lambda ref_to_copy: store.local(ref_to_copy, tmp_path / "copies")):
        with pytest.raises(ObjectError, match="digest" if change == "digest" else "8 bytes"):
            read(ref)
    with pytest.raises(ObjectError, match="bytes instead of 90"):
        store.get_range(f"{place}/x", 0, 90)


def test_a_missing_library_is_an_error_at_once():
    store = ObjectStore(StoreConfig(tries=3))
    with pytest.raises(FilesystemError, match="dropbox:// needs a library that is not installed"):
        store.get("dropbox://folder/x")
    with pytest.raises(FilesystemError, match="does not support s4://"):
        store.get("s4://folder/x")
    assert store.counts.repeated == 0


def test_a_missing_object_is_an_error(place):
    with pytest.raises(MissingObjectError, match="no such object"):
        ObjectStore().get(f"{place}/none")
    assert ObjectStore().list(f"{place}/none") == []


def test_half_written_local_objects_are_not_visible(tmp_path, monkeypatch):
    store = ObjectStore()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(5, "killed")))
    with pytest.raises(ObjectError, match="killed"):
        store.put(f"{tmp_path}/x", b"content")
    assert store.list(str(tmp_path)) == []


def test_counts_add_up_over_threads(tmp_path):
    store = ObjectStore()
    ref = store.put(f"{tmp_path}/x", b"content")
    threads = [
        threading.Thread(target=lambda: [store.get(ref) for _ in range(50)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.counts.get == 400
    assert store.counts.bytes_read == 2800
    total = Counts(put=1, bytes_read=2) + Counts(put=3, seconds=0.5)
    assert (total.put, total.bytes_read, total.seconds, total.calls) == (4, 2, 0.5, 4)


def test_credentials_are_refused_in_options():
    for name in ("key", "secret", "token", "aws_session_token", "password"):
        with pytest.raises(ValueError, match="credential"):
            StoreConfig({name: "x"})


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:pw@host/x", "https://***@host/x"),
        ("GET /x?X-Amz-Signature=abc&y=1", "GET /x?X-Amz-Signature=***&y=1"),
        ("?AWSAccessKeyId=AKIAABCDEFGHIJKLMNOP&a=b", "?AWSAccessKeyId=***&a=b"),
        ("key AKIAABCDEFGHIJKLMNOP is unknown", "key *** is unknown"),
        ("{'aws_secret_access_key': 'abc/+def'}", "{'aws_secret_access_key': ***'}"),
        ("session_token=xyz, next", "session_token=***, next"),
        ("s3://lake/p-1/keys.json: 500", "s3://lake/p-1/keys.json: 500"),
    ],
)
def test_messages_hold_no_credentials(text, clean):
    assert redact(text) == clean


def test_only_transient_errors_are_retried():
    assert is_transient(ConnectionResetError())
    assert is_transient(OSError(16, "SlowDown"))
    assert is_transient(TimeoutError())
    assert not is_transient(PermissionError())
    assert not is_transient(OSError(28, "No space left on device"))
    assert not is_transient(type("NoCredentialsError", (Exception,), {})())


def test_waits_between_retries_grow_and_are_random_and_bounded(monkeypatch):
    def reset(*_, **__):
        raise ConnectionResetError

    waits = []
    monkeypatch.setattr(MemoryFileSystem, "cat_file", reset)
    monkeypatch.setattr(time, "sleep", waits.append)
    store = ObjectStore(StoreConfig(tries=8, first_wait=0.5, longest_wait=4.0))
    for _ in range(200):
        with pytest.raises(ObjectError, match="GET failed 8 times"):
            store.get("memory://waits/x")
    assert len(waits) == 200 * 7
    tops = [0.5, 1, 2, 4, 4, 4, 4]
    by_try = [waits[tries :: len(tops)] for tries in range(len(tops))]
    for top, waits_of_try in zip(tops, by_try, strict=True):
        assert all(0 <= wait <= top for wait in waits_of_try)
        assert 0.4 * top < sum(waits_of_try) / 200 < 0.6 * top


def test_an_object_is_created_once(place):
    store = ObjectStore()
    assert store.create(f"{place}/a/b", b"one")
    assert not store.create(f"{place}/a/b", b"two")
    assert store.get(f"{place}/a/b") == b"one"
