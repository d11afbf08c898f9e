"""Posteriors of a CTC model on a split, stored so that every search reads the same ones."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from toolkit.decode.ctc.decoder import CtcDecodeError
from toolkit.features.normalise import Normaliser
from toolkit.features.store import FeatureStore
from toolkit.models.ctc import CtcModel, ctc_log_probs
from toolkit.models.store import load_model
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import NATURAL, read_json, read_tensors, reading

POSTERIORS = "posteriors.json"
BATCH = 16  # utterances


class Posteriors(Mapping[str, Tensor]):
    """[T, C] float32 log-probabilities by utterance, in stored order.

    Args:
      folder: written by `write_posteriors`.

    Raises:
      CtcDecodeError: the folder was not written by `write_posteriors`, or is incomplete.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)
        what = "not a folder of finished posteriors"
        with reading(folder, CtcDecodeError, "decode again", what):
            self._files: dict[str, int] = read_json(self._folder / POSTERIORS, {str: NATURAL})
        self._loaded: tuple[int, dict[str, Tensor]] = (-1, {})

    def __getitem__(self, utterance: str) -> Tensor:
        """Return the posteriors of an utterance; the last file read is kept in memory."""
        number = self._files[utterance]
        if self._loaded[0] != number:
            path = _path(self._folder, number)
            with reading(path, CtcDecodeError, "decode again"):
                self._loaded = number, read_tensors(path, {utterance: ("F32", 2)})[0]
        return self._loaded[1][utterance]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the utterance ids, file by file."""
        return iter(self._files)

    def __len__(self) -> int:
        """Number of utterances."""
        return len(self._files)


def write_posteriors(
    model: Path,
    normaliser: Path,
    features: Path,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Run a CTC model over all utterances of a feature store.

    Called again after an interruption, it continues with the missing shards.

    Args:
      model: folder of a `CtcModel`.
      normaliser: file of the feature normaliser.
      features: the feature store.
      out: the folder that gets a file per feature shard and, last, `posteriors.json`.
      device: where to compute.
      progress: called with (shards done, shards).
    """
    store, network = FeatureStore(features), load_model(model).to(device)
    normalise = Normaliser.load(normaliser)
    out.mkdir(parents=True, exist_ok=True)
    for number, ids in enumerate(store.shards):
        path = _path(out, number)
        if not path.exists():
            rows = [normalise.apply(store.load(name), store.state(name)) for name in ids]
            found = dict(zip(ids, _log_probs(network, rows), strict=True))
            write_atomically(path, save(found))
        if progress is not None:
            progress(number + 1, len(store.shards))
    files = {name: number for number, ids in enumerate(store.shards) for name in ids}
    write_atomically(out / POSTERIORS, json.dumps(files, ensure_ascii=False) + "\n")


def _path(folder: Path, number: int) -> Path:
    return folder / f"posteriors.{number:06d}.safetensors"


@torch.inference_mode()
def _log_probs(model: CtcModel, rows: list[Tensor]) -> list[Tensor]:
    """Return [T_n, C] of each utterance, computed in batches of similar lengths."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found: dict[int, Tensor] = {}
    for start in range(0, len(order), BATCH):
        group = order[start : start + BATCH]
        outputs = ctc_log_probs(model, [rows[i] for i in group])
        found |= zip(group, (output.float().contiguous() for output in outputs), strict=True)
    return [found[i] for i in range(len(rows))]
