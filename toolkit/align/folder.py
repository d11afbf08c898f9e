"""Aligns a folder of recordings with their texts, in several processes.

Acoustic models implement `Aligner`: GMMs in `toolkit.align.aligner`, CTC networks in
`toolkit.decode.ctc.recogniser`.
"""

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from toolkit.align.adapt import SpeakerStatistics
from toolkit.align.ctm_textgrid import TimedToken, write_ctm, write_textgrid
from toolkit.align.inputs import Recording, read_inputs
from toolkit.align.recording import MIN_SPOKEN
from toolkit.corpus.audio import open_audio
from toolkit.errors import ToolkitError
from toolkit.hmm.transforms import FmllrStatistics, estimate_fmllr
from toolkit.processes.bars import Bar
from toolkit.processes.workers import WorkerPool
from toolkit.storage.files import write_atomically
from toolkit.storage.paths import UnsafePathError, path_below, safe_name

UNALIGNED = "<unaligned>"
"""The token of audio whose words the text lacks."""
UNFIT = "If they do, the model does not fit this speech: --complete aligns all words"
"""What can be wrong, and done, if text and audio do not seem to belong together."""
MAX_PAUSE = 2.0
"""Longest pause, in seconds, within a span of audio that the text lacks."""
QUOTED_WORDS = 6
"""Longest run of words that is quoted in full."""
COLUMNS = ("utterance", "status", "seconds", "log_likelihood_per_frame", "confidence")


@dataclass(frozen=True)
class FileOutcome:
    """The result for one recording: a line of `table.tsv`."""

    utterance: str
    """The recording's name."""
    status: str
    """`ok`, `retried` (a wider beam was needed), `partly` (the audio has speech that the text
    lacks, or the text has words that nobody spoke) or `failed`."""
    seconds: float
    """Length of the audio; 0 when failed."""
    log_likelihood_per_frame: float
    """Unscaled; NaN when failed."""
    confidence: float
    """Geometric mean of the aligned phones' posteriors over the speech frames; 0 when failed."""
    guessed: str
    """Words whose pronunciation was guessed from their spelling, separated by spaces."""
    reason: str
    """Why it failed, or remarks on the alignment."""

    @classmethod
    def failure(cls, utterance: str, reason: str) -> "FileOutcome":
        """Return the outcome of a recording that could not be aligned."""
        return cls(utterance, "failed", 0.0, math.nan, 0.0, "", reason)

    @property
    def aligned(self) -> bool:
        """Whether the recording was aligned."""
        return self.status != "failed"


def textgrid_path(out: Path, utterance: str) -> Path:
    """Return the path of a recording's TextGrid.

    Raises:
      UnsafePathError: see `path_below`.
    """
    return path_below(out, f"textgrid/{safe_name(utterance)}.TextGrid")


def write_outcomes(outcomes: Sequence[FileOutcome], out: Path) -> None:
    """Write outcomes to `table.tsv`: a header and one line of tab-separated values per recording.

    If a recording failed, the TextGrid of its earlier alignment is removed from `out`.
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
    """Summarise the outcomes of all recordings in one line."""
    good = [o for o in outcomes if o.aligned]
    retried, partly = (sum(o.status == status for o in good) for status in ("retried", "partly"))
    guessed = {word for o in good for word in o.guessed.split()}
    seconds = sum(o.seconds for o in good)
    length = f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds:.0f} s"
    mean_confidence = sum(o.confidence for o in good) / len(good) if good else 0.0
    return (
        f"Aligned {len(good)} of {len(outcomes)} ({retried} retried, {partly} partly,"
        f" {len(outcomes) - len(good)} failed), {length} of audio; mean confidence"
        f" {mean_confidence:.3f}; {len(guessed)} words with guessed pronunciations"
    )


@dataclass(frozen=True)
class SpeakerAdaptation:
    """Mean and fMLLR transform of a speaker, estimated from all recordings of the speaker."""

    mean: tuple[float, ...]
    """[F] mean of the features."""
    transform: tuple[tuple[float, ...], ...] | None = None
    """[D, D+1] fMLLR transform."""


@dataclass(frozen=True)
class RecordingTimes:
    """The times of a recording's words and units."""

    words: Sequence[TimedToken]
    """The words."""
    units: Sequence[TimedToken]
    """The phones, including silences, or the output units."""
    log_likelihood_per_frame: float
    """Unscaled."""
    confidence: float
    """Geometric mean of the aligned units' posteriors over the speech frames."""
    retried: bool = False
    """Whether a wider beam was needed."""
    unspoken: Sequence[int] = ()
    """Positions in the transcript of the words that the audio lacks."""


