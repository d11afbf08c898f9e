"""Forced alignment with a GMM: all of it, its parts, kaldi-hmm-gmm, and an hour-long recording.

The E step along an alignment, the other half of GMM training, is measured, too.
"""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers import KALDI_HMM_GMM_PINNED, KaldiHmmGmm, PeerUnavailableError
from benchmarks.run import Case, Table, Target, compare, rate_ratio
from benchmarks.synthetic import SyntheticSpeech
from toolkit.align.config import AlignConfig
from toolkit.align.force_align import (
    SEARCH_FRAMES,
    TranscriptGraphs,
    UtteranceAlignment,
    align_batched,
    force_align,
)
from toolkit.environment import peak_bytes
from toolkit.features.gmm_features import GmmFrontend
from toolkit.fsa.search_kernels import FrameScores
from toolkit.hmm.gmm import GmmStatistics, LazyGmmScores
from toolkit.processes.devices import one_thread


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
    """Align one recording of `seconds` in windows, in a separate process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(_align, seconds).result()


def _align(seconds: float) -> LongRecordingResult:
    """Align one recording of `seconds` in windows, in this process."""
    import torch

    from benchmarks.synthetic import SyntheticSpeech
    from toolkit.align.config import LongConfig
    from toolkit.align.force_align import TranscriptGraphs
    from toolkit.align.recording import PhonePosteriors, RecordingScores, align_long

    speech = SyntheticSpeech.make()
    spoken = speech.utterance(seed=0, seconds=seconds)
    config = LongConfig()
    with one_thread():
        started = process_time()
        scores = RecordingScores(
            lambda begin, end: spoken.features[begin:end],
            speech.gmm.log_likelihoods,
            len(spoken.features),
            PhonePosteriors(speech.senones),
        )
        compiler = TranscriptGraphs(speech.lang, speech.senones)
        alignment = align_long(scores, spoken.words, compiler, config)
        used = process_time() - started
    phones = torch.tensor(speech.senones.topology.phone_of_state_id)
    # [T] whether the frame's phone is the one that was synthesised; states within it may differ.
    correct = phones[alignment.states.long()] == phones[spoken.states]
    length = len(spoken.states) / 100  # 100 frames per second
    return LongRecordingResult(length, used, peak_bytes(), float(correct.float().mean()))


# Targets: processor seconds per second of speech, and peak memory in bytes for an hour of speech.
TARGET = 0.001
MEMORY_TARGET = 2e9

OURS = "ours, features to alignments"
SEARCH = "search alone, scores and graphs ready"
BOTH = "ours, graphs ready"
PEER = KALDI_HMM_GMM_PINNED[0].replace("==", " ")
KALDI = f"{PEER}, graphs ready"
SUMS, KALDI_SUMS = "statistics of EM", f"{PEER}, statistics of EM"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the task and the comparison."""

    utterances: int = 60
    seconds: float = 10.0
    """Minimum duration of an utterance."""
    repeats: int = 5
    long_seconds: float = 3600.0
    """Duration of the recording that is aligned in windows."""


SMOKE = {"sizes": Sizes(utterances=3, seconds=3.0, repeats=1, long_seconds=90.0)}
TARGETS = (
    Target("statistics of EM, relative to kaldi-hmm-gmm", 3.0, rate_ratio(SUMS, KALDI_SUMS)),
    Target(
        "alignment, real-time factor on one core",
        TARGET,
        lambda table: 1 / table.row(OURS).rate,
        at_most=True,
    ),
)


