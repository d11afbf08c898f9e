"""Features of GMM systems from cepstra: CMN per speaker, deltas, LDA + MLLT, fMLLR (C4)."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.features.shards import MANIFEST, FeatureStore
from toolkit.features.silence import fill_digital_silence
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import NATURAL, read_json, read_tensors, reading

ADVICE = "train the system again, or restore the file"
MAX_SPLICE = 50
CACHED_BYTES = 64 << 20
"""Bytes of features (before fMLLR) that a process caches per front end: 1.1 hours of 40 values per
frame. Training passes over the same utterances dozens of times, and computing their features takes
a quarter of a pass. There are caches for two front ends: that of a system, and that of the system
whose alignments its training starts from."""


class GmmFeaturesError(ToolkitError):
    """Raised when a GMM front end or fMLLR transforms cannot be read."""


def apply_affine(transform: Tensor, x: Tensor) -> Tensor:
    """Apply an affine transform [D', D + 1] to frames x [T, D]: x A^T + b, [T, D']."""
    transform = transform.to(x.dtype)
    # y = A x + b for every row x, W = [A b].
    return x @ transform[:, :-1].T + transform[:, -1]


@dataclass(frozen=True)
class GmmFrontend:
    """Turns raw cepstra into the features that a GMM models.

    The first steps are mean normalisation by speaker and deltas, as in Kaldi's apply-cmvn |
    add-deltas. LDA + MLLT (C4) adds splicing and a projection; SAT also adds an fMLLR transform by
    speaker.
    """

    splice: int = 0
    """Frames of context on either side."""
    projection: Tensor | None = None
    """[D, 3 F (2 splice + 1)] matrix of LDA and MLLT; None: no projection."""

    def __call__(self, cepstra: Tensor, mean: Tensor, transform: Tensor | None = None) -> Tensor:
        """Compute the GMM features of one utterance's cepstra.

        Args:
          cepstra: [T, F] raw cepstra.
          mean: [F] mean of the speaker's cepstra.
          transform: [D, D + 1] fMLLR transform of the speaker, the offset in the last column.

        Returns:
          [T, 3 F], or [T, D] with a projection.
        """
        # [T, 3 F] after deltas, [T, 3 F (2 splice + 1)] after splicing, [T, D] after projection.
        x = add_deltas((cepstra - mean).float())
        if self.splice:
            x = splice(x, self.splice, self.splice)
        if self.projection is not None:
            x = x @ self.projection.T
        return x if transform is None else apply_affine(transform, x)

    def save(self, folder: Path) -> None:
        """Write `features.json` and, if there is a projection, `projection.safetensors`."""
        if self.projection is not None:
            tensors = {"projection": self.projection.contiguous()}
            write_atomically(folder / "projection.safetensors", save(tensors))
        write_atomically(folder / "features.json", json.dumps({"splice": self.splice}) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "GmmFrontend":
        """Read the front end that `save` wrote.

        Raises:
          GmmFeaturesError: a file cannot be read, or is damaged; names the file.
        """
        path = folder / "features.json"
        with reading(path, GmmFeaturesError, ADVICE):
            splice = read_json(path, {"splice": NATURAL})["splice"]
            if splice > MAX_SPLICE:
                raise ValueError(f"`splice` is {splice} but must be at most {MAX_SPLICE}")
        path = folder / "projection.safetensors"
        if not os.path.lexists(path):
            return cls(splice)
        with reading(path, GmmFeaturesError, ADVICE):
            return cls(splice, read_tensors(path, {"projection": ("F32", 2)})[0]["projection"])

    def __reduce__(self) -> tuple:
        """Pickle numpy arrays; torch would send tensors to workers by file descriptors."""
        projection = None if self.projection is None else self.projection.numpy()
        return _from_arrays, (self.splice, projection)


def _from_arrays(splice: int, projection: object) -> GmmFrontend:
    """Make a front end from its pickled arrays."""
    return GmmFrontend(splice, None if projection is None else torch.from_numpy(projection))


@dataclass(frozen=True)
class GmmFeatures:
    """GMM features of the utterances in a store of cepstra; picklable."""

    path: Path
    """A feature store of raw cepstra."""
    frontend: GmmFrontend = GmmFrontend()
    """The front end that is applied to them."""
    transforms: Mapping[str, Tensor] = field(default_factory=dict)
    """The fMLLR transform of each speaker that has one."""

    @cached_property
    def store(self) -> FeatureStore:
        """The store of raw cepstra."""
        return _open_store(self.path, self._modified)

    @cached_property
    def _modified(self) -> int:
        """Time of the store's last change in ns, part of the cache key."""
        manifest = self.path / MANIFEST
        return manifest.stat().st_mtime_ns if manifest.exists() else 0

    @cached_property
    def _projection(self) -> bytes | None:
        """The projection as bytes, part of the cache key."""
        projection = self.frontend.projection
        return None if projection is None else projection.numpy().tobytes()

    @cached_property
    def _means(self) -> dict[str, Tensor]:
        """Cache of the speakers' cepstral means."""
        return {}

    @cached_property
    def dimension(self) -> int:
        """D, the number of features per frame."""
        return self.load(self.store.ids[0]).shape[1]

    def speaker(self, utterance: str) -> str:
        """Return the speaker of an utterance."""
        return self.store.speaker(utterance)

    def load(self, utterance: str) -> Tensor:
        """Return the features [T, D] of an utterance."""
        speaker = self.speaker(utterance)
        cache = _feature_cache(self.path, self._modified, self.frontend.splice, self._projection)
        # The cache holds features before fMLLR, which changes from one estimation to the next.
        x = cache.get(utterance)
        if x is None:
            if speaker not in self._means:
                self._means[speaker] = self.store.speaker_mean(speaker)
            cepstra = fill_digital_silence(self.store.load(utterance), self.counted(utterance))
            x = self.frontend(cepstra, self._means[speaker])
            cache.add(utterance, x)
        transform = self.transforms.get(speaker)
        return x.clone() if transform is None else apply_affine(transform, x)

    def counted(self, utterance: str) -> Tensor:
        """Return which frames of an utterance are not digital silence: [T] bool."""
        return self.store.counted(utterance)

    def projected(self, projection: Tensor) -> "GmmFeatures":
        """Return the same features with another projection."""
        return replace(self, frontend=replace(self.frontend, projection=projection))

    def adapted(self, transforms: Mapping[str, Tensor]) -> "GmmFeatures":
        """Return the same features with other speaker transforms."""
        return replace(self, transforms=transforms)

    def __getstate__(self) -> dict:
        """Pickle settings and numpy arrays without the opened store."""
        arrays = {speaker: w.numpy() for speaker, w in self.transforms.items()}
        return {"path": self.path, "frontend": self.frontend, "transforms": arrays}

    def __setstate__(self, state: dict) -> None:
        arrays = state["transforms"]
        transforms = {speaker: torch.from_numpy(array) for speaker, array in arrays.items()}
        self.__dict__.update(state | {"transforms": transforms})


