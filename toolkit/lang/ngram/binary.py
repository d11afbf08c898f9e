"""Back-off models as binary files, which load in a fraction of the time of ARPA files."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from toolkit.lang.ngram.arpa import ArpaError
from toolkit.lang.ngram.backoff import BackoffModel, Level, check_levels
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading, validated

_FIELDS = ("context", "word", "logprob", "backoff")
_TYPES = {"context": np.int64, "word": np.int64, "logprob": np.float32, "backoff": np.float32}


def write_binary(model: BackoffModel, path: Path) -> None:
    """Write `model` as a safetensors file."""
    tensors = {
        f"{order}.{field}": getattr(level, field).astype(_TYPES[field])
        for order, level in enumerate(model.levels, 1)
        for field in _FIELDS
    }
    words = {"vocabulary": json.dumps(model.vocabulary)}
    write_atomically(path, save(tensors, metadata=words))


def read_binary(path: Path) -> BackoffModel:
    """Read a file that `write_binary` made.

    Raises:
      ArpaError: the file is not such a model.
    """
    what = "not a language model that write_binary made"
    with reading(path, ArpaError, "make it again from the ARPA file", what):
        tensors, about = read_tensors(path, {}, "np")
        vocabulary = validated(json.loads(about["vocabulary"]), [str])
        orders = range(1, len(tensors) // len(_FIELDS) + 1)
        levels = [
            Level(**{field: tensors[f"{order}.{field}"] for field in _FIELDS}) for order in orders
        ]
        check_levels(vocabulary, levels)
        return BackoffModel(vocabulary, levels)