class UnrelatedTextError(ToolkitError):
    """Raised when audio and text do not seem to belong together."""


class Aligner(Protocol):
    """An acoustic model that aligns recordings with their words."""

    def features(self, audio: Path, channel: int | None = None) -> Tensor:
        """Compute the features [T, F] of an audio file of any format; they are not normalised.

        Args:
          audio: the audio file.
          channel: its channel, from 0; None for the mean of all channels.

        Raises:
          ToolkitError: the file cannot be read, or is too short.
        """

    def feature_sum(self, features: Tensor) -> tuple[Tensor, int]:
        """Return the float64 sum [F] and the number of frames that are not digital silence."""

    def speaker_statistics(
        self, features: Tensor, mean: Tensor, words: Sequence[str]
    ) -> FmllrStatistics:
        """Return a recording's part of the statistics for the speaker's fMLLR transform.

        For arguments and errors see `align`.
        """

    def align(
        self, features: Tensor, words: Sequence[str], speaker: SpeakerAdaptation | None
    ) -> RecordingTimes:
        """Align one recording with its words.

        Args:
          features: [T, F] from `features`.
          words: the normalised transcript, at least one word.
          speaker: mean and transform of its speaker; None unless `AlignerFiles.by_speaker`.

        Raises:
          ToolkitError: the words cannot be aligned with the audio.
        """


class AlignerFiles(Protocol):
    """The files of an aligner, which each worker process opens once; frozen and hashable."""

    @property
    def unit_tier(self) -> str:
        """Name of the TextGrid tier and CTM file beside `words`: `phones` or `units`."""

    @property
    def by_speaker(self) -> bool:
        """Whether `align` needs the mean of all recordings of the speaker."""

    @property
    def needs_speakers(self) -> bool:
        """Whether `align` also needs the speaker's fMLLR transform."""

    def spoken(self, recording: Recording) -> tuple[list[str], str]:
        """Normalise a recording's text; return its words and tags, and the removed text."""

    def tags(self, words: Collection[str]) -> frozenset[str]:
        """Return those of a text's words that are tags, which are aligned as noise."""

    def with_pronunciations(self, words: Collection[str]) -> "AlignerFiles":
        """Return these files with guessed pronunciations of the words outside the lexicon."""

    def guessed(self, words: Collection[str]) -> tuple[list[str], list[str]]:
        """Return the words whose pronunciation was guessed, and those aligned as noise."""

    def open(self) -> Aligner:
        """Load the models and return the aligner."""


WORK = ".partial"
"""Folder of intermediate files below the output, removed at the end."""


@dataclass(frozen=True)
class AlignJob:
    """Settings that all passes of an alignment share."""

    aligner: AlignerFiles
    """The aligner."""
    out: Path
    """The folder of the results."""
    channel: int | None = None
    """The channel of the files, from 0; None for the mean of all channels."""


@dataclass(frozen=True)
class AlignTask:
    """A recording to align."""

    number: int
    """Number that names the recording's intermediate files."""
    utterance: str
    """Its name in the results."""
    audio: Path
    """The file."""
    words: tuple[str, ...]
    """The normalised words and tags; at least one word."""
    tags: frozenset[str]
    """The tags among them."""
    speaker: str
    """The speaker's name."""
    left_out: str = ""
    """Characters of the written text that are not letters, such as digits."""

    def file(self, job: AlignJob, suffix: str) -> Path:
        """Return the path of an intermediate file of this recording."""
        return job.out / WORK / f"{self.number:06d}{suffix}"


@dataclass(frozen=True)
class RecordingFeatures:
    """The sum of a recording's features; the frames are in an intermediate file."""

    task: AlignTask
    """The recording."""
    frames: int = 0
    """Number of frames without digital silence."""
    sum: tuple[float, ...] = ()
    """[F] sum over these frames."""
    fault: str = ""
    """Why there are no features."""


@dataclass(frozen=True)
class AlignedRecording:
    """The outcome of one recording; its word times are in an intermediate file."""

    task: AlignTask
    """The recording."""
    seconds: float = 0.0
    """Length of the audio."""
    log_likelihood_per_frame: float = 0.0
    """Unscaled."""
    confidence: float = 0.0
    """See `RecordingTimes`."""
    retried: bool = False
    """Whether a wider beam was needed."""
    differences: tuple[str, ...] = ()
    """Spans of audio that the text lacks, and words that the audio lacks."""
    fault: str = ""
    """Why there are no times."""


