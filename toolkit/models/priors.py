"""Priors of the targets, which turn a network's posteriors into scaled likelihoods."""

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from toolkit.models.store import ModelError
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading

PRIORS = "priors.json"
FLOOR = 0.01


def log_priors(counts: Tensor) -> Tensor:
    """Compute log p(s) from counts of training frames.

    Decoding uses log p(x | s) = log p(s | x) - log p(s) + const. A target that was hardly seen
    would get a large likelihood from the noise of its posterior, so that counts below a hundredth
    of the mean count are raised to it.

    Args:
      counts: [C] frames of each target, not all 0.

    Returns:
      [C] float32, natural logarithm.
    """
    counts = counts.double()
    floored = counts.clamp(min=FLOOR * float(counts.mean()))
    return (floored / floored.sum()).log().float()


def save_priors(folder: Path, counts: Tensor) -> None:
    """Write the counts [C] as `priors.json` in a model's folder."""
    write_atomically(Path(folder) / PRIORS, json.dumps({"counts": counts.tolist()}) + "\n")


def load_log_priors(folder: Path) -> Tensor:
    """Read log p(s) [C] float32 of the model in `folder`.

    Raises:
      ModelError: the file is missing or damaged.
    """
    path = Path(folder) / PRIORS
    with reading(path, ModelError, "train the model again", "holds no priors"):
        counts = torch.tensor(read_json(path, {"counts": [float]})["counts"])
        if not (counts.ge(0).all() and 0 < counts.sum() < math.inf):
            raise ValueError("no counts")
        return log_priors(counts)
