"""Alignment of a folder of recordings with their texts, in several processes."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from toolkit.align.adapt import SpeakerStatistics
from toolkit.align.aligner import (
    INDEPENDENT,
    LANG,
    Aligner,
    G2pPronunciations,
    find_bundle,
    pronounce_missing_words,
)
from toolkit.align.inputs import Recording, read_inputs
from toolkit.align.times import TimedToken, write_ctm, write_textgrid
from toolkit.corpus.audio_file import open_audio
from toolkit.errors import ToolkitError
from toolkit.features.silence import counted_frames
from toolkit.hmm.transforms import FmllrStatistics, estimate_fmllr
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Pronunciation
from toolkit.lang.policy import TextPolicy
from toolkit.processes.bars import Bar
from toolkit.processes.workers import WorkerPool
from toolkit.storage.files import write_atomically
from toolkit.storage.paths import UnsafePathError, path_below, safe_name

COLUMNS = ("utterance", "status", "seconds", "log_likelihood_per_frame", "confidence")


@dataclass(frozen=True)
class FileOutcome:
    """A line of `table.tsv`."""

    utterance: str
    """Its name."""
    status: str
    """`ok`, `retried` (a wider beam was needed) or `failed`."""
    seconds: float
    """Length of the audio; 0 when failed."""
    log_likelihood_per_frame: float
    """Unscaled; NaN when failed."""
    confidence: float
    """Geometric mean over the frames of speech of the aligned phone's posterior; 0 when failed."""
    guessed: str
    """Words whose pronunciation was guessed from their spelling, separated by spaces."""
    reason: str
    """Why it failed, or remarks on the alignment."""

    @classmethod
    def failure(cls, utterance: str, reason: str) -> "FileOutcome":
        """The outcome of a file that could not be aligned."""
        return cls(utterance, "failed", 0.0, math.nan, 0.0, "", reason)

    @property
    def aligned(self) -> bool:
        """Whether the file was aligned."""
        return self.status != "failed"


def textgrid_path(out: Path, utterance: str) -> Path:
    """Return where the TextGrid of a recording belongs.

    Raises:
      UnsafePathError: see `path_below`.
    """
    return path_below(out, f"textgrid/{safe_name(utterance)}.TextGrid")


def write_outcomes(outcomes: Sequence[FileOutcome], out: Path) -> None:
    """Write outcomes to `table.tsv`: tab-separated values under a line of names.

    Of recordings that failed the TextGrids of an earlier alignment into `out` are removed.
    """
    for failed in (o for o in outcomes if not o.aligned):
        with suppress(UnsafePathError):
            textgrid_path(out, failed.utterance).unlink(missing_ok=True)
    lines = ["\t".join((*COLUMNS, "guessed", "reason"))]
    for o in outcomes:
        numbers = f"{o.seconds:.3f}\t{o.log_likelihood_per_frame:.4f}\t{o.confidence:.4f}"
        reason = " ".join(o.reason.split())
        lines.append(f"{o.utterance}\t{o.status}\t{numbers}\t{o.guessed}\t{reason}")
    write_atomically(out / "table.tsv", "\n".join(lines) + "\n")


def summary(outcomes: Sequence[FileOutcome]) -> str:
    """One line that sums up all files."""
    good = [o for o in outcomes if o.aligned]
    retried = sum(o.status == "retried" for o in good)
    guessed = {word for o in good for word in o.guessed.split()}
    seconds = sum(o.seconds for o in good)
    length = f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds:.0f} s"
    mean_confidence = sum(o.confidence for o in good) / len(good) if good else 0.0
    return (
        f"Aligned {len(good)} of {len(outcomes)} ({retried} retried, {len(outcomes) - len(good)}"
        f" failed), {length} of audio; mean confidence {mean_confidence:.3f};"
        f" {len(guessed)} words guessed"
    )


WORK = ".partial"
"""Folder of intermediate files below the output, removed at the end."""


@dataclass(frozen=True)
class AlignJob:
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
class AlignTask:
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

    def file(self, job: AlignJob, suffix: str) -> Path:
        """An intermediate file."""
        return job.out / WORK / f"{self.number:06d}{suffix}"


@dataclass(frozen=True)
class RecordingCepstra:
    """The cepstra of one recording: their sum; the frames are in an intermediate file."""

    task: AlignTask
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

    task: AlignTask
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
def _aligner(job: AlignJob) -> Aligner:
    return Aligner(job.bundle, pronunciations=job.pronunciations)


