"""Scp files and archives."""

import contextlib
import gzip
import resource
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.kaldi.archive import (
    ArchiveError,
    ArchiveWriter,
    describe_entries,
    entries,
    read_header,
    read_matrix,
    read_vector,
    writer_path,
)

kaldi = pytest.importorskip("kaldi_native_io")

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
WRITERS = {
    "FM": (kaldi.FloatMatrixWriter, ()),
    "DM": (kaldi.DoubleMatrixWriter, ()),
    "CM": (kaldi.CompressedMatrixWriter, (kaldi.CompressionMethod.kSpeechFeature,)),
    "CM2": (kaldi.CompressedMatrixWriter, (kaldi.CompressionMethod.kTwoByteAuto,)),
    "CM3": (kaldi.CompressedMatrixWriter, (kaldi.CompressionMethod.kOneByteAuto,)),
}


@pytest.fixture
def table(tmp_path):
    """Write x.ark and x.scp: table(kind, key=matrix, ...) -> folder."""

    def write(kind="FM", **matrices):
        make, method = WRITERS[kind]
        double = np.float64 if kind == "DM" else np.float32
        with make(f"ark,scp:{tmp_path}/x.ark,{tmp_path}/x.scp") as writer:
            for key, matrix in matrices.items():
                writer.write(key, matrix.astype(double), *method)
        return tmp_path

    return write


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", ["x.ark", "x.scp"])
def test_every_kind_of_matrix_is_found_and_read(table, kind, name):
    last = X[:, 1:] if kind.startswith("C") else np.zeros((0, 0))  # Kaldi's empty CM is damaged
    folder = table(kind, a=X, b=X[:1] * 3, c=last)
    index = entries(folder / name)
    assert list(index) == ["a", "b", "c"]
    header = read_header(index["a"])
    assert (header.kind, header.shape) == (kind, (3, 4))
    end = index["c"].offset + read_header(index["c"]).size
    assert end == (folder / "x.ark").stat().st_size
    tolerance = 0 if kind in ("FM", "DM") else 0.1
    np.testing.assert_allclose(read_matrix(index["a"]), X, atol=tolerance)
    np.testing.assert_allclose(read_matrix(index["b"]), X[:1] * 3, atol=tolerance)
    assert read_matrix(index["a"]).dtype == np.float32


def test_ark_and_scp_find_the_same_offsets(table):
    folder = table(a=X, b=X + 1)
    assert list(entries(folder / "x.ark").values()) == list(entries(folder / "x.scp").values())


def test_relative_paths_are_searched_upwards_and_ranges_apply(table):
    folder = table(a=X)
    (folder / "data").mkdir()
    (folder / "data/y.scp").write_text("a x.ark:2[0:1]\nb  x.ark:2\n")
    index = entries(folder / "data/y.scp")
    np.testing.assert_array_equal(read_matrix(index["a"]), X[:2])
    np.testing.assert_array_equal(read_matrix(index["b"]), X)


def test_commands_are_not_run_unless_allowed(table):
    folder = table(a=X)
    mark = folder / "ran"
    (folder / "y.scp").write_text(f"a touch {mark}; tail -c +3 {folder}/x.ark |\n")
    with pytest.raises(
        ToolkitError, match=r"y\.scp:1: a is the output of a command .*--allow-pipes"
    ):
        entries(folder / "y.scp")
    assert not mark.exists()
    np.testing.assert_array_equal(read_matrix(entries(folder / "y.scp", True)["a"]), X)
    assert mark.exists()


@pytest.mark.parametrize("source", ["-", "| cat", "x.ark:2 extra", "gone.ark:2", "x.ark:2[a]"])
def test_places_that_are_no_files_are_not_opened(table, source):
    folder = table(a=X)
    (folder / "y.scp").write_text(f"a {source}\n")
    with pytest.raises(ToolkitError, match=r"y\.scp:1: a: there is no file"):
        entries(folder / "y.scp")


def test_faults_of_tables_name_the_file(table):
    folder = table(a=X)
    bad = folder / "bad.scp"
    for content, message in (
        (b"a\n", "bad.scp:1: expected `key file:offset`"),
        (b"a x.ark:2\na x.ark:2\n", "the key 'a' occurs twice"),
        (b"", "bad.scp: has no entries"),
        (b"a \xff\n", "bad.scp:1: byte 3 is not UTF-8"),
        (b"a " + b"9" * 400 + b"\n", "bad.scp:1: a: there is no file"),
        (b"a x.ark:" + b"9" * 30 + b"\n", "bad.scp:1: a: the offset '9999"),
    ):
        bad.write_bytes(content)
        with pytest.raises(ToolkitError, match=message):
            entries(bad)
    with pytest.raises(ToolkitError, match="cannot be read: No such file"):
        entries(folder / "gone.ark")


