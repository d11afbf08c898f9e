"""Write Kaldi data directories with features and no audio."""

import kaldi_native_io
import numpy as np


def matrices(ids, dimension=5, seed=0):
    """Random features of a few hundred frames by utterance."""
    rng = np.random.default_rng(seed)
    return {
        id: rng.standard_normal((120 + 10 * number, dimension)).astype(np.float32)
        for number, id in enumerate(ids)
    }


def write_feature_dir(folder, features, speaker=lambda id: id[0], text="ONE TWO", compress=False):
    """Write feats.scp with its archive, text, utt2spk and utt2num_frames."""
    folder.mkdir(parents=True, exist_ok=True)
    table = f"ark,scp:{folder}/feats.ark,{folder}/feats.scp"
    if compress:
        with kaldi_native_io.CompressedMatrixWriter(table) as writer:
            for id, matrix in features.items():
                writer.write(id, matrix, kaldi_native_io.CompressionMethod.kAutomaticMethod)
    else:
        with kaldi_native_io.FloatMatrixWriter(table) as writer:
            for id, matrix in features.items():
                writer.write(id, matrix)
    tables = {
        "text": {id: text for id in features},
        "utt2spk": {id: speaker(id) for id in features},
        "utt2num_frames": {id: len(matrix) for id, matrix in features.items()},
    }
    for name, lines in tables.items():
        (folder / name).write_text("".join(f"{id} {value}\n" for id, value in lines.items()))
    return folder


def append(path, line):
    with open(path, "a") as file:
        file.write(f"{line}\n")