def extract(job: AlignJob, task: AlignTask) -> RecordingCepstra:
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


def adapt(
    job: AlignJob, item: tuple[RecordingCepstra, SpeakerAdaptation]
) -> FmllrStatistics | None:
    """Accumulate a recording's fMLLR statistics; None if it cannot be aligned."""
    extracted, speaker = item
    cepstra = load_file(extracted.task.file(job, ".safetensors"))["cepstra"]
    mean = torch.tensor(speaker.mean)
    try:
        return _aligner(job).adaptation_statistics(cepstra, mean, extracted.task.words)
    except ToolkitError:
        return None


def align(job: AlignJob, item: tuple[RecordingCepstra, SpeakerAdaptation]) -> AlignedRecording:
    """Align a recording and write its TextGrid."""
    extracted, speaker = item
    task, aligner = extracted.task, _aligner(job)
    cepstra = load_file(task.file(job, ".safetensors"))["cepstra"]
    transform = None if speaker.transform is None else torch.tensor(speaker.transform)
    try:
        alignment = aligner.align(cepstra, torch.tensor(speaker.mean), task.words, transform)
        words, phones = aligner.to_timed_tokens(task.words, alignment)
        tiers = {"words": words, "phones": phones}
        write_textgrid(tiers, extracted.seconds, textgrid_path(job.out, task.utterance))
    except ToolkitError as error:
        return AlignedRecording(task, fault=str(error))
    task.file(job, ".json").write_text(json.dumps(tiers), encoding="utf-8")
    return AlignedRecording(
        task,
        seconds=extracted.seconds,
        log_likelihood_per_frame=float(alignment.log_likelihoods.mean(dtype=torch.float64)),
        confidence=aligner.confidence(alignment),
        retried=alignment.beam > aligner.config.search.beam,
    )


def stored_times(
    job: AlignJob, tasks: Sequence[AlignTask], tier: str
) -> Iterator[tuple[str, str, list[TimedToken]]]:
    """Read the times of a tier that `align` stored, as rows for `write_ctm`, one at a time."""
    channel = str((job.channel or 0) + 1)
    for task in tasks:
        times = json.loads(task.file(job, ".json").read_text(encoding="utf-8"))
        yield task.utterance, channel, [TimedToken(*fields) for fields in times[tier]]


