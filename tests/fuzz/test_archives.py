"""Kaldi archives, whose objects a C++ library reads."""

from importlib.util import find_spec

import numpy as np

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader
from toolkit.kaldi.archive import describe_entries, entries, read_matrix
from toolkit.kaldi.feature_dir import find_feature_faults, read_feature_dir

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


def feature_dir(folder):
    """A data directory of features alone."""
    archive()(folder)
    (folder / "x.scp").rename(folder / "feats.scp")
    tables = {
        "text": "anna-1 GOOD\nbert-1 É\n",
        "utt2spk": "anna-1 anna\nbert-1 bert\n",
        "segments": "anna-1 call 0 0.03\nbert-1 call 1.0 1.03\n",
        "utt2num_frames": "anna-1 3\nbert-1 3\n",
        "frame_shift": "0.01\n",
    }
    for name, lines in tables.items():
        (folder / name).write_text(lines, encoding="utf-8")


def use_feature_dir(folder):
    cuts = read_feature_dir(folder)
    find_feature_faults({"train": cuts})


READERS = (
    {
        "feature-dir": Reader(feature_dir, use_feature_dir, names=NAMES),
        "matrices": Reader(archive(), use, names=NAMES),
        "compressed": Reader(archive(compressed=True), use, names=NAMES),
        "text": Reader(archive(text=True), use, names=NAMES),
    }
    if find_spec("kaldi_native_io")
    else {}
)