@lru_cache(maxsize=1)
def _open(aligner: AlignerFiles) -> Aligner:
    """Open an aligner, once per process."""
    return aligner.open()


def extract(job: AlignJob, task: AlignTask) -> RecordingFeatures:
    """Compute the features of a recording and store them."""
    aligner = _open(job.aligner)
    try:
        features = aligner.features(task.audio, job.channel)
    except ToolkitError as error:
        return RecordingFeatures(task, fault=str(error))
    task.file(job, ".safetensors").write_bytes(save({"features": features}))
    # Sums leave out digital silence; a speaker's mean is computed from the sums of all recordings.
    total, frames = aligner.feature_sum(features)
    return RecordingFeatures(task, frames, tuple(total.tolist()))


def _stored_features(job: AlignJob, task: AlignTask) -> Tensor:
    """Read the features that `extract` stored for a recording."""
    return load_file(task.file(job, ".safetensors"))["features"]


def accumulate(job: AlignJob, item: tuple[AlignTask, SpeakerAdaptation]) -> FmllrStatistics | None:
    """Accumulate a recording's fMLLR statistics; return None if it cannot be aligned."""
    task, speaker = item
    mean = torch.tensor(speaker.mean)
    try:
        return _open(job.aligner).speaker_statistics(_stored_features(job, task), mean, task.words)
    except ToolkitError:
        return None


def align(job: AlignJob, item: tuple[AlignTask, SpeakerAdaptation | None]) -> AlignedRecording:
    """Align a recording and write its TextGrid; compute its features if none are stored.

    Args:
      job: the aligner's files and the settings of all recordings.
      item: the recording, and the adaptation to its speaker; None if the aligner does not adapt.
    """
    task, speaker = item
    aligner = _open(job.aligner)
    try:
        # Features are stored only where an earlier pass has computed them.
        if speaker is None:
            features = aligner.features(task.audio, job.channel)
        else:
            features = _stored_features(job, task)
        times = aligner.align(features, task.words, speaker)
        times = replace(
            times, unspoken=[i for i in times.unspoken if task.words[i] not in task.tags]
        )
        check_share(len(times.unspoken), sum(word not in task.tags for word in task.words))
        tiers = {"words": times.words, job.aligner.unit_tier: times.units}
        with open_audio(task.audio) as file:
            seconds = file.frames / file.samplerate
        write_textgrid(tiers, seconds, textgrid_path(job.out, task.utterance))
    except ToolkitError as error:
        return AlignedRecording(task, fault=str(error))
    task.file(job, ".json").write_text(json.dumps(tiers), encoding="utf-8")
    return AlignedRecording(
        task,
        seconds,
        times.log_likelihood_per_frame,
        times.confidence,
        times.retried,
        differences(times, task.words),
    )


def check_share(num_unspoken: int, num_words: int) -> None:
    """Check that most words of a text were found in the audio.

    Raises:
      UnrelatedTextError: fewer than half of them were.
    """
    num_found = num_words - num_unspoken
    if num_found < MIN_SPOKEN * num_words:
        raise UnrelatedTextError(
            f"text and audio do not seem to belong together: only {num_found} of {num_words} words "
            f"were found in the audio. {UNFIT}"
        )


def differences(times: RecordingTimes, words: Sequence[str]) -> tuple[str, ...]:
    """Describe the spans of audio that a text lacks, and the words that the audio lacks."""
    described = []
    # Gaps with only a pause between them are one span.
    spans: list[list[float]] = []
    previous = ""
    for token in times.words:
        if token.token == UNALIGNED == previous and token.start_s - spans[-1][1] < MAX_PAUSE:
            spans[-1][1] = token.end_s
        elif token.token == UNALIGNED:
            spans.append([token.start_s, token.end_s])
        previous = token.token
    if spans:
        seconds = ", ".join(f"{start:.2f}-{end:.2f}" for start, end in spans)
        described.append(f"audio that the text lacks, in seconds: {seconds}")
    if times.unspoken:
        runs: list[list[int]] = []
        for position in times.unspoken:
            if runs and runs[-1][-1] == position - 1:
                runs[-1].append(position)
            else:
                runs.append([position])
        texts = ", ".join(_quote(words, run) for run in runs)
        described.append(f"words that the audio lacks: {texts}")
    return tuple(described)