def as_tuples(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    """A matrix for `SpeakerAdaptation`."""
    return tuple(tuple(row) for row in matrix.tolist())


Item = TypeVar("Item")
Result = TypeVar("Result")


def align_folder(
    model: Path,
    audio: Path,
    text: Path,
    out: Path,
    speakers: Path | None = None,
    jobs: int = 1,
    channel: int | None = None,
) -> list[FileOutcome]:
    """Align every recording of a folder with its text; one that fails does not stop the others.

    Args:
      model: an aligner bundle, or the `final` folder that has one.
      audio: a folder of audio, see `read_inputs` for this and the next.
      text: a Kaldi text file or a folder of .txt and .lab files. Tags, such as
        [laughter] and <unk>, are left out unless the bundle keeps them (`lang.tags`).
      out: gets `words.ctm`, `phones.ctm`, `textgrid/<utterance>.TextGrid` and `table.tsv`.
      speakers: a file of `utterance speaker`; a speaker's recordings are normalised, and with an
        adapting system adapted, together.
      jobs: worker processes; the results do not depend on them.
      channel: the channel of the files, from 0; None: the mean of all.

    Returns:
      An outcome for every text and every audio file, sorted by utterance.

    Raises:
      AlignerError: `model` holds no aligner.
      InputError: audio or text that cannot be read at all.
    """
    bundle = find_bundle(model)
    policy = Lang.load(bundle / LANG).policy
    tasks, outcomes = _tasks(read_inputs(audio, text, speakers), policy)
    guesses = pronounce_missing_words(bundle, {word for task in tasks for word in task.words})
    job = AlignJob(bundle, guesses.pronunciations, out, channel)
    work = out / WORK
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        timed = _run(job, tasks, jobs)
        good = [t.task for t in timed if not t.fault]
        for tier in ("words", "phones"):
            write_ctm(stored_times(job, good, tier), out / f"{tier}.ctm")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    outcomes += [_outcome(t, guesses) for t in timed]
    outcomes.sort(key=lambda outcome: outcome.utterance)
    write_outcomes(outcomes, out)
    return outcomes


def _tasks(
    recordings: Sequence[Recording], policy: TextPolicy
) -> tuple[list[AlignTask], list[FileOutcome]]:
    """The recordings to align, with their words by a policy, and the outcomes of the others."""
    tasks: list[AlignTask] = []
    outcomes = []
    for recording in recordings:
        words, left_out = recording.spoken(policy)
        fault = recording.fault or ("" if words else "no word in its text")
        if fault or recording.audio is None:
            outcomes.append(FileOutcome.failure(recording.utterance, fault))
            continue
        name, speaker = recording.utterance, recording.speaker
        tasks.append(AlignTask(len(tasks), name, recording.audio, tuple(words), speaker, left_out))
    return tasks, outcomes


def _run(job: AlignJob, tasks: Sequence[AlignTask], jobs: int) -> list[AlignedRecording]:
    """All passes; their results in the tasks' order."""
    with WorkerPool(max(1, min(jobs, len(tasks)))) as pool:

        def run(
            name: str, work: Callable[[AlignJob, Item], Result], items: list[Item]
        ) -> Iterable[Result]:
            return Bar(pool.map(partial(work, job), items), name, len(items))

        extracted = list(run("features", extract, list(tasks)))
        usable = [recording for recording in extracted if not recording.fault]
        speakers = {name: SpeakerAdaptation(mean) for name, mean in _means(usable).items()}
        if (job.bundle / INDEPENDENT).is_dir():
            statistics = run("adapt", adapt, [(e, speakers[e.task.speaker]) for e in usable])
            for name, matrix in estimate_speaker_transforms(usable, statistics).items():
                speakers[name] = SpeakerAdaptation(speakers[name].mean, as_tuples(matrix))
        aligned = iter(list(run("align", align, [(e, speakers[e.task.speaker]) for e in usable])))
    return [
        AlignedRecording(e.task, fault=e.fault) if e.fault else next(aligned) for e in extracted
    ]


def _means(extracted: Iterable[RecordingCepstra]) -> dict[str, tuple[float, ...]]:
    """The mean cepstra of each speaker, without digital silence."""
    sums: dict[str, tuple[Tensor, int]] = {}
    for recording in extracted:
        total, frames = sums.get(recording.task.speaker, (0, 0))
        recording_sum = torch.tensor(recording.sum, dtype=torch.float64)
        sums[recording.task.speaker] = (total + recording_sum, frames + recording.frames)
    return {n: tuple((total / max(1, frames)).tolist()) for n, (total, frames) in sums.items()}


def estimate_speaker_transforms(
    extracted: Sequence[RecordingCepstra], statistics: Iterable[FmllrStatistics | None]
) -> dict[str, Tensor]:
    """Estimate the fMLLR transform of each speaker with a recording that could be aligned.

    A speaker's statistics take half a megabyte and are released after the last recording.

    Args:
      extracted: the recordings, each with its speaker.
      statistics: of each recording; None: it could not be aligned.

    Returns:
      [D, D+1] by speaker.
    """
    recordings_left = Counter(recording.task.speaker for recording in extracted)
    sums, transforms = SpeakerStatistics({}), {}
    for recording, of_recording in zip(extracted, statistics, strict=True):
        speaker = recording.task.speaker
        if of_recording is not None:
            sums.add(SpeakerStatistics({speaker: of_recording}))
        recordings_left[speaker] -= 1
        if not recordings_left[speaker] and speaker in sums.by_speaker:
            transforms[speaker] = estimate_fmllr(sums.by_speaker.pop(speaker))[0]
    return transforms


def _outcome(timed: AlignedRecording, guesses: G2pPronunciations) -> FileOutcome:
    task, words = timed.task, set(timed.task.words)
    if timed.fault:
        return FileOutcome.failure(task.utterance, timed.fault)
    notes = [f"left out of the text: {task.left_out}"] if task.left_out else []
    if unknown := sorted(words & guesses.unknown):
        notes.append(f"aligned as noise, no pronunciation known: {' '.join(unknown)}")
    return FileOutcome(
        utterance=task.utterance,
        status="retried" if timed.retried else "ok",
        seconds=timed.seconds,
        log_likelihood_per_frame=timed.log_likelihood_per_frame,
        confidence=timed.confidence,
        guessed=" ".join(word for word, _ in guesses.pronunciations if word in words),
        reason="; ".join(notes),
    )
