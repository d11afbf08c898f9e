"""Alignment of one long recording of synthetic speech: time, peak memory and accuracy."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from time import process_time

from toolkit.environment import peak_bytes
from toolkit.processes.threads import one_thread


@dataclass(frozen=True)
class LongRecordingResult:
    """The results of aligning one long recording."""

    seconds: float
    """Length of the recording."""
    processor_seconds: float
    """Processor time of the alignment, of all threads."""
    peak_bytes: int
    """Peak memory of the process, model and features included."""
    correct: float
    """Share of the frames aligned with the true phone."""


def align_long_recording(seconds: float) -> LongRecordingResult:
    """Align one recording of this length in windows, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(_align, seconds).result()


def _align(seconds: float) -> LongRecordingResult:
    import torch

    from benchmarks.synthetic_speech import SyntheticSpeech
    from toolkit.align.graphs import TrainingGraphCompiler
    from toolkit.align.recordings.confidence import PhonePosteriors, RecordingScores
    from toolkit.align.recordings.long import LongConfig, align_long

    speech = SyntheticSpeech.make()
    spoken = speech.utterance(seed=0, seconds=seconds)
    config = LongConfig()
    with one_thread():
        before = process_time()
        scores = RecordingScores(
            lambda begin, end: spoken.features[begin:end],
            speech.gmm.log_likelihoods,
            len(spoken.features),
            PhonePosteriors(speech.senones, config.confidence_scale),
        )
        compiler = TrainingGraphCompiler(speech.lang, speech.senones)
        found = align_long(scores, spoken.words, compiler, config)
        used = process_time() - before
    phones = torch.tensor(speech.senones.topology.phone_of_state_id)
    correct = phones[found.states.long()] == phones[spoken.states]
    length = len(spoken.states) / 100
    return LongRecordingResult(length, used, peak_bytes(), float(correct.float().mean()))
