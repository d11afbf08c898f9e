import random
from itertools import pairwise

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.pipeline.config import StoreConfig
from toolkit.pipeline.lake import Record
from toolkit.pipeline.objects import ObjectError, ObjectStore
from toolkit.pipeline.steps import extract as module
from toolkit.pipeline.steps.extract import FetchError, fetch, plan_spans

CONTENT = random.Random(0).randbytes(3000)


def part(name, offset, size, audio="a.tar"):
    return Record(name, "s", 1.0, 0.0, "", audio, offset, size)


@pytest.fixture(params=["local", "memory"])
def lake(request, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GAP_BYTES", 100)
    monkeypatch.setattr(module, "SPAN_BYTES", 900)
    url = str(tmp_path / "lake") if request.param == "local" else f"memory://{tmp_path.name}"
    store = ObjectStore(StoreConfig(tries=2, first_wait=0))
    store.put(f"{url}/a.tar", CONTENT)
    store.put(f"{url}/b.tar", CONTENT[::-1])
    for number in range(40):
        store.put(f"{url}/{number}.wav", b"%d" % number)
    return store, url, request.param


RECORDS = [
    part("1", 2000, 300),
    part("2", 0, 100),
    part("3", 150, 50),
    Record("4", "s", 1.0, 0.0, "", "7.wav"),
    part("5", 2300, 700),
    part("6", 10, 10, "b.tar"),
    *(Record(f"w{n}", "s", 1.0, 0.0, "", f"{n}.wav") for n in range(40)),
]


def test_every_record_gets_its_bytes_in_order(lake, tmp_path):
    store, url, kind = lake
    fetched = list(fetch(RECORDS, store, url, tmp_path / "scratch"))
    assert [record for record, _ in fetched] == RECORDS
    for record, content in fetched:
        if record.offset is None:
            assert content == record.audio.removesuffix(".wav").encode()
        else:
            whole = CONTENT if record.audio == "a.tar" else CONTENT[::-1]
            assert content == whole[record.offset : record.offset + record.size]
    # a.tar in three spans (one gap is too wide, one span too long), b.tar in one, 41 files
    assert store.counts.get == (45 if kind == "memory" else 43)
    used = 200 + 300 + 700 + 10 if kind == "memory" else 100 + 50 + 300 + 700 + 10
    assert store.counts.bytes_read == used + sum(len(str(n)) for n in range(40)) + 1


def test_missing_audio_fails_only_its_records(lake, tmp_path):
    store, url, _ = lake
    records = [
        part("gone", 0, 10, "none.tar"),
        part("cut", 2990, 20),
        part("beyond", 3500, 20),
        Record("lost", "s", 1.0, 0.0, "", "none.wav"),
        part("good", 100, 20),
    ]
    contents = {r.id: c for r, c in fetch(records, store, url, tmp_path / "scratch")}
    assert contents.pop("good") == CONTENT[100:120]
    assert all(isinstance(content, FetchError) for content in contents.values())
    assert {name: str(content) for name, content in contents.items()} == {
        "gone": "none.tar: no such object",
        "cut": "a.tar: the file ends before byte 3010, where the utterance ends",
        "beyond": "a.tar: the file ends before byte 3520, where the utterance ends",
        "lost": "none.wav: no such object",
    }


def test_errors_of_the_store_are_not_errors_of_the_audio(tmp_path, monkeypatch):
    url = f"memory://{tmp_path.name}"
    store = ObjectStore(StoreConfig(tries=2, first_wait=0))
    store.put(f"{url}/a.tar", CONTENT)

    def fail(*args, **kwargs):
        raise ConnectionResetError

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", fail)
    with pytest.raises(ObjectError):
        list(fetch([part("1", 0, 10)], store, url, tmp_path / "s"))
    with pytest.raises(ObjectError):
        list(fetch([Record("1", "s", 1.0, 0.0, "", "a.tar")], store, url, tmp_path / "s"))


def test_an_empty_record_does_not_stop_the_others(tmp_path, monkeypatch):
    """HTTP has no range for it: a server sends the whole object."""
    url, files = f"memory://{tmp_path.name}", fsspec.filesystem("memory")
    store = ObjectStore(StoreConfig(tries=2, first_wait=0))
    store.put(f"{url}/a.tar", CONTENT)
    store.put(f"{url}/b.tar", CONTENT)
    read = type(files).cat_file

    def as_http(self, path, start=None, end=None):
        return read(self, path, *((None, None) if start == end else (start, end)))

    monkeypatch.setattr(type(files), "cat_file", as_http)
    records = [part("1", 0, 10), part("2", 20, 0, "b.tar")]
    contents = {r.id: c for r, c in fetch(records, store, url, tmp_path / "s")}
    assert contents == {"1": CONTENT[:10], "2": b""}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 200), st.integers(1, 30))))
def test_spans_cover_every_record_once(parts):
    records = [part(str(n), o, s, audio) for n, (audio, o, s) in enumerate(parts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GAP_BYTES", 10)
        patch.setattr(module, "SPAN_BYTES", 50)
        spans = plan_spans(records)
    for record in records:
        inside = [
            span
            for span in spans
            if span.path == record.audio
            and span.start <= record.offset
            and record.offset + record.size <= span.end
        ]
        assert len(inside) == 1
    for span, next_span in pairwise(spans):
        assert span.path < next_span.path or span.end <= next_span.start
