"""Back-off models as one binary file, read in a fraction of an ARPA file's time."""

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from toolkit.lang.arpa import ArpaError
from toolkit.lang.backoff import BackoffModel, Level
from toolkit.stages.files import write_atomically

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
      ArpaError: it is another file.
    """
    try:
        with safe_open(path, framework="np") as file:
            vocabulary = json.loads(file.metadata()["vocabulary"])
            orders = len(file.keys()) // len(_FIELDS)
            levels = [
                Level(**{field: file.get_tensor(f"{order}.{field}") for field in _FIELDS})
                for order in range(1, orders + 1)
            ]
    except (SafetensorError, KeyError, TypeError) as error:
        raise ArpaError(f"{path}: not a language model that write_binary made: {error}") from error
    return BackoffModel(vocabulary, levels)
