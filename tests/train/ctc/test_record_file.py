import numpy as np
import pytest
from safetensors.numpy import load_file

from toolkit.train.ctc.records import Record, RecordError, read_index, read_record, write_file


def record(frames, labels, dimension=4, seed=0):
    chance = np.random.default_rng(seed)
    features = chance.normal(10, 5, (frames, dimension)).astype(np.float16)
    ids = chance.integers(0, 2**31 - 1, labels).astype(np.int32)
    return Record(features, ids, int(chance.integers(2**40)), chance.normal(size=dimension))


def assert_same_record(record_read, expected):
    assert record_read.features.dtype == np.float16
    assert np.array_equal(record_read.features, expected.features)
    assert np.array_equal(record_read.labels, expected.labels)
    assert record_read.cmn_frames == expected.cmn_frames
    assert np.array_equal(record_read.cmn_sum, expected.cmn_sum)


def test_records_are_read_in_any_order(tmp_path):
    shapes = [(7, 3), (1, 1), (90, 40), (2, 0)]
    written = {f"utt/é {i}": record(*shape, seed=i) for i, shape in enumerate(shapes)}
    write_file(tmp_path / "a", "plan", written.items())
    index = read_index(tmp_path / "a")
    assert (index.names, index.plan, index.dimension) == (list(written), "plan", 4)
    assert index.table[:, :2].tolist() == [list(shape) for shape in shapes]
    for row in (2, 0, 3, 1):
        assert_same_record(read_record(index, row), written[index.names[row]])


def test_every_float16_survives(tmp_path):
    features = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(-1, 4)
    none = np.zeros(0, dtype=np.int32)
    write_file(tmp_path / "all", "", [("u", Record(features, none, 0, np.zeros(4)))])
    features_read = read_record(read_index(tmp_path / "all"), 0).features
    assert np.array_equal(features_read.view(np.uint16), features.view(np.uint16))


def test_bytes_follow_from_the_content_and_other_tools_open_them(tmp_path):
    written = [(f"u{i}", record(50 + i, 9, dimension=93, seed=i)) for i in range(5)]
    for name in ("a", "b"):
        write_file(tmp_path / name, "plan", written)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    parts = load_file(tmp_path / "a")
    assert parts["table"].shape == (5, 4)
    assert parts["table"][-1, 3] == len(parts["blocks"])
    assert len(parts["blocks"]) < sum(x.features.nbytes for _, x in written)


def test_a_damaged_block_is_named_by_its_utterance(tmp_path):
    path = tmp_path / "a"
    write_file(path, "plan", [(name, record(30, 5)) for name in ("good", "bad")])
    index = read_index(path)
    content = bytearray(path.read_bytes())
    content[-20] ^= 255
    path.write_bytes(content)
    assert_same_record(read_record(index, 0), record(30, 5))
    with pytest.raises(RecordError, match=r"bad: damaged in .*write the records again"):
        read_record(index, 1)


@pytest.mark.parametrize("num_bytes", [0, 5, 60, -1])
def test_truncated_files_are_refused(tmp_path, num_bytes):
    path = tmp_path / "a"
    write_file(path, "plan", [("u", record(30, 5))])
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(RecordError, match="not a record file"):
        read_index(path)


def test_files_of_another_kind_are_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(3)}, tmp_path / "other")
    for path in (tmp_path / "other", tmp_path / "missing"):
        with pytest.raises(RecordError, match="not a record file"):
            read_index(path)
