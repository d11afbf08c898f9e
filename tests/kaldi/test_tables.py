import contextlib
import gzip
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.kaldi.show import describe_entries
from toolkit.kaldi.tables import (
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
    found = entries(folder / name)
    assert list(found) == ["a", "b", "c"]
    header = read_header(found["a"])
    assert (header.kind, header.shape) == (kind, (3, 4))
    end = found["c"].offset + read_header(found["c"]).size
    assert end == (folder / "x.ark").stat().st_size
    tolerance = 0 if kind in ("FM", "DM") else 0.1
    np.testing.assert_allclose(read_matrix(found["a"]), X, atol=tolerance)
    np.testing.assert_allclose(read_matrix(found["b"]), X[:1] * 3, atol=tolerance)
    assert read_matrix(found["a"]).dtype == np.float32


def test_both_ways_in_find_the_same_places(table):
    folder = table(a=X, b=X + 1)
    assert list(entries(folder / "x.ark").values()) == list(entries(folder / "x.scp").values())


def test_paths_are_looked_for_from_the_file_upwards_and_ranges_are_kept(table):
    folder = table(a=X)
    (folder / "data").mkdir()
    (folder / "data/y.scp").write_text("a x.ark:2[0:1]\nb  x.ark:2\n")
    found = entries(folder / "data/y.scp")
    np.testing.assert_array_equal(read_matrix(found["a"]), X[:2])
    np.testing.assert_array_equal(read_matrix(found["b"]), X)


def test_commands_are_not_run_unless_allowed(table):
    folder = table(a=X)
    mark = folder / "ran"
    (folder / "y.scp").write_text(f"a touch {mark}; tail -c +3 {folder}/x.ark |\n")
    with pytest.raises(ToolkitError, match=r"y\.scp:1: a is made by a command .*--allow-pipes"):
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
        (b"", "bad.scp: holds nothing"),
        (b"a \xff\n", "bad.scp:1: byte 3 is not UTF-8"),
        (b"a " + b"9" * 400 + b"\n", "bad.scp:1: a: there is no file"),
        (b"a x.ark:" + b"9" * 30 + b"\n", "bad.scp:1: a: no file has a byte '9999"),
    ):
        bad.write_bytes(content)
        with pytest.raises(ToolkitError, match=message):
            entries(bad)
    with pytest.raises(ToolkitError, match="cannot read it: No such file"):
        entries(folder / "gone.ark")


@pytest.mark.parametrize("offset", [10_000, 10**12, 10**17])
def test_a_byte_that_the_file_does_not_have_names_it(table, offset):
    folder = table(a=X)
    (folder / "y.scp").write_text(f"a {folder / 'x.ark'}:{offset}\n")
    with pytest.raises(ToolkitError, match=r"^a: .*x\.ark"):
        read_matrix(entries(folder / "y.scp")["a"])


@pytest.mark.parametrize("kind", ["FM", "CM"])
def test_a_size_that_the_file_does_not_have_is_no_allocation(table, kind):
    folder = table(kind, a=X)
    content = bytearray((folder / "x.ark").read_bytes())
    at = content.index(struct.pack("<i", 3))
    content[at : at + 4] = struct.pack("<i", 2**30)
    (folder / "x.ark").write_bytes(content)
    with pytest.raises(ToolkitError, match=r"1073741824 x 4 at byte 2 goes beyond the end"):
        read_matrix(entries(folder / "x.scp")["a"])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_archives_are_errors_and_never_more(table, data):
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
    found = entries(tmp_path / "x.ark")
    assert read_vector(found["a"]).tolist() == [1, -2, 2**31 - 1]
    assert read_vector(found["b"]).tolist() == []
    with pytest.raises(ToolkitError, match=r"a: .* holds integers there, not features"):
        read_matrix(found["a"])
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
    with pytest.raises(ToolkitError, match="has no 'q'; its first key is 'a'"):
        list(describe_entries(folder / "x.ark", key="q"))


def test_compressed_files_are_no_archives(tmp_path):
    path = tmp_path / "x.ark"
    path.write_bytes(gzip.compress(b"a \0BFM "))
    with pytest.raises(ToolkitError, match=r"x\.ark: not an archive, but .* unpack it with gunzip"):
        entries(path)


def test_the_mark_of_windows_editors_is_no_part_of_the_first_key(table):
    folder = table(a=X)
    (folder / "y.scp").write_bytes(b"\xef\xbb\xbfa x.ark:2\r\nb x.ark:2\r\n")
    assert list(entries(folder / "y.scp")) == ["a", "b"]


@pytest.mark.parametrize("name", ["a b", "a,b", "a|"])
def test_places_that_specifiers_cannot_name_are_refused(tmp_path, name):
    with pytest.raises(ToolkitError, match="choose another folder"):
        writer_path(tmp_path / name / "x.ark")
    assert not (tmp_path / name).exists()


def test_objects_beyond_the_end_of_an_archive_are_told(tmp_path):
    """An archive that was cut short, and an scp file that was not."""
    (tmp_path / "x.ark").write_bytes(b"a ")
    (tmp_path / "x.scp").write_text(f"a {tmp_path}/x.ark:2\nb {tmp_path}/x.ark:90\n")
    found = entries(tmp_path / "x.scp")
    for read in (read_header, read_matrix, read_vector):
        with pytest.raises(ToolkitError, match=r"b: .*x.ark has no byte 90"):
            read(found["b"])