def benchmark(sizes: Sizes = Sizes()) -> Table:
    """Measure seconds of speech per second of processor time on one core, for synthetic speech.

    All cases have the same utterances, densities and beams. Processor time is that of all threads,
    so that neither threads nor a busy machine distort the comparison. kaldi-hmm-gmm accumulates its
    statistics frame by frame, since its Python interface has no other way.
    """
    with one_thread():
        task = _Task(sizes)
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            cases, kaldi, missing = task.cases(), None, ()
            try:
                kaldi = KaldiHmmGmm(
                    task.speech.gmm, task.graphs, task.features, task.true_pdfs, Path(folder)
                )
                stack.callback(kaldi.close)
                cases.append(task.case(KALDI, kaldi.align))
                cases.append(task.case(KALDI_SUMS, kaldi.accumulate))
            except PeerUnavailableError as error:
                missing = (str(error),)
            table = compare(
                cases,
                unit="s of speech",
                baseline=OURS,
                repeats=sizes.repeats,
                title="Forced alignment with a triphone GMM on one core",
                clock=lambda: process_time() + (kaldi.processor_seconds if kaldi else 0.0),
            )
            notes = [task.description(), _real_time_factors(table), task.correctness()]
            if kaldi:
                # [T] over all utterances: the share of frames with the same pdf.
                equal = float((kaldi.pdfs == task.path()).mean())
                difference = abs(kaldi.log_likelihood / task.log_likelihood - 1)
                notes.append(
                    f"kaldi-hmm-gmm's pdfs equal ours in {equal:.2%} of the frames. The relative"
                    f" difference of the statistics' log-likelihoods is {difference:.0e}."
                )
    return table.with_notes(
        *notes, *missing, _long_recording_note(align_long_recording(sizes.long_seconds))
    )


