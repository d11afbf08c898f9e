"""Alignment of a folder of audio with its texts, into CTM and TextGrid files."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from toolkit.align.ctm import write_ctm
from toolkit.align.gmm.adaptation import SpeakerStatistics
from toolkit.align.recordings.bundle import (
    INDEPENDENT,
    LANG,
    GuessedPronunciations,
    find_bundle,
    guess_missing,
)
from toolkit.align.recordings.inputs import Recording, read_inputs
from toolkit.align.recordings.outcomes import FileOutcome, write_outcomes
from toolkit.align.recordings.passes import (
    WORK,
    AlignedRecording,
    Job,
    RecordingCepstra,
    SpeakerAdaptation,
    Task,
    adapt,
    align,
    as_tuples,
    extract,
    stored_times,
)
from toolkit.hmm.fmllr import FmllrStatistics, estimate_fmllr
from toolkit.lang.lang import Lang
from toolkit.lang.policy import TextPolicy
from toolkit.processes.bars import Bar
from toolkit.processes.workers import WorkerPool

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
    guesses = guess_missing(bundle, {word for task in tasks for word in task.words})
    job = Job(bundle, guesses.pronunciations, out, channel)
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
) -> tuple[list[Task], list[FileOutcome]]:
    """The recordings to align, with their words by a policy, and the outcomes of the others."""
    tasks: list[Task] = []
    outcomes = []
    for recording in recordings:
        words, left_out = recording.spoken(policy)
        fault = recording.fault or ("" if words else "no word in its text")
        if fault or recording.audio is None:
            outcomes.append(FileOutcome.failure(recording.utterance, fault))
            continue
        name, speaker = recording.utterance, recording.speaker
        tasks.append(Task(len(tasks), name, recording.audio, tuple(words), speaker, left_out))
    return tasks, outcomes


def _run(job: Job, tasks: Sequence[Task], jobs: int) -> list[AlignedRecording]:
    """All passes; their results in the tasks' order."""
    with WorkerPool(max(1, min(jobs, len(tasks)))) as pool:

        def run(
            name: str, work: Callable[[Job, Item], Result], items: list[Item]
        ) -> Iterable[Result]:
            return Bar(pool.map(partial(work, job), items), name, len(items))

        extracted = list(run("features", extract, list(tasks)))
        usable = [found for found in extracted if not found.fault]
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
    for found in extracted:
        total, frames = sums.get(found.task.speaker, (0, 0))
        mine = torch.tensor(found.sum, dtype=torch.float64)
        sums[found.task.speaker] = (total + mine, frames + found.frames)
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
    left = Counter(found.task.speaker for found in extracted)
    sums, transforms = SpeakerStatistics({}), {}
    for found, mine in zip(extracted, statistics, strict=True):
        speaker = found.task.speaker
        if mine is not None:
            sums.add(SpeakerStatistics({speaker: mine}))
        left[speaker] -= 1
        if not left[speaker] and speaker in sums.by_speaker:
            transforms[speaker] = estimate_fmllr(sums.by_speaker.pop(speaker))[0]
    return transforms


def _outcome(timed: AlignedRecording, guesses: GuessedPronunciations) -> FileOutcome:
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
