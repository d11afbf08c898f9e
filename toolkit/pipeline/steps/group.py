"""The step `group`: sampled records by speaker, in files of nearly equal length (C16, C22)."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO

from toolkit.features.shards import partition_by_size
from toolkit.pipeline import sampling
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.step import Partition, Resources, StepResult

FILES_PER_BUCKET = 50
"""Files per bucket, which is held in memory: the records of 250 h at 5 h per file."""


@dataclass(frozen=True)
class GroupConfig:
    """Settings of `Group`."""

    hours_per_file: float
    """Audio per file in hours."""
    seed: int
    """The seed of the sample."""
    threshold: int
    """Records whose random number is below this are kept; at most the sample's threshold."""


@dataclass(frozen=True)
class Group:
    """Group one bucket's records by speaker into files of nearly equal length.

    Each output's `about` has `hours`, `utterances` and `speakers`.
    """

    config: GroupConfig
    name = "group"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Group the records of one bucket, as described at `Step.run`."""
        number_of = sampling.random_numbers(self.config.seed)
        speakers: dict[str, list[tuple[float, str, float, bytes]]] = defaultdict(list)
        seen, failures = set(), []
        for ref in partition.inputs:
            for line in BytesIO(store.get(ref)):  # not by `splitlines`, which ends them at \r too
                plain = json.loads(line)
                id = plain["id"]
                if number_of(id) >= self.config.threshold:
                    continue
                if id in seen:
                    failures.append((id, "another record has this id"))
                    continue
                seen.add(id)
                entry = (float(plain["time"]), id, float(plain["duration"]), line)
                speakers[plain["speaker"]].append(entry)
        outputs = []
        for number, names in enumerate(pack(speakers, self.config.hours_per_file)):
            entries = [entry for name in names for entry in sorted(speakers[name])]
            about = {
                "hours": math.fsum(entry[2] for entry in entries) / 3600,
                "utterances": len(entries),
                "speakers": len(names),
            }
            path = f"{out}/files/{partition.id}-{number:04d}.jsonl"
            outputs.append(store.put(path, b"".join(entry[3] for entry in entries), about))
        about = {
            "hours": math.fsum(ref.about["hours"] for ref in outputs),
            "utterances": sum(ref.about["utterances"] for ref in outputs),
        }
        return StepResult(tuple(outputs), tuple(failures), about)


def pack(speakers: dict[str, list[tuple]], hours_per_file: float) -> list[list[str]]:
    """Distribute speakers over files; an entry's third field is its duration in seconds."""
    seconds = {s: math.fsum(entry[2] for entry in own) for s, own in speakers.items()}
    return partition_by_size(seconds, round(math.fsum(seconds.values()) / (3600 * hours_per_file)))


def plan_group(sampled: Iterable[StepResult]) -> list[Partition]:
    """Make a partition of each bucket's parts, which `Sample` has written."""
    parts: dict[int, list[ObjectRef]] = defaultdict(list)
    for result in sampled:
        for ref in result.outputs:
            parts[ref.about["bucket"]].append(ref)
    return [
        Partition(f"{bucket:05d}", tuple(sorted(refs, key=lambda ref: ref.path.rsplit("/", 1)[-1])))
        for bucket, refs in sorted(parts.items())
    ]
