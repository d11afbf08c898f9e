"""Archives that a full disk cuts short, at whatever byte."""

import resource

import numpy as np
import pytest

from toolkit.kaldi.archive_writer import ArchiveWriter
from toolkit.kaldi.tables import KaldiIoError

kaldi = pytest.importorskip("kaldi_native_io")

KINDS = {
    "binary": (kaldi.FloatMatrixWriter, False, np.ones((2, 5), np.float32)),
    "text": (kaldi.FloatMatrixWriter, True, np.ones((2, 5), np.float32)),
    "integers": (kaldi.Int32VectorWriter, False, [1, 2, 3000]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_is_whole_or_not_there(tmp_path, kind):
    make, text, value = KINDS[kind]
    archive, scp = tmp_path / "a.ark", tmp_path / "a.scp"

    def write():
        with ArchiveWriter(make, archive, scp, text) as writer:
            for key in ("one", "two"):
                writer.write(key, value)

    write()
    whole = archive.read_bytes().rstrip(b"\n"), scp.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in range(len(whole[0])):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            with pytest.raises(KaldiIoError, match="cannot be written: is the disk full"):
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
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
