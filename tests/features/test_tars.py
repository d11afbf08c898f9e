import io
import json
import tarfile

import numpy as np
import pytest

from toolkit.features.tars import TarWriter, read_members

NAMES = ["a", "b/c.d", "é", "x" * 95, "x" * 96, "x" * 99, "ü" * 80, "y" * 150]


def written_by_tarfile(items):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for id, array, manifest in items:
            content = io.BytesIO()
            np.save(content, array)
            for name, data in (
                (f"{id}.npy", content.getvalue()),
                (f"{id}.json", json.dumps(manifest).encode()),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def made(count=20):
    rng = np.random.default_rng(0)
    for number in range(count):
        shape = (int(rng.integers(0, 300)), int(rng.integers(1, 65)))
        array = rng.normal(size=shape).astype(rng.choice(["float16", "float32"]))
        yield NAMES[number % len(NAMES)], array, {"x": "y" * int(rng.integers(0, 900))}


@pytest.mark.parametrize("held", [1, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_writes_what_tarfile_and_numpy_write(count, held, monkeypatch):
    monkeypatch.setattr("toolkit.features.tars.BUFFER_BYTES", held)
    items = list(made(count))
    stream = io.BytesIO()
    writer = TarWriter(stream)
    for item in items:
        writer.add_array(*item)
    writer.close()
    assert stream.getvalue() == written_by_tarfile(items)


def test_finds_the_members_that_tarfile_finds():
    content = written_by_tarfile(made())
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        expected = [(m.name, m.offset, m.offset_data, m.size) for m in tar]
    assert list(read_members(io.BytesIO(content))) == expected


@pytest.mark.parametrize("cut", [100, 700, 5000])
def test_a_tar_that_is_cut_short_is_an_error(cut):
    content = written_by_tarfile(made(3))
    with pytest.raises(tarfile.TarError):
        list(read_members(io.BytesIO(content[:cut])))
    with pytest.raises(tarfile.TarError, match="not a tar"):
        list(read_members(io.BytesIO(b"nonsense" * 200)))