def _quote(words: Sequence[str], positions: Sequence[int]) -> str:
    """Quote consecutive words of a text, long runs by their first and last words."""
    quoted = [words[position] for position in positions]
    if len(quoted) > QUOTED_WORDS:
        half = QUOTED_WORDS // 2
        quoted = [*quoted[:half], "...", *quoted[-half:]]
    number = f"word {positions[0] + 1}"
    if len(positions) > 1:
        number = f"words {positions[0] + 1} to {positions[-1] + 1}"
    return f"{' '.join(quoted)} ({number})"


def stored_times(
    job: AlignJob, tasks: Sequence[AlignTask], tier: str
) -> Iterator[tuple[str, str, list[TimedToken]]]:
    """Yield the times of a tier that `align` stored, as rows for `write_ctm`."""
    channel = str((job.channel or 0) + 1)
    for task in tasks:
        times = json.loads(task.file(job, ".json").read_text(encoding="utf-8"))
        yield task.utterance, channel, [TimedToken(*fields) for fields in times[tier]]


Item = TypeVar("Item")
Result = TypeVar("Result")


def align_folder(
    aligner: AlignerFiles,
    audio: Path,
    text: Path,
    out: Path,
    speakers: Path | None = None,
    jobs: int = 1,
    channel: int | None = None,
) -> list[FileOutcome]:
    """Align every recording of a folder with its text; a failed recording does not stop the others.

    There is one pass over the recordings, or two if features are normalised by speaker, or three
    if the aligner adapts to speakers.

    Args:
      aligner: such as `toolkit.align.aligner.GmmAlignerFiles`.
      audio: a folder of audio, see `read_inputs`.
      text: a Kaldi text file or a folder of .txt and .lab files, see `read_inputs`. GMMs align
        tags, such as [laughter] and <unk>, as noise; CTC networks leave them out.
      out: the folder that gets `words.ctm`, a CTM of the phones or units,
        `textgrid/<utterance>.TextGrid` and `table.tsv`.
      speakers: a file of lines `utterance speaker`. Features are normalised over all recordings of
        a speaker, and a speaker's transform, if there is one, is estimated from all of them.
      jobs: worker processes; the results do not depend on them.
      channel: the channel of the files, from 0; None for the mean of all channels.

    Returns:
      An outcome for every text and every audio file, sorted by utterance.

    Raises:
      ToolkitError: the aligner cannot be opened.
      InputError: the folder of audio or the texts cannot be read.
    """
    recordings = read_inputs(audio, text, speakers, aligner.by_speaker)
    tasks, outcomes = _tasks(recordings, aligner)
    aligner = aligner.with_pronunciations({word for task in tasks for word in task.words})
    job = AlignJob(aligner, out, channel)
    intermediate = out / WORK
    shutil.rmtree(intermediate, ignore_errors=True)
    intermediate.mkdir(parents=True)
    try:
        aligned = _run(job, tasks, jobs)
        good = [recording.task for recording in aligned if not recording.fault]
        for tier in ("words", aligner.unit_tier):
            write_ctm(stored_times(job, good, tier), out / f"{tier}.ctm")
    finally:
        shutil.rmtree(intermediate, ignore_errors=True)
    outcomes += [_outcome(recording, aligner) for recording in aligned]
    outcomes.sort(key=lambda outcome: outcome.utterance)
    write_outcomes(outcomes, out)
    return outcomes


def _tasks(
    recordings: Sequence[Recording], aligner: AlignerFiles
) -> tuple[list[AlignTask], list[FileOutcome]]:
    """Return the recordings to align with their words, and the outcomes of the rejected ones."""
    tasks: list[AlignTask] = []
    outcomes = []
    for recording in recordings:
        words, left_out = aligner.spoken(recording)
        tags = aligner.tags(words)
        has_words = not tags.issuperset(words)
        fault = recording.fault or ("" if has_words else "its transcript has no words")
        if fault or recording.audio is None:
            outcomes.append(FileOutcome.failure(recording.utterance, fault))
            continue
        name, speaker = recording.utterance, recording.speaker
        tasks.append(
            AlignTask(len(tasks), name, recording.audio, tuple(words), tags, speaker, left_out)
        )
    return tasks, outcomes


