"""The passes over a folder of recordings, as worker processes run them; results go over disk."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

import soundfile
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from toolkit.align.ctm import CtmEntry
from toolkit.align.recordings.aligner import Aligner
from toolkit.align.textgrid import write_textgrid
from toolkit.errors import ToolkitError
from toolkit.hmm.fmllr import FmllrStatistics
from toolkit.lang.lexicon import Pronunciation

WORK = ".partial"
"""Folder of intermediate files below the output, removed at the end."""


@dataclass(frozen=True)
class Job:
    """What all passes share."""

    bundle: Path
    """The aligner."""
    pronunciations: tuple[tuple[str, Pronunciation], ...]
    """Of words that it lacks."""
    out: Path
    """The folder of the results."""


@dataclass(frozen=True)
class Task:
    """One recording that can be aligned."""

    number: int
    """Names its intermediate files."""
    utterance: str
    """Its name in the results."""
    audio: Path
    """The file."""
    words: tuple[str, ...]
    """Normalised, one at least."""
    speaker: str
    """Who speaks."""
    left_out: str = ""
    """Characters of the written text that are no letters, such as digits."""

    def file(self, job: Job, suffix: str) -> Path:
        """An intermediate file."""
        return job.out / WORK / f"{self.number:06d}{suffix}"


@dataclass(frozen=True)
class Extracted:
    """The cepstra of one recording, which are on disk."""

    task: Task
    """The recording."""
    frames: int = 0
    """T."""
    seconds: float = 0.0
    """Length of the audio."""
    sum: tuple[float, ...] = ()
    """[F], over all frames."""
    fault: str = ""
    """Why there are none."""


@dataclass(frozen=True)
class Speaker:
    """What the recordings of a speaker say together."""

    mean: tuple[float, ...]
    """[F] cepstra."""
    transform: tuple[tuple[float, ...], ...] | None = None
    """[D, D+1] fMLLR."""


@dataclass(frozen=True)
class Timed:
    """What became of one recording, whose times are on disk."""

    task: Task
    """The recording."""
    seconds: float = 0.0
    """Length of the audio."""
    log_likelihood_per_frame: float = 0.0
    """Unscaled."""
    confidence: float = 0.0
    """Of the frames of speech."""
    retried: bool = False
    """Whether a wider beam was needed."""
    fault: str = ""
    """Why there are none."""


@lru_cache(maxsize=1)
def _aligner(job: Job) -> Aligner:
    return Aligner(job.bundle, pronunciations=job.pronunciations)


def extract(job: Job, task: Task) -> Extracted:
    """Compute the cepstra of a recording."""
    try:
        cepstra = _aligner(job).cepstra(task.audio)
    except ToolkitError as error:
        return Extracted(task, fault=str(error))
    info = soundfile.info(str(task.audio))
    task.file(job, ".safetensors").write_bytes(save({"cepstra": cepstra}))
    total = cepstra.sum(dim=0, dtype=torch.float64)
    return Extracted(task, len(cepstra), info.frames / info.samplerate, tuple(total.tolist()))


def adapt(job: Job, item: tuple[Extracted, Speaker]) -> FmllrStatistics | None:
    """What a recording tells about its speaker's transform; None if it cannot be aligned."""
    extracted, speaker = item
    cepstra = load_file(extracted.task.file(job, ".safetensors"))["cepstra"]
    mean = torch.tensor(speaker.mean)
    try:
        return _aligner(job).adaptation_statistics(cepstra, mean, extracted.task.words)
    except ToolkitError:
        return None


def align(job: Job, item: tuple[Extracted, Speaker]) -> Timed:
    """Align a recording and write its TextGrid."""
    extracted, speaker = item
    task, aligner = extracted.task, _aligner(job)
    cepstra = load_file(task.file(job, ".safetensors"))["cepstra"]
    transform = None if speaker.transform is None else torch.tensor(speaker.transform)
    try:
        found = aligner.align(cepstra, torch.tensor(speaker.mean), task.words, transform)
        words, phones = aligner.entries(task.utterance, task.words, found)
        tiers = {"words": words, "phones": phones}
        path = job.out / "textgrid" / f"{task.utterance}.TextGrid"
        write_textgrid(path, tiers, extracted.seconds)
    except ToolkitError as error:
        return Timed(task, fault=str(error))
    times = {name: [astuple(entry) for entry in entries] for name, entries in tiers.items()}
    task.file(job, ".json").write_text(json.dumps(times), encoding="utf-8")
    return Timed(
        task,
        seconds=extracted.seconds,
        log_likelihood_per_frame=float(found.log_likelihoods.mean(dtype=torch.float64)),
        confidence=aligner.confidence(found),
        retried=found.beam > aligner.config.search.beam,
    )


def stored_times(job: Job, tasks: Sequence[Task], tier: str) -> Iterator[CtmEntry]:
    """The times of a tier that `align` left, one recording at a time."""
    for task in tasks:
        times = json.loads(task.file(job, ".json").read_text(encoding="utf-8"))
        for fields in times[tier]:
            yield CtmEntry(*fields)


def as_tuples(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    """A matrix for `Speaker`."""
    return tuple(tuple(row) for row in matrix.tolist())
