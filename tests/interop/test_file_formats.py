"""Archives and TextGrids exchanged with other readers and writers."""

import numpy as np
import pytest

from toolkit.align.ctm_textgrid import TimedToken, write_textgrid
from toolkit.kaldi.archive import entries, read_int_vectors, read_matrix, read_vector

MATRICES = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "b": np.array([[-1e-4, 2.5, 1e5]], np.float32),
}


@pytest.mark.parametrize("text", [False, True])
def test_archives_of_kaldiio_are_read(tmp_path, text):
    kaldiio = pytest.importorskip("kaldiio")
    kaldiio.save_ark(str(tmp_path / "x.ark"), MATRICES, scp=str(tmp_path / "x.scp"), text=text)
    index = entries(tmp_path / "x.ark")
    assert list(index) == list(MATRICES)
    for key, matrix in MATRICES.items():
        np.testing.assert_allclose(read_matrix(index[key]), matrix, rtol=1e-5)
    integers = {"a": np.array([1, -2, 3], np.int32), "b": np.array([7], np.int32)}
    kaldiio.save_ark(str(tmp_path / "i.ark"), integers)  # as text it puts brackets, unlike Kaldi
    assert {key: v.tolist() for key, v in read_int_vectors(tmp_path / "i.ark")} == {
        "a": [1, -2, 3],
        "b": [7],
    }


@pytest.mark.parametrize("mode", ["ark", "ark,t"])
def test_archives_of_kaldi_native_io_are_read_by_kaldiio_and_here(tmp_path, mode):
    kaldiio = pytest.importorskip("kaldiio")
    kaldi = pytest.importorskip("kaldi_native_io")
    with kaldi.FloatMatrixWriter(f"{mode}:{tmp_path}/x.ark") as writer:
        for key, matrix in MATRICES.items():
            writer.write(key, matrix)
    loaded = dict(kaldiio.load_ark(str(tmp_path / "x.ark")))
    for key, entry in entries(tmp_path / "x.ark").items():
        np.testing.assert_array_equal(read_matrix(entry), loaded[key])
    with kaldi.Int32VectorWriter(f"{mode}:{tmp_path}/i.ark") as writer:
        writer.write("a", [5, 6])
    assert read_vector(entries(tmp_path / "i.ark")["a"]).tolist() == [5, 6]


def test_textgrids_are_read_by_praatio(tmp_path):
    textgrid = pytest.importorskip("praatio.textgrid")
    words = [
        TimedToken("SAY", 0.1, 0.3),
        TimedToken('"é"', 0.5, 0.75),
    ]
    write_textgrid({"words": words}, 1.0, tmp_path / "x.TextGrid")
    grid = textgrid.openTextgrid(str(tmp_path / "x.TextGrid"), includeEmptyIntervals=False)
    assert grid.maxTimestamp == 1.0
    assert [tuple(entry) for entry in grid.getTier("words").entries] == [
        (0.1, 0.3, "SAY"),
        (0.5, 0.75, '"é"'),
    ]
