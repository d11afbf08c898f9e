"""The passes over a folder of recordings that workers run; they exchange results by files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from toolkit.align.ctm import CtmEntry
from toolkit.align.recordings.aligner import Aligner
from toolkit.align.recordings.outcomes import textgrid_path
from toolkit.align.textgrid import write_textgrid
from toolkit.corpus.audio_file import open_audio
from toolkit.errors import ToolkitError
from toolkit.features.silence import counted_frames
from toolkit.hmm.fmllr import FmllrStatistics
from toolkit.lang.lexicon import Pronunciation

WORK = ".partial"
"""Folder of intermediate files below the output, removed at the end."""


@dataclass(frozen=True)
class Job:
    """The settings that all passes share."""

    bundle: Path
    """The aligner."""
    pronunciations: tuple[tuple[str, Pronunciation], ...]
    """Pronunciations of words that its lexicon lacks."""
    out: Path
    """The folder of the results."""
    channel: int | None = None
    """The channel of the files, from 0; None: the mean of all."""


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
    """The normalised words; at least one."""
    speaker: str
    """The speaker's name."""
    left_out: str = ""
    """Characters of the written text that are no letters, such as digits."""

    def file(self, job: Job, suffix: str) -> Path:
        """An intermediate file."""
        return job.out / WORK / f"{self.number:06d}{suffix}"


@dataclass(frozen=True)
class RecordingCepstra:
    """The cepstra of one recording: their sum; the frames are in an intermediate file."""

    task: Task
    """The recording."""
    frames: int = 0
    """Number of frames without digital silence."""
    seconds: float = 0.0
    """Length of the audio."""
    sum: tuple[float, ...] = ()
    """[F] sum over these frames."""
    fault: str = ""
    """Why there are none."""


@dataclass(frozen=True)
class SpeakerAdaptation:
    """Normalisation and adaptation of a speaker, estimated on all recordings of the speaker."""

    mean: tuple[float, ...]
    """[F] mean of the cepstra."""
    transform: tuple[tuple[float, ...], ...] | None = None
    """[D, D+1] fMLLR transform."""


@dataclass(frozen=True)
class AlignedRecording:
    """The outcome of one recording; its times are in an intermediate file."""

    task: Task
    """The recording."""
    seconds: float = 0.0
    """Length of the audio."""
    log_likelihood_per_frame: float = 0.0
    """Unscaled."""
    confidence: float = 0.0
    """Geometric mean posterior over the frames of speech."""
    retried: bool = False
    """Whether a wider beam was needed."""
    fault: str = ""
    """Why there are none."""


@lru_cache(maxsize=1)
def _aligner(job: Job) -> Aligner:
    return Aligner(job.bundle, pronunciations=job.pronunciations)


def extract(job: Job, task: Task) -> RecordingCepstra:
    """Compute the cepstra of a recording."""
    try:
        cepstra = _aligner(job).cepstra(task.audio, job.channel)
    except ToolkitError as error:
        return RecordingCepstra(task, fault=str(error))
    with open_audio(task.audio) as file:
        seconds = file.frames / file.samplerate
    task.file(job, ".safetensors").write_bytes(save({"cepstra": cepstra}))
    counted = cepstra[counted_frames(cepstra, _aligner(job).frontend.config.kind)]
    total = counted.sum(dim=0, dtype=torch.float64)
    return RecordingCepstra(task, len(counted), seconds, tuple(total.tolist()))


def adapt(job: Job, item: tuple[RecordingCepstra, SpeakerAdaptation]) -> FmllrStatistics | None:
    """Accumulate a recording's fMLLR statistics; None if it cannot be aligned."""
    extracted, speaker = item
    cepstra = load_file(extracted.task.file(job, ".safetensors"))["cepstra"]
    mean = torch.tensor(speaker.mean)
    try:
        return _aligner(job).adaptation_statistics(cepstra, mean, extracted.task.words)
    except ToolkitError:
        return None


def align(job: Job, item: tuple[RecordingCepstra, SpeakerAdaptation]) -> AlignedRecording:
    """Align a recording and write its TextGrid."""
    extracted, speaker = item
    task, aligner = extracted.task, _aligner(job)
    cepstra = load_file(task.file(job, ".safetensors"))["cepstra"]
    transform = None if speaker.transform is None else torch.tensor(speaker.transform)
    try:
        found = aligner.align(cepstra, torch.tensor(speaker.mean), task.words, transform)
        channel = str((job.channel or 0) + 1)
        words, phones = aligner.entries(task.utterance, task.words, found, channel)
        tiers = {"words": words, "phones": phones}
        write_textgrid(textgrid_path(job.out, task.utterance), tiers, extracted.seconds)
    except ToolkitError as error:
        return AlignedRecording(task, fault=str(error))
    times = {name: [astuple(entry) for entry in entries] for name, entries in tiers.items()}
    task.file(job, ".json").write_text(json.dumps(times), encoding="utf-8")
    return AlignedRecording(
        task,
        seconds=extracted.seconds,
        log_likelihood_per_frame=float(found.log_likelihoods.mean(dtype=torch.float64)),
        confidence=aligner.confidence(found),
        retried=found.beam > aligner.config.search.beam,
    )


def stored_times(job: Job, tasks: Sequence[Task], tier: str) -> Iterator[CtmEntry]:
    """Read the times of a tier that `align` stored, one recording at a time."""
    for task in tasks:
        times = json.loads(task.file(job, ".json").read_text(encoding="utf-8"))
        for fields in times[tier]:
            yield CtmEntry(*fields)


def as_tuples(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    """A matrix for `SpeakerAdaptation`."""
    return tuple(tuple(row) for row in matrix.tolist())