def _run(job: AlignJob, tasks: Sequence[AlignTask], jobs: int) -> list[AlignedRecording]:
    """Run all passes over the tasks; return the results in the order of the tasks."""
    with WorkerPool(max(1, min(jobs, len(tasks)))) as pool:

        def run(
            title: str, function: Callable[[AlignJob, Item], Result], items: list[Item]
        ) -> Iterable[Result]:
            return Bar(pool.map(partial(function, job), items), title, len(items))

        # One pass if recordings are normalised one by one.
        if not job.aligner.by_speaker:
            return list(run("align", align, [(task, None) for task in tasks]))
        # 1. Features and their sums; the mean of each speaker.
        extracted = list(run("features", extract, list(tasks)))
        usable = [recording for recording in extracted if not recording.fault]
        speakers = {name: SpeakerAdaptation(mean) for name, mean in _means(usable).items()}
        # 2. Speaker transforms, from alignments without them.
        if job.aligner.needs_speakers:
            items = [(e.task, speakers[e.task.speaker]) for e in usable]
            statistics = run("adapt", accumulate, items)
            names = [e.task.speaker for e in usable]
            for name, matrix in estimate_speaker_transforms(names, statistics).items():
                rows = tuple(tuple(row) for row in matrix.tolist())
                speakers[name] = SpeakerAdaptation(speakers[name].mean, rows)
        # 3. Alignment.
        items = [(e.task, speakers[e.task.speaker]) for e in usable]
        aligned = iter(list(run("align", align, items)))
    return [
        AlignedRecording(e.task, fault=e.fault) if e.fault else next(aligned) for e in extracted
    ]


def _means(extracted: Iterable[RecordingFeatures]) -> dict[str, tuple[float, ...]]:
    """Return each speaker's mean features, without digital silence."""
    sums: dict[str, tuple[Tensor, int]] = {}
    for recording in extracted:
        total, frames = sums.get(recording.task.speaker, (0, 0))
        recording_sum = torch.tensor(recording.sum, dtype=torch.float64)
        # Weighted by frames: the mean is over all frames of the speaker, not over recordings.
        sums[recording.task.speaker] = (total + recording_sum, frames + recording.frames)
    return {n: tuple((total / max(1, frames)).tolist()) for n, (total, frames) in sums.items()}


def estimate_speaker_transforms(
    speakers: Sequence[str], statistics: Iterable[FmllrStatistics | None]
) -> Mapping[str, Tensor]:
    """Estimate the fMLLR transform of each speaker that has an aligned recording.

    A speaker's statistics take half a megabyte; they are released after the speaker's last
    recording.

    Args:
      speakers: the speaker of each recording.
      statistics: the statistics of each recording; None if it could not be aligned.

    Returns:
      The transforms [D, D+1] by speaker.
    """
    recordings_left = Counter(speakers)
    sums, transforms = SpeakerStatistics({}), {}
    for speaker, of_recording in zip(speakers, statistics, strict=True):
        if of_recording is not None:
            sums.add(SpeakerStatistics({speaker: of_recording}))
        # The last recording of a speaker completes the statistics.
        recordings_left[speaker] -= 1
        if not recordings_left[speaker] and speaker in sums.by_speaker:
            transforms[speaker] = estimate_fmllr(sums.by_speaker.pop(speaker))[0]
    return transforms


def _outcome(aligned: AlignedRecording, aligner: AlignerFiles) -> FileOutcome:
    """Return the table line of an aligned recording."""
    task = aligned.task
    if aligned.fault:
        return FileOutcome.failure(task.utterance, aligned.fault)
    notes = [f"left out of the text: {task.left_out}"] if task.left_out else []
    guessed, noise = aligner.guessed(set(task.words))
    if tags := [word for word in noise if word in task.tags]:
        notes.append(f"aligned as noise: {' '.join(tags)}")
    if unknown := [word for word in noise if word not in task.tags]:
        notes.append(f"aligned as noise, because the pronunciation is unknown: {' '.join(unknown)}")
    notes += aligned.differences
    status = "retried" if aligned.retried else "ok"
    return FileOutcome(
        utterance=task.utterance,
        status="partly" if aligned.differences else status,
        seconds=aligned.seconds,
        log_likelihood_per_frame=aligned.log_likelihood_per_frame,
        confidence=aligned.confidence,
        guessed=" ".join(guessed),
        reason="; ".join(notes),
    )
