"""An hour of speech aligned as one recording, with the memory that it takes."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import process_time

from toolkit.processes.threads import one_thread


@dataclass(frozen=True)
class LongRun:
    """What one long recording took."""

    seconds: float
    """Its length."""
    processor_seconds: float
    """For its alignment, all threads together."""
    peak_bytes: int
    """The most memory that the process ever had, model and features included."""
    correct: float
    """Share of the frames in the phone planted there."""


def align_hour(seconds: float) -> LongRun:
    """Align one recording of this length window by window, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(_align, seconds).result()


def _align(seconds: float) -> LongRun:
    import torch

    from toolkit.align.graphs import TranscriptCompiler
    from toolkit.align.recordings.confidence import PhonePosteriors, RecordingScores
    from toolkit.align.recordings.long import LongConfig, align_long
    from toolkit.bench.instruments.planted_speech import PlantedSpeech

    speech = PlantedSpeech.make()
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
        compiler = TranscriptCompiler(speech.lang, speech.senones)
        found = align_long(scores, spoken.words, compiler, config)
        taken = process_time() - before
    phones = torch.tensor(speech.senones.topology.phone_of_state_id)
    correct = phones[found.states.long()] == phones[spoken.states]
    length = len(spoken.states) / 100
    return LongRun(length, taken, _peak_bytes(), float(correct.float().mean()))


def _peak_bytes() -> int:
    """The largest resident size of this process. Unlike `ru_maxrss` it knows no parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    [kib] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return 1024 * int(kib)
