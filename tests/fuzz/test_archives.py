"""Kaldi's archives, whose objects a library in C++ reads."""

from importlib.util import find_spec

import numpy as np

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader
from toolkit.features.kaldi.show import describe_entries
from toolkit.features.kaldi.tables import entries, read_matrix

NAMES = ("anna-1", "bert-1")
MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def archive(text=False, compressed=False):
    def write(folder):
        import kaldi_native_io as kaldi

        make = kaldi.CompressedMatrixWriter if compressed else kaldi.FloatMatrixWriter
        method = (kaldi.CompressionMethod.kSpeechFeature,) if compressed else ()
        with make(f"ark,scp{',t' * text}:{folder}/x.ark,{folder}/x.scp") as writer:
            for name in NAMES:
                writer.write(name, MATRIX, *method)

    return write


def use(folder):
    for name in ("x.scp", "x.ark"):
        for entry in entries(folder / name).values():
            read_matrix(entry)
        list(describe_entries(folder / name))


READERS = (
    {
        "matrices": Reader(archive(), use, names=NAMES),
        "compressed": Reader(archive(compressed=True), use, names=NAMES),
        "text": Reader(archive(text=True), use, names=NAMES),
    }
    if find_spec("kaldi_native_io")
    else {}
)
