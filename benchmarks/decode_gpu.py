"""Decoding with the network on a device and the search on the processor, apart and overlapped."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from benchmarks.run import Case, Table, compare
from benchmarks.synthetic import FRAMES_PER_SECOND, SyntheticSentences
from toolkit.align.scorer import ScoredUtterance, map_utterances
from toolkit.decode.config import DecodeConfig
from toolkit.environment import usable_cpus
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.fsa.config import Beam
from toolkit.fsa.fst import load_fst
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.search import search_with_retries
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.models.scorer import log_posteriors
from toolkit.processes.devices import one_thread

UTTERANCES = 128
SECONDS = 10.0
WORDS = 2000
SENTENCES = 10_000
REPEATS = 3
SCALE = 0.7  # of the synthetic scores; the one with the fewest errors
CONFIG = DecodeConfig(acoustic_scale=1.0, beam=Beam(12.0, 4.0, max_active=4000))

NETWORK = "the network alone"
SEARCH = "the search alone, {} threads"
OVERLAPPED = "network and search, overlapped"


def measure(device: str, network: LstmConfig = LstmConfig()) -> Table:  # noqa: B008 - frozen
    """Measure seconds of speech per second of wall time, decoded as by `toolkit.align.scorer`.

    The network is as large as the paper's (C6) and has random weights. It scores random features in
    batches and copies the scores to the processor's memory, but the search uses the scores of
    synthetic sentences.

    Args:
      device: where the network computes.
      network: its sizes.
    """
    threads = usable_cpus()
    with tempfile.TemporaryDirectory() as folder, one_thread():
        language = SyntheticSentences.make(WORDS)
        graph = load_fst(language.graph(Path(folder), SENTENCES))
        spoken = [language.sentence(seed, SECONDS).scores * SCALE for seed in range(UTTERANCES)]
        ids = [str(number) for number in range(UTTERANCES)]
        # Synthetic scores, in which there are words to find, replace the network's outputs.
        scorer = _Network(network, device, dict(zip(ids, spoken, strict=True)))

        def decode(scored: ScoredUtterance) -> list[int]:
            scores = scored.log_likelihoods
            lattice, _ = search_with_retries(scores, graph, CONFIG.beams())
            if lattice is None:
                return []
            return ScoredLattice.of(lattice, scores, 1.0).best_words(Weights(1.0))

        hypotheses_by_case: dict[str, list[list[int]]] = {}

        def overlapped(name: str, scores: bool) -> Callable[[], float]:
            def run() -> float:
                scorer.computes = scores
                hypotheses_by_case[name] = list(map_utterances(decode, scorer, ids, threads))
                return scorer.seconds

            return run

        def alone() -> float:
            scorer.computes = True
            list(map_utterances(lambda scored: None, scorer, ids, 1))
            return scorer.seconds

        search = SEARCH.format(threads)
        table = compare(
            [
                Case(NETWORK, alone),
                Case(search, overlapped(search, False)),
                Case(OVERLAPPED, overlapped(OVERLAPPED, True)),
            ],
            unit="s of speech",
            baseline=search,
            repeats=REPEATS,
            title=f"Decoding with the network on {device}",
        )
    rates = {row.name: row.rate for row in table.rows}
    # Perfectly overlapped, the slower of the two sets the rate.
    best = min(rates[NETWORK], rates[search])
    same = (
        "the same words"
        if hypotheses_by_case[search] == hypotheses_by_case[OVERLAPPED]
        else "OTHER WORDS"
    )
    return table.with_notes(
        f"{UTTERANCES} synthetic utterances, {scorer.seconds / 60:.1f} min; a graph of"
        f" {graph.num_states:,} states; {network.layers} x {network.hidden},"
        f" {network.output_dim} targets.",
        f"Overlapped, the rate is {100 * rates[OVERLAPPED] / best:.0f} % of the slower part's, with"
        f" {same} as in the search alone. Real-time factor {1 / rates[OVERLAPPED]:.6f}.",
    )


class _Network:
    """A scorer that runs its network, but returns scores that were made beforehand."""

    frame_shift = LOW_RATE_FACTOR / 100

    def __init__(self, config: LstmConfig, device: str, scores: dict[str, Tensor]) -> None:
        self.device = "cpu:0" if device == "cpu" else device  # treat the CPU like a device
        self.computes = True
        self.seconds = sum(map(len, scores.values())) / FRAMES_PER_SECOND
        self.store = SimpleNamespace(num_frames=lambda name: LOW_RATE_FACTOR * len(scores[name]))
        self._scores = scores
        self._model = LstmModel(config).to(device)
        self._inputs = {
            name: torch.randn(len(rows), config.input_dim) for name, rows in scores.items()
        }

    def log_likelihoods(self, utterance: str) -> Tensor:
        return self.batch_log_likelihoods([utterance])[0]

    def scores_of(self, utterance: str, pdfs: Tensor) -> Tensor:
        return self.log_likelihoods(utterance)[:, pdfs]

    def batch_log_likelihoods(self, utterances: Sequence[str]) -> list[Tensor]:
        if self.computes:
            log_posteriors(self._model, [self._inputs[name] for name in utterances])
        return [self._scores[name] for name in utterances]
