import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.kaldi.show import describe_entries
from toolkit.kaldi.tables import entries, read_header, read_matrix, read_vector

kaldi = pytest.importorskip("kaldi_native_io")
FINITE = st.floats(-1e6, 1e6, width=32)


def write(folder, **matrices):
    with kaldi.FloatMatrixWriter(f"ark,scp,t:{folder}/x.ark,{folder}/x.scp") as writer:
        for key, matrix in matrices.items():
            writer.write(key, matrix)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_kaldi_writes_as_text_is_read(tmp_path, data):
    shape = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    values = data.draw(st.lists(FINITE, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    x = np.array(values, np.float32).reshape(shape)
    write(tmp_path, a=x, b=x[:1], c=np.zeros((0, 0), np.float32))
    for name in ("x.ark", "x.scp"):
        found = entries(tmp_path / name)
        assert list(found) == ["a", "b", "c"]
        assert (read_header(found["a"]).kind, read_header(found["a"]).shape) == ("text", shape)
        for key, entry in found.items():
            expected = kaldi.FloatMatrix.read(f"{tmp_path}/x.ark:{entry.offset}").numpy()
            ours = read_matrix(entry)
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(ours, expected if expected.size else ours[:0], key)


def test_ranges_of_rows_and_columns_have_both_ends(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    write(tmp_path, a=x)
    places = {"a": "[1:2]", "b": "[0:3,1:1]", "c": "[:,0:1]", "d": "[2:4]"}
    lines = (f"{key} {tmp_path}/x.ark:2{part}\n" for key, part in places.items())
    (tmp_path / "y.scp").write_text("".join(lines))
    found = entries(tmp_path / "y.scp")
    np.testing.assert_array_equal(read_matrix(found["a"]), x[1:3])
    np.testing.assert_array_equal(read_matrix(found["b"]), x[:, 1:2])
    np.testing.assert_array_equal(read_matrix(found["c"]), x[:, :2])
    with pytest.raises(ToolkitError, match=r"d: .*\[2:4\] goes beyond 4 x 3"):
        read_matrix(found["d"])


def test_integers_and_other_ways_of_writing(tmp_path):
    (tmp_path / "x.ark").write_text("a 1 -2 3 \nb \nc  [ 1 2; 3 inf ]\nd 7")
    found = entries(tmp_path / "x.ark")
    assert [read_vector(found[key]).tolist() for key in "abd"] == [[1, -2, 3], [], [7]]
    np.testing.assert_array_equal(read_matrix(found["c"]), [[1, 2], [3, np.inf]])
    assert next(describe_entries(tmp_path / "x.ark")).startswith("a  text int32 3  ")
    assert list(describe_entries(tmp_path / "x.ark", key="a")) == ["[ 1 -2  3]"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a  [\n 1 2\n 3 ]\n", "rows of different lengths"),
        ("a  [\n 1 x ]\n", "could not convert"),
        ("a  [\n 1 2\n", r"a \[ without its \]"),
        ("a  [ 1 ] 2\n", "text after ]"),
        ("a  [ ]\n b", "not an archive"),
    ],
)
def test_faults_are_errors(tmp_path, content, message):
    (tmp_path / "x.ark").write_text(content)
    with pytest.raises(ToolkitError, match=message):
        read_matrix(entries(tmp_path / "x.ark")["a"])


def test_numbers_that_no_vector_of_kaldi_holds(tmp_path):
    (tmp_path / "x.ark").write_text("a 1 99999999999\nb 1 x\n")
    found = entries(tmp_path / "x.ark")
    for key, message in (("a", "does not fit"), ("b", "invalid literal")):
        with pytest.raises(ToolkitError, match=message):
            read_vector(found[key])


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text("ab []\n;1.-e\0B\t"))
def test_no_text_is_worse_than_an_error(tmp_path, content):
    (tmp_path / "x.ark").write_text(content)
    with contextlib.suppress(ToolkitError):
        for entry in entries(tmp_path / "x.ark").values():
            (read_vector if read_header(entry).is_vector else read_matrix)(entry)