@pytest.mark.parametrize("offset", [10_000, 10**12, 10**17])
def test_an_offset_beyond_the_file_is_an_error_with_its_name(table, offset):
    folder = table(a=X)
    (folder / "y.scp").write_text(f"a {folder / 'x.ark'}:{offset}\n")
    with pytest.raises(ToolkitError, match=r"^a: .*x\.ark"):
        read_matrix(entries(folder / "y.scp")["a"])


@pytest.mark.parametrize("kind", ["FM", "CM"])
def test_a_size_beyond_the_file_allocates_nothing(table, kind):
    folder = table(kind, a=X)
    content = bytearray((folder / "x.ark").read_bytes())
    at = content.index(struct.pack("<i", 3))
    content[at : at + 4] = struct.pack("<i", 2**30)
    (folder / "x.ark").write_bytes(content)
    with pytest.raises(ToolkitError, match=r"1073741824 x 4 at byte 2 goes beyond the end"):
        read_matrix(entries(folder / "x.scp")["a"])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_archives_raise_only_toolkit_errors(table, data):
    folder = table(data.draw(st.sampled_from(["FM", "CM"])), a=X, b=X)
    content = bytearray((folder / "x.ark").read_bytes())
    content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 3)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "x.ark").write_bytes(content)
    with contextlib.suppress(ToolkitError):
        for entry in entries(folder / "x.ark").values():
            read_matrix(entry)


def test_vectors_of_integers(tmp_path):
    with kaldi.Int32VectorWriter(f"ark,scp:{tmp_path}/x.ark,{tmp_path}/x.scp") as writer:
        writer.write("a", [1, -2, 2**31 - 1])
        writer.write("b", [])
    index = entries(tmp_path / "x.ark")
    assert read_vector(index["a"]).tolist() == [1, -2, 2**31 - 1]
    assert read_vector(index["b"]).tolist() == []
    with pytest.raises(ToolkitError, match=r"a: .* is integers, not features"):
        read_matrix(index["a"])
    lines = list(describe_entries(tmp_path / "x.scp", count=1))
    assert lines[0].startswith("a  int32 3  ")
    assert lines[1] == "... 2 entries"
    assert list(describe_entries(tmp_path / "x.scp", key="a")) == [
        "[         1         -2 2147483647]"
    ]


def test_showing_matrices(table):
    folder = table(a=X)
    (line,) = describe_entries(folder / "x.ark")
    assert line == f"a  FM 3 x 4  {folder / 'x.ark'}:2"
    assert "-5." in next(describe_entries(folder / "x.ark", key="a"))
    with pytest.raises(ToolkitError, match="has no entry 'q'; the first entry is 'a'"):
        list(describe_entries(folder / "x.ark", key="q"))


def test_compressed_files_are_no_archives(tmp_path):
    path = tmp_path / "x.ark"
    path.write_bytes(gzip.compress(b"a \0BFM "))
    with pytest.raises(ToolkitError, match=r"x\.ark: .* compressed with gzip: unpack it with"):
        entries(path)


def test_a_byte_order_mark_is_not_part_of_the_first_key(table):
    folder = table(a=X)
    (folder / "y.scp").write_bytes(b"\xef\xbb\xbfa x.ark:2\r\nb x.ark:2\r\n")
    assert list(entries(folder / "y.scp")) == ["a", "b"]


@pytest.mark.parametrize("name", ["a b", "a,b", "a|"])
def test_places_that_specifiers_cannot_name_are_refused(tmp_path, name):
    with pytest.raises(ToolkitError, match="choose another folder"):
        writer_path(tmp_path / name / "x.ark")
    assert not (tmp_path / name).exists()


def test_objects_beyond_the_end_of_an_archive_are_an_error(tmp_path):
    """The archive is truncated and the scp file is not."""
    (tmp_path / "x.ark").write_bytes(b"a ")
    (tmp_path / "x.scp").write_text(f"a {tmp_path}/x.ark:2\nb {tmp_path}/x.ark:90\n")
    index = entries(tmp_path / "x.scp")
    for read in (read_header, read_matrix, read_vector):
        with pytest.raises(ToolkitError, match=r"b: .*x.ark ends before byte 90"):
            read(index["b"])


