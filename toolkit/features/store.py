"""Random and sequential access to extracted features, by utterance."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.features.cmn_state import CmnState
from toolkit.features.shards import (
    DIGITAL_SILENCE,
    FAILED_CUTS,
    MANIFEST,
    SHARDS,
    cuts_path,
    features_path,
    index_features,
    read_array,
)
from toolkit.features.silence import outside
from toolkit.processes.bars import Bar
from toolkit.processes.workers import map_in_processes
from toolkit.storage.paths import PathAliases, places_of
from toolkit.storage.reading import NATURAL, quoted, read_json, reading, validated

if TYPE_CHECKING:
    from lhotse.cut import MonoCut

Result = TypeVar("Result")
ADVICE = "extract the features again"
_MANIFEST = {
    "frontend": {"kind": str},
    "dimension": NATURAL,
    "utterances": NATURAL,
    "shards": [{str: Any}],
}
_SILENCE = {DIGITAL_SILENCE: [[NATURAL]]}
_CUT = {
    "id": str,
    "supervisions": [{"speaker": str}],
    "features": {"num_frames": NATURAL},
    "custom": {"cmn_sum": list, "cmn_frames": NATURAL},
}


class StoreError(ToolkitError):
    """A feature folder that is incomplete, damaged or lacks an utterance."""


@dataclass(frozen=True)
class _Entry:
    shard: int
    row: int
    num_frames: int
    speaker: str
    line: int  # byte offset of the cut in the shard's file of cuts
    digital_silence: list[list[int]]  # first frame and end of each span


class FeatureStore:
    """The features of one split as `extract` wrote them.

    Opening reads the shards' cuts; a shard's tar is scanned at the first `load` from it. Files
    are opened for each read, so that a store may be used from many processes and pickled.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        with reading(self.path, StoreError, ADVICE, "not a folder of finished features"):
            self.manifest = read_json(self.path / MANIFEST, _MANIFEST)
        self.dimension: int = self.manifest["dimension"]
        """F, the number of values per frame."""
        self.kind: str = self.manifest["frontend"]["kind"]
        """Of the features: that of the front end, or of the GMM system that made them."""
        self._entries: dict[str, _Entry] = {}
        self._sums: list[Tensor] = []  # per shard [N, F] float64
        self._frames: list[list[int]] = []
        self._offsets: dict[int, list[tuple[str, int, int]]] = {}
        self.shards: list[list[str]] = [
            self._read_cuts(i) for i in range(len(self.manifest["shards"]))
        ]
        """Utterance ids by shard, in stored order."""
        if len(self._entries) != self.manifest["utterances"]:
            counts = Counter(chain.from_iterable(self.shards))
            repeated = next((name for name, count in counts.items() if count > 1), None)
            if repeated is not None:
                raise StoreError(
                    f"{self.path}: {repeated!r} is the id of several utterances: ids must be unique"
                    " in the whole corpus or data lake; change them there and extract again"
                )
            raise StoreError(
                f"{self.path}: holds {len(self._entries)} utterances where {MANIFEST} has "
                f"{self.manifest['utterances']}; extract them again"
            )

    def _read_cuts(self, shard: int) -> list[str]:
        names, sums, frames, line_start = [], [], [], 0
        path = cuts_path(self.path / SHARDS, shard)
        with reading(path, StoreError, ADVICE, "damaged"), open(path, "rb") as file:
            for line in file:
                cut = validated(json.loads(line), _CUT, f"line {len(names) + 1}")
                custom = cut["custom"]
                if DIGITAL_SILENCE in custom:
                    validated(custom, _SILENCE, f"line {len(names) + 1}")
                    if any(len(span) != 2 for span in custom[DIGITAL_SILENCE]):
                        raise ValueError(f"`{DIGITAL_SILENCE}` is not pairs of frames")
                self._entries[cut["id"]] = _Entry(
                    shard=shard,
                    row=len(names),
                    num_frames=cut["features"]["num_frames"],
                    speaker=cut["supervisions"][0]["speaker"],
                    line=line_start,
                    digital_silence=custom.get(DIGITAL_SILENCE, []),
                )
                names.append(cut["id"])
                sums.append(custom["cmn_sum"])
                frames.append(custom["cmn_frames"])
                line_start += len(line)
            table = torch.tensor(sums, dtype=torch.float64)
            if names and (
                table.shape != (len(names), self.dimension) or not table.isfinite().all()
            ):
                raise ValueError(f"`cmn_sum` is not {self.dimension} numbers everywhere")
        self._sums.append(table)
        self._frames.append(frames)
        return names

    @cached_property
    def _places(self) -> PathAliases | None:
        return places_of(self.path / MANIFEST)

    @cached_property
    def failed_cuts(self) -> "list[MonoCut]":
        """Cuts without features, since their extraction failed; none in stores that do not tell."""
        from toolkit.corpus.manifest import read_cuts

        path = self.path / FAILED_CUTS
        return read_cuts(path) if path.exists() else []

    @cached_property
    def ids(self) -> list[str]:
        """All utterance ids, in shard order."""
        return [name for shard in self.shards for name in shard]

    @cached_property
    def speakers(self) -> list[str]:
        """All speakers, in shard order."""
        return list(self._last_of_speaker)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def num_frames(self, name: str) -> int:
        """Return T, the number of raw frames of an utterance."""
        return self._entry(name).num_frames

    def speaker(self, name: str) -> str:
        """Return the speaker of an utterance."""
        return self._entry(name).speaker

    def cut(self, name: str) -> "MonoCut":
        """Read the cut of an utterance, as it was stored.

        Raises:
          StoreError: it is damaged.
          UnsafeCutError: it names more than local files, see `toolkit.corpus.cuts`.
        """
        from toolkit.corpus.cuts import parse_cut

        entry = self._entry(name)
        path = cuts_path(self.path / SHARDS, entry.shard)
        with reading(path, StoreError, ADVICE, f"{name} is damaged"), open(path, "rb") as file:
            file.seek(entry.line)
            return parse_cut(json.loads(file.readline()), str(path), self._places)

    def load(self, name: str) -> Tensor:
        """Read the raw features of an utterance: [T, F] float32."""
        entry = self._entry(name)
        path = features_path(self.path / SHARDS, entry.shard)
        with reading(path, StoreError, ADVICE, f"{name} cannot be read"):
            found, offset, size = self._index(entry.shard)[entry.row]
            if found != name:
                raise ValueError(f"{quoted(found)} is in its place")
            features = read_array(path, offset, size)
            if features.shape != (entry.num_frames, self.dimension):
                raise ValueError(
                    f"{list(features.shape)} values, not {[entry.num_frames, self.dimension]}"
                )
        return features

    def iter(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (id, raw features [T, F] float32) of every utterance in shard order."""
        for name in self.ids:
            yield name, self.load(name)

    def state(self, name: str) -> CmnState:
        """Return the state of mean normalisation before an utterance."""
        entry = self._entry(name)
        return CmnState(self._frames[entry.shard][entry.row], self._sums[entry.shard][entry.row])

    def counted(self, name: str) -> Tensor:
        """Return which frames of an utterance are no digital silence: [T] bool."""
        entry = self._entry(name)
        return outside(entry.digital_silence, entry.num_frames)

    def speaker_total(self, speaker: str) -> CmnState:
        """Return the number and sum of the raw frames of a speaker, without digital silence."""
        if speaker not in self._last_of_speaker:
            raise StoreError(f"{speaker}: no such speaker in {self.path}")
        last = self._last_of_speaker[speaker]
        return self.state(last).after(self.load(last), self.counted(last))

    def speaker_mean(self, speaker: str) -> Tensor:
        """Return the mean of the raw frames of a speaker, as in Kaldi's apply-cmvn: [F] float64.

        Without digital silence; it is zero if there is nothing else.
        """
        total = self.speaker_total(speaker)
        return total.sum / max(1, total.frames)

    @cached_property
    def _last_of_speaker(self) -> dict[str, str]:
        last: dict[str, tuple[int, str]] = {}
        for name, entry in self._entries.items():  # in any order: a store may be shuffled
            silent = sum(end - begin for begin, end in entry.digital_silence)
            end = self._frames[entry.shard][entry.row] + entry.num_frames - silent
            if end >= last.get(entry.speaker, (0, ""))[0]:
                last[entry.speaker] = (end, name)
        return {speaker: name for speaker, (_, name) in last.items()}

    def _index(self, shard: int) -> list[tuple[str, int, int]]:
        if shard not in self._offsets:
            path = features_path(self.path / SHARDS, shard)
            self._offsets[shard] = list(index_features(path))
        return self._offsets[shard]

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise StoreError(
                f"{name}: no such utterance in {self.path} (failed.tsv there lists those "
                "that could not be extracted)"
            ) from None


def map_shards(
    function: Callable[[tuple[int, Sequence[str]]], Result],
    store: FeatureStore,
    jobs: int,
    title: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Result]:
    """Apply a function to every shard of a store and yield results in order, with a progress bar.

    Args:
      function: picklable; takes a shard's number and its utterance ids.
      store: the store of the shards.
      jobs: worker processes.
      title: title of the progress bar, which counts utterances and names the split.
      progress: called with (shards done, shards).
    """
    shards = list(enumerate(store.shards))
    results = map_in_processes(function, shards, jobs)
    total = sum(len(ids) for _, ids in shards)
    name = f"{title} {store.path.name}"
    with Bar(total=total, desc=name, unit="utt") as bar:
        for done, (result, (_, ids)) in enumerate(zip(results, shards, strict=True), 1):
            bar.update(len(ids))
            yield result
            progress(done, len(shards))
