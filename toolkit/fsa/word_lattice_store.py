"""Word lattices on disk: shards that hold the words that they name."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from toolkit.config.fields import from_plain
from toolkit.errors import ToolkitError
from toolkit.fsa.traversal import in_order
from toolkit.fsa.word_lattice import NO_WORD, WordLattice
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_tensors, reading, validated

FORMAT = 1
ADVICE = "remove it and decode again"
NO_SYMBOL = "<eps>"
_BY_ARC = {"source": "I32", "target": "I32", "words": "I32", "graph": "F64", "acoustic": "F64"}
_COLUMNS = _BY_ARC | {"times": "F64"}
_SPLITS = {"arc_splits": ("I64", 1), "state_splits": ("I64", 1)}


class WordLatticeError(ToolkitError):
    """Word lattices that are damaged or not there."""


@dataclass(frozen=True)
class WordLatticeHeader:
    """What a shard holds beside the arrays."""

    ids: tuple[str, ...]
    """Its utterances."""
    failed: tuple[str, ...]
    """Utterances of which no path survived the search."""
    symbols: tuple[str, ...]
    """The words by their ids in the shard; the first is that of no word."""
    acoustic_scale: float
    """The scale of the best path, see `toolkit.fsa.lattice.Weights`."""
    word_penalty: float
    """The penalty of the best path."""
    frame_shift: float
    """Seconds per frame."""
    format: int = FORMAT


class Words:
    """Ids for the words of several shards, as they come; 0 is no word."""

    def __init__(self) -> None:
        self.symbols = [NO_SYMBOL]
        self._ids = {NO_SYMBOL: NO_WORD}

    def id_of(self, word: str) -> int:
        """The id of a word, which may be a new one."""
        number = self._ids.setdefault(word, len(self.symbols))
        if number == len(self.symbols):
            self.symbols.append(word)
        return number

    def ids(self, words: Sequence[str]) -> list[int]:
        """The ids of words."""
        return [self.id_of(word) for word in words]


@dataclass(frozen=True)
class Decoding:
    """How lattices were made."""

    acoustic_scale: float
    word_penalty: float
    frame_shift: float
    """Seconds per frame."""


def word_lattice_path(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"words.{number:06d}.safetensors"


def remove_word_lattices(folder: Path, number: int) -> None:
    """Remove the shards from `number` on, which another decode has left."""
    kept = {word_lattice_path(folder, n) for n in range(number)}
    for path in folder.glob("words.*.safetensors"):
        if path not in kept:
            path.unlink()


def write_word_lattices(
    path: Path,
    lattices: Mapping[str, WordLattice | None],
    symbol: Callable[[int], str],
    decoding: Decoding,
) -> None:
    """Write one shard.

    Args:
      path: see `word_lattice_path`.
      lattices: by utterance; None where the search failed.
      symbol: gives the word of an id.
      decoding: how they were made.
    """
    found = {name: lattice for name, lattice in lattices.items() if lattice is not None}
    columns = {name: [getattr(x, name) for x in found.values()] for name in _COLUMNS}
    joined = {name: np.concatenate(x) if x else np.zeros(0) for name, x in columns.items()}
    used, numbers = np.unique(np.append(NO_WORD, joined["words"]), return_inverse=True)
    joined["words"] = numbers.reshape(-1)[1:]
    kinds = {"I32": torch.int32, "F64": torch.float64}
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(joined[name])).to(kinds[kind])
        for name, kind in _COLUMNS.items()
    }
    for name, column in (("arc_splits", "source"), ("state_splits", "times")):
        tensors[name] = torch.tensor([0, *map(len, columns[column])]).cumsum(0)
    header = WordLatticeHeader(
        ids=tuple(found),
        failed=tuple(name for name, lattice in lattices.items() if lattice is None),
        symbols=(NO_SYMBOL, *map(symbol, used[1:].tolist())),
        **asdict(decoding),
    )
    write_atomically(path, save(tensors, {"lattices": json.dumps(asdict(header))}))


class WordLatticeStore:
    """A folder of word lattices; all are kept in memory.

    Args:
      folder: with the shards of `write_word_lattices`.
      words: gives their words common ids with those of other stores.

    Raises:
      WordLatticeError: no lattices there, or damaged ones.
    """

    def __init__(self, folder: Path, words: Words) -> None:
        self.decodings: dict[str, Decoding] = {}
        self.failed: list[str] = []
        self._lattices: dict[str, WordLattice] = {}
        shards = sorted(Path(folder).glob("words.*.safetensors"))
        if not shards:
            raise WordLatticeError(
                f"{folder}: there are no word lattices; decode with n-best lists"
            )
        for path in shards:
            with reading(path, WordLatticeError, ADVICE, "damaged"):
                self._read(path, words)

    def _read(self, path: Path, words: Words) -> None:
        kinds = {name: (kind, 1) for name, kind in _COLUMNS.items()} | _SPLITS
        tensors, metadata = read_tensors(path, kinds, "np")
        plain = json.loads(metadata["lattices"])
        if validated(plain, {"format": int})["format"] != FORMAT:
            raise ValueError(f"format {plain['format']}, this version reads {FORMAT}")
        header = from_plain(WordLatticeHeader, plain)
        if (tensors["words"] < 0).any():
            raise ValueError("a word below 0")
        tensors["words"] = np.int32(words.ids(header.symbols))[tensors["words"]]
        decoding = Decoding(header.acoustic_scale, header.word_penalty, header.frame_shift)
        self.failed += header.failed
        arcs, states = (_slices(tensors[name], len(header.ids)) for name in _SPLITS)
        for name, of_arcs, of_states in zip(header.ids, arcs, states, strict=True):
            columns = {column: tensors[column][of_arcs] for column in _BY_ARC}
            lattice = WordLattice(**columns, times=tensors["times"][of_states])
            _check(name, lattice)
            self._lattices[name], self.decodings[name] = lattice, decoding

    def __iter__(self) -> Iterator[str]:
        return iter(self._lattices)

    def __getitem__(self, utterance: str) -> WordLattice:
        return self._lattices[utterance]

    def scores(self, utterance: str) -> np.ndarray:
        """[A] the scores of a lattice's arcs with the weights of its best path."""
        used = self.decodings[utterance]
        return self[utterance].scores(used.acoustic_scale, used.word_penalty)


def _slices(splits: np.ndarray, count: int) -> list[slice]:
    if len(splits) != count + 1:
        raise ValueError(f"{len(splits)} splits for {count} utterances")
    return [slice(a, b) for a, b in pairwise(splits)]


def _check(name: str, lattice: WordLattice) -> None:
    """Compiled loops would read beyond the arrays of damaged lattices."""
    source, target, scores = lattice.source, lattice.target, (lattice.graph, lattice.acoustic)
    whole = all(len(x) == len(source) for x in (target, lattice.words, *scores))
    if not whole or not all(np.isfinite(x).all() for x in scores):
        raise ValueError(f"{name} lacks words or scores")
    if not (len(source) and in_order(source, target, lattice.num_states)):
        raise ValueError(f"{name} is no lattice")