FINITE = st.floats(-1e6, 1e6, width=32)


def write(folder, **matrices):
    with kaldi.FloatMatrixWriter(f"ark,scp,t:{folder}/x.ark,{folder}/x.scp") as writer:
        for key, matrix in matrices.items():
            writer.write(key, matrix)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_text_archives_of_kaldi_are_read(tmp_path, data):
    shape = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    values = data.draw(st.lists(FINITE, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    x = np.array(values, np.float32).reshape(shape)
    write(tmp_path, a=x, b=x[:1], c=np.zeros((0, 0), np.float32))
    for name in ("x.ark", "x.scp"):
        index = entries(tmp_path / name)
        assert list(index) == ["a", "b", "c"]
        assert (read_header(index["a"]).kind, read_header(index["a"]).shape) == ("text", shape)
        for key, entry in index.items():
            expected = kaldi.FloatMatrix.read(f"{tmp_path}/x.ark:{entry.offset}").numpy()
            matrix = read_matrix(entry)
            assert matrix.dtype == np.float32
            np.testing.assert_array_equal(matrix, expected if expected.size else matrix[:0], key)


def test_ranges_of_rows_and_columns_have_both_ends(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    write(tmp_path, a=x)
    places = {"a": "[1:2]", "b": "[0:3,1:1]", "c": "[:,0:1]", "d": "[2:4]"}
    lines = (f"{key} {tmp_path}/x.ark:2{part}\n" for key, part in places.items())
    (tmp_path / "y.scp").write_text("".join(lines))
    index = entries(tmp_path / "y.scp")
    np.testing.assert_array_equal(read_matrix(index["a"]), x[1:3])
    np.testing.assert_array_equal(read_matrix(index["b"]), x[:, 1:2])
    np.testing.assert_array_equal(read_matrix(index["c"]), x[:, :2])
    with pytest.raises(ToolkitError, match=r"d: .*\[2:4\] goes beyond the matrix of 4 x 3"):
        read_matrix(index["d"])


def test_integers_and_other_ways_of_writing(tmp_path):
    (tmp_path / "x.ark").write_text("a 1 -2 3 \nb \nc  [ 1 2; 3 inf ]\nd 7")
    index = entries(tmp_path / "x.ark")
    assert [read_vector(index[key]).tolist() for key in "abd"] == [[1, -2, 3], [], [7]]
    np.testing.assert_array_equal(read_matrix(index["c"]), [[1, 2], [3, np.inf]])
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
    index = entries(tmp_path / "x.ark")
    for key, message in (("a", "does not fit"), ("b", "invalid literal")):
        with pytest.raises(ToolkitError, match=message):
            read_vector(index[key])


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text("ab []\n;1.-e\0B\t"))
def test_any_text_is_read_or_an_error(tmp_path, content):
    (tmp_path / "x.ark").write_text(content)
    with contextlib.suppress(ToolkitError):
        for entry in entries(tmp_path / "x.ark").values():
            (read_vector if read_header(entry).is_vector else read_matrix)(entry)


KINDS = {
    "binary": (kaldi.FloatMatrixWriter, False, np.ones((2, 5), np.float32)),
    "text": (kaldi.FloatMatrixWriter, True, np.ones((2, 5), np.float32)),
    "integers": (kaldi.Int32VectorWriter, False, [1, 2, 3000]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_is_written_whole_or_not_at_all(tmp_path, kind):
    make, text, value = KINDS[kind]
    archive, scp = tmp_path / "a.ark", tmp_path / "a.scp"

    def write():
        with ArchiveWriter(make, archive, scp, text) as writer:
            for key in ("one", "two"):
                writer.write(key, value)

    write()
    whole = archive.read_bytes().rstrip(b"\n"), scp.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in range(len(whole[0])):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(ArchiveError, match=r"cannot be written\. Is the disk full"):
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not list(tmp_path.iterdir())
    write()
    assert (archive.read_bytes().rstrip(b"\n"), scp.read_bytes()) == whole


def test_any_error_leaves_no_part_of_an_archive(tmp_path):
    def write():
        places = tmp_path / "a.ark", tmp_path / "a.scp"
        with ArchiveWriter(kaldi.Int32VectorWriter, *places) as writer:
            writer.write("one", [1])
            raise KeyError("x")

    with pytest.raises(KeyError):
        write()
    assert not list(tmp_path.iterdir())