class _FeatureCache:
    """Features of as many utterances as fit, first come, first served.

    Nothing is evicted: every pass reads the utterances in the same order.
    """

    def __init__(self) -> None:
        self._features: dict[str, Tensor] = {}
        self._room = CACHED_BYTES

    def get(self, utterance: str) -> Tensor | None:
        """Return an utterance's features; None if they are not cached."""
        return self._features.get(utterance)

    def add(self, utterance: str, x: Tensor) -> None:
        """Add an utterance's features if there is room."""
        size = x.numel() * x.element_size()
        if size <= self._room and utterance not in self._features:
            self._features[utterance] = x
            self._room -= size


@lru_cache(maxsize=2)
def _feature_cache(
    path: Path, modified: int, splice: int, projection: bytes | None
) -> _FeatureCache:
    """Return this process's cache for one version of a store and front end."""
    return _FeatureCache()


@lru_cache(maxsize=8)
def _open_store(path: Path, modified: int) -> FeatureStore:
    """Open a store, cached by path and modification time, as reading its index is slow."""
    return FeatureStore(path)


def save_transforms(path: Path, transforms: Mapping[str, Tensor]) -> None:
    """Write the fMLLR transforms as one tensor per speaker."""
    write_atomically(path, save({s: w.contiguous() for s, w in sorted(transforms.items())}))


def load_transforms(path: Path) -> dict[str, Tensor]:
    """Read the fMLLR transforms that `save_transforms` wrote.

    Raises:
      GmmFeaturesError: the file cannot be read, or is damaged; names the file.
    """
    with reading(path, GmmFeaturesError, ADVICE):
        return read_tensors(path, {"*": ("F32", 2)})[0]


def add_deltas(features: Tensor, order: int = 2, window: int = 2) -> Tensor:
    """Append regression deltas up to `order`, like Kaldi's add-deltas.

    Each order is one filter on the original frames (the regression filter convolved with
    itself); frames past either end repeat the end frame.

    Args:
      features: [T, F].
      order: highest order of deltas.
      window: frames on either side in the regression.

    Returns:
      [T, F * (order + 1)]: the features, then their deltas, then delta-deltas, ...
    """
    num_frames = features.shape[0]
    if num_frames == 0:
        return features.new_empty(0, features.shape[1] * (order + 1))
    # A filter of order n reaches n * window frames; pad for the longest by repeating end frames.
    context = order * window
    times = torch.arange(-context, num_frames + context).clamp(0, num_frames - 1)
    padded = features[times]
    blocks = [features]
    for filter_ in _delta_filters(order, window)[1:]:
        # A shorter filter starts later in the padded frames.
        reach = len(filter_) // 2
        block = torch.zeros_like(features)
        for shift, weight in enumerate(filter_, start=context - reach):
            block += weight * padded[shift : shift + num_frames]
        blocks.append(block)
    return torch.cat(blocks, dim=1)


def _delta_filters(order: int, window: int) -> list[list[float]]:
    """Return each order's delta filter [2 * order * window + 1], oldest frame first."""
    norm = sum(j * j for j in range(-window, window + 1))
    filters = [[1.0]]
    # d_t = sum_j j x_{t+j} / sum_j j^2, and each order is this filter on the one before.
    for _ in range(order):
        previous_filter = filters[-1]
        convolved = [0.0] * (len(previous_filter) + 2 * window)
        for i, weight in enumerate(previous_filter):
            for j in range(-window, window + 1):
                convolved[i + j + window] += weight * j / norm
        filters.append(convolved)
    return filters


def splice(features: Tensor, left: int, right: int) -> Tensor:
    """Concatenate every frame with its neighbours, like Kaldi's splice-feats.

    Args:
      features: [T, D].
      left, right: number of frames before and after; past either end the end frame repeats.

    Returns:
      [T, D * (left + 1 + right)]: the oldest frame first.
    """
    times = torch.arange(len(features), device=features.device)
    offsets = torch.arange(-left, right + 1, device=features.device)
    # [T, left + 1 + right] frame indices; beyond an end the end frame.
    window = (times[:, None] + offsets).clamp(0, max(len(features) - 1, 0))
    return features[window].flatten(1)
