"""The step `extract`: features of a file of records, whole speakers in time order (C17)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from torch import Tensor

from toolkit.features.audio import AudioError, Decoded, decode_audio
from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend, FrontendError
from toolkit.features.shards import SHARDS, cuts_path, features_path, write_shard
from toolkit.pipeline.fetch import Content, FetchError, fetch
from toolkit.pipeline.lake import LakeError, Record
from toolkit.pipeline.objects import ObjectRef, ObjectStore
from toolkit.pipeline.shards import put_shard
from toolkit.pipeline.step import Partition, Resources, StepError, StepResult
from toolkit.processes.devices import torch_threads

DURATION_TOLERANCE = 0.1
"""Largest difference in seconds between audio and record; more means that one is damaged."""


@dataclass(frozen=True)
class ExtractConfig:
    """Settings of `Extract`."""

    lake: str
    """Prefix of the lake: base of the relative paths in records."""
    frontend: FrontendConfig = field(default_factory=FrontendConfig)
    """The front end (C5 by default)."""


@dataclass(frozen=True)
class Extract:
    """Fetch and decode audio, and write raw features and causal mean states, as the recipe does.

    A partition is one file of `Group`; its `about["shard"]` is the number of the shard written.
    Stored are, as by `toolkit.features.extract`, the raw features and the sum over the speaker's
    earlier frames, from which the causal mean is applied at load time. An utterance whose audio is
    missing or broken is listed as a failure and does not enter the mean.
    """

    config: ExtractConfig
    name = "extract"

    def run(
        self, partition: Partition, store: ObjectStore, out: str, resources: Resources
    ) -> StepResult:
        """Extract the features of one file, as described at `Step.run`."""
        index = partition.about["shard"]
        frontend = self.config.frontend
        failures: list[tuple[str, str]] = []
        records = [
            record
            for ref in partition.inputs
            for record in read_records(store.get(ref), ref.path, failures)
        ]
        check_order(records)
        folder = resources.scratch / SHARDS
        seconds: list[float] = []
        with torch_threads(resources.threads):
            fetched = fetch(records, store, self.config.lake, resources.scratch / "audio")
            computed = _features(fetched, frontend, failures, seconds)
            utterances, frames = write_shard(folder, index, computed, frontend)
        files = {"cuts": cuts_path(folder, index), "features": features_path(folder, index)}
        about = {"hours": sum(seconds) / 3600, "utterances": utterances, "frames": frames}
        return StepResult(
            put_shard(files, index, about, store, out), tuple(failures), {**about, "shard": index}
        )


def plan_extract(
    files: Sequence[ObjectRef], numbers: Sequence[int] | None = None
) -> list[Partition]:
    """Make a partition of each file.

    Args:
      files: the files that `select` returned.
      numbers: the shard number of each file, where files are shuffled too (C18); None: in order.
    """
    numbers = range(len(files)) if numbers is None else numbers
    return [
        Partition(f"{number:06d}", (ref,), {**ref.about, "shard": shard, "from": number})
        for number, (ref, shard) in enumerate(zip(files, numbers, strict=True))
    ]


def read_records(content: bytes, name: str, failures: list[tuple[str, str]]) -> Iterator[Record]:
    """Read the records of a file; invalid lines are added to `failures`."""
    for row, line in enumerate(BytesIO(content), start=1):
        try:
            yield Record.from_line(line)
        except LakeError as error:
            failures.append((f"{name.rsplit('/', 1)[-1]}:{row}", str(error)))


def check_order(records: Sequence[Record]) -> None:
    """Check that each speaker's records are contiguous and in time order.

    Raises:
      StepError: they do not, so that the mean would not be causal.
    """
    done, last = set(), None
    for record in records:
        if last is not None and record.speaker == last.speaker:
            if (record.time, record.id) <= (last.time, last.id):
                raise StepError(f"{record.id}: not later than {last.id} of the same speaker")
        elif record.speaker in done:
            raise StepError(f"{record.id}: speaker {record.speaker} comes a second time")
        done.add(record.speaker)
        last = record


def _features(
    fetched: Iterator[tuple[Record, Content | FetchError]],
    config: FrontendConfig,
    failures: list[tuple[str, str]],
    seconds: list[float],
) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    compute = Frontend(config)
    for record, content in fetched:
        try:
            if isinstance(content, FetchError):
                raise content
            audio = decode_audio(content, record.audio, config.sampling_rate, int16=True)
            cut = make_cut(record, audio)
            features = compute(audio.samples)
        except (FetchError, AudioError, FrontendError) as error:
            failures.append((record.id, " ".join(str(error).split())))
        else:
            seconds.append(cut["duration"])
            yield cut, record.speaker, features


def make_cut(record: Record, audio: Decoded) -> dict[str, Any]:
    """Make the cut of a record, in the form of lhotse's `MonoCut.to_dict`.

    Raises:
      AudioError: the audio's length differs from the record's duration.
    """
    seconds = audio.num_samples / audio.sampling_rate
    if abs(seconds - record.duration) > DURATION_TOLERANCE:
        raise AudioError(
            f"{record.audio}: {seconds:.3f} s of audio where the record has {record.duration:.3f} s"
        )
    channels = list(range(audio.channels))
    custom = {"time": record.time, "locale": record.locale}
    if record.offset is not None:
        custom |= {"audio_offset": record.offset, "audio_size": record.size}
    if audio.channels > 1:
        custom["mix_channels"] = True  # as in toolkit.corpus.manifest
    return {
        "id": record.id,
        "start": 0.0,
        "duration": seconds,
        "channel": 0,
        "supervisions": [
            {
                "id": record.id,
                "recording_id": record.id,
                "start": 0.0,
                "duration": seconds,
                "channel": 0,
                "speaker": record.speaker,
            }
        ],
        "recording": {
            "id": record.id,
            "sources": [{"type": "file", "channels": channels, "source": record.audio}],
            "sampling_rate": audio.sampling_rate,
            "num_samples": audio.num_samples,
            "duration": seconds,
            "channel_ids": channels,
        },
        "custom": custom,
        "type": "MonoCut",
    }