class _Task:
    """The utterances, and the inputs of all cases."""

    def __init__(self, sizes: Sizes) -> None:
        self.speech = SyntheticSpeech.make()
        count = sizes.utterances
        spoken = [self.speech.utterance(seed, sizes.seconds) for seed in range(1, count + 1)]
        self.features = [utterance.features for utterance in spoken]
        self.true_states = [utterance.states for utterance in spoken]
        self.true_pdfs = [self.speech.senones.pdfs(states) for states in self.true_states]
        self.seconds = sum(map(len, self.features)) / 100
        self._transcripts = [(str(i), utterance.words) for i, utterance in enumerate(spoken)]
        self._compiler = TranscriptGraphs(self.speech.lang, self.speech.senones)
        self.graphs = [self._compiler.compile(words) for _, words in self._transcripts]
        self._scores = self._score()
        # The utterances of a batch have about SEARCH_FRAMES frames together.
        size = max(1, round(SEARCH_FRAMES / (100 * sizes.seconds)))
        self._batches = [range(i, min(i + size, count)) for i in range(0, count, size)]
        self.found: list[UtteranceAlignment | None] = []
        self.log_likelihood = 0.0

    def cases(self) -> list[Case]:
        """Return all cases except kaldi-hmm-gmm's."""
        generator = torch.Generator().manual_seed(0)
        frontend = GmmFrontend(3, torch.randn(40, 13 * 3 * 7, generator=generator))
        cepstra = [torch.randn(len(x), 13, generator=generator) for x in self.features]
        mean = torch.zeros(13)
        return [
            self.case(OURS, self._align),
            self.case("all scores alone; a search reads only a few", self._score),
            self.case("graphs alone", lambda: self._each(self._compile, self._transcripts)),
            self.case(SEARCH, lambda: self._search(self._scores)),
            self.case(BOTH, lambda: self._search(self._demanded())),
            self.case(SUMS, self._accumulate),
            self.case(
                "cepstra to features (deltas, splicing, LDA)",
                lambda: self._each(lambda x: frontend(x, mean), cepstra),
            ),
        ]

    def case(self, name: str, align: Callable[[], object]) -> Case:
        """Return a case that runs `align`, which processes all utterances."""

        def run() -> float:
            align()
            return self.seconds

        return Case(name, run)

    def _align(self) -> None:
        """Align all utterances, as the training of GMMs does."""
        alignments = align_batched(
            self._transcripts, self._log_likelihoods, self._compiler, AlignConfig()
        )
        self.found = [path for _, path in alignments]

    def _log_likelihoods(self, utterance: str, pdfs: Tensor) -> LazyGmmScores:
        """Return the scores of an utterance, computed when the search needs them."""
        return LazyGmmScores(self.speech.gmm, self.features[int(utterance)], pdfs)

    def _demanded(self) -> list[LazyGmmScores]:
        """Return the scores of all utterances, computed when the search needs them."""
        pairs = zip(self.features, self.graphs, strict=True)
        return [LazyGmmScores(self.speech.gmm, x, graph.pdfs) for x, graph in pairs]

    def _score(self) -> list[Tensor]:
        """Compute the scores of all utterances."""
        pairs = zip(self.features, self.graphs, strict=True)
        return [self.speech.gmm.log_likelihoods(x, graph.pdfs) for x, graph in pairs]

    def _accumulate(self) -> None:
        """Accumulate the statistics of all frames along the true states."""
        gmm = self.speech.gmm
        sums = GmmStatistics.zeros(gmm.num_gaussians, gmm.means.shape[1])
        gmm.accumulate(torch.cat(self.features), torch.cat(self.true_pdfs), sums)
        self.log_likelihood = sums.log_likelihood

    def _compile(self, transcript: tuple[str, tuple[str, ...]]) -> object:
        """Compile the graph of a transcript."""
        return self._compiler.compile(transcript[1])

    def _search(self, scores: Sequence[FrameScores]) -> None:
        """Search the graphs of all utterances for the best path."""
        for batch in self._batches:
            force_align(
                [scores[i] for i in batch],
                [self.graphs[i] for i in batch],
                self.speech.senones,
                AlignConfig(),
            )

    @staticmethod
    def _each(function: Callable, items: Iterable) -> None:
        """Call a function with each item."""
        for item in items:
            function(item)

    def path(self) -> np.ndarray:
        """Return the aligned pdf of every frame of all utterances; -1 without an alignment."""
        pairs = zip(self.found, self.true_states, strict=True)
        parts = [path.pdfs if path else torch.full_like(states, -1) for path, states in pairs]
        return torch.cat(parts).numpy()

    def description(self) -> str:
        """Describe the task."""
        gmm = self.speech.gmm
        return (
            f"{len(self.features)} synthetic utterances, {self.seconds / 60:.1f} min;"
            f" {gmm.num_pdfs} pdfs, {gmm.num_gaussians} Gaussians of {gmm.means.shape[1]}"
            " dimensions; seconds of processor time."
        )

    def correctness(self) -> str:
        """Report the accuracy of the alignments."""
        pairs = zip(self.found, self.true_states, strict=True)
        num_correct = sum(int((path.states == states).sum()) for path, states in pairs if path)
        failed = sum(path is None for path in self.found)
        share = num_correct / (100 * self.seconds)
        return f"The aligned state is the true one in {share:.1%} of the frames; {failed} failures."


def _real_time_factors(table: Table) -> str:
    """Describe the real-time factors, and whether the target is met."""
    factor = 1 / table.row(OURS).rate
    outcome = "met" if factor <= TARGET else "missed"
    parts = ", ".join(f"{row.name} {1 / row.rate:.5f}" for row in table.rows[1:])
    return (
        f"Real-time factor per core: {factor:.5f} (target: at most {TARGET}, {outcome}); {parts}."
    )


def _long_recording_note(run: LongRecordingResult) -> str:
    """Describe the alignment of the long recording, and whether the target is met."""
    outcome = "met" if run.peak_bytes < MEMORY_TARGET else "missed"
    return (
        f"One recording of {run.seconds / 60:.0f} min, aligned in windows: real-time factor"
        f" {run.processor_seconds / run.seconds:.5f}, peak memory {run.peak_bytes / 1e9:.2f} GB"
        f" (target: under {MEMORY_TARGET / 1e9:g} GB, {outcome}), {run.correct:.1%} of the frames"
        " in the right phone."
    )
