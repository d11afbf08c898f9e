"""Decoding at several beams: the toolkit's search, k2's and kaldi_decoder's."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import process_time

from torch import Tensor

from benchmarks import decode_gpu as gpu_decode
from benchmarks.peers import FasterDecoder, PeerUnavailableError
from benchmarks.run import BenchmarkError, Case, Table, Target, compare, table_figure
from benchmarks.synthetic import FRAMES_PER_SECOND, SyntheticSentences
from toolkit.corpus.manifest import text_of
from toolkit.decode.config import DecodeConfig
from toolkit.engines import EngineError
from toolkit.fsa.config import Beam
from toolkit.fsa.fst import load_fst
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.search import engine, search_best_paths, search_with_retries, searching_with
from toolkit.lang.tables import SymbolTable
from toolkit.models.scorer import NeuralScorer
from toolkit.processes.devices import one_thread
from toolkit.score.wer import score

MAX_ACTIVE = 4000
LATTICE_BEAM = 4.0
# Acoustic scale of the synthetic scores; this one gives the fewest errors.
SYNTHETIC_SCALE = 0.7
# Environment variable: run directory of a recipe, whose graph and LSTM scores are used instead.
VARIABLE = "DECODE_BENCH_RUN"
# WERs up to EQUAL times another count as equal to it. WERs above USEFUL, in %, are not compared.
EQUAL, USEFUL = 1.02, 25.0

OURS = "ours, beam {:g}"
K2 = "k2, beam {:g}"
BEST_PATH = "ours, best path, beam {:g}"
FASTER_DECODER = "FasterDecoder, best path, beam {:g}"
LARGEST = "best paths: largest ratio of our time to FasterDecoder's at equal WER"
LARGEST_K2 = "lattices: largest ratio of our time to k2's at equal WER"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the task and the comparison."""

    utterances: int = 24
    seconds: float = 8.0
    """Minimum duration of a synthetic sentence."""
    words: int = 2000
    """Vocabulary of the synthetic language."""
    sentences: int = 10_000
    """Sentences from which its trigram model is estimated."""
    beams: tuple[float, ...] = (4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0)
    repeats: int = 3


SMOKE = {"sizes": Sizes(2, 2.0, words=100, sentences=500, beams=(6.0, 16.0), repeats=1)}
TARGETS = (
    Target(
        "best path at equal WER, time relative to FasterDecoder's",
        1.0,
        table_figure(LARGEST),
        at_most=True,
    ),
    Target(
        "lattices at equal WER, time relative to k2's", 1.0, table_figure(LARGEST_K2), at_most=True
    ),
)


def benchmark(device: str | None = None, sizes: Sizes = Sizes()) -> Table:
    """Measure seconds of speech per second of processor time on one core.

    Scores and graph are computed beforehand and are the same for all. Our search generates a
    lattice and takes its best path, as the recipes do. Our search and k2's are repeated with a
    wider beam if no path survives. FasterDecoder finds only the best path, so it is compared with
    the toolkit's search for the best path alone.

    With a device, see `benchmarks.decode_gpu`.
    """
    if device is not None:
        return gpu_decode.measure(device)
    with one_thread(), tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        run = os.environ.get(VARIABLE)
        task = _Task(
            DecodingInputs.of_run(Path(run), sizes.utterances)
            if run
            else DecodingInputs.synthetic(folder, sizes)
        )
        cases = [
            task.case(OURS.format(beam), beam, task.decode_with_toolkit) for beam in sizes.beams
        ]
        cases += [task.case(BEST_PATH.format(beam), beam, task.best_path) for beam in sizes.beams]
        notes, faster = [task.description()], None
        try:
            with searching_with("k2"):
                engine()
            cases += [task.case(K2.format(beam), beam, task.k2) for beam in sizes.beams]
        except EngineError as error:
            absent = "k2: not installed, so there are no rows for its search"
            notes.append(str(error) if find_spec("k2") else absent)
        try:
            graph = load_fst(task.inputs.graph)
            faster = FasterDecoder(graph, task.inputs.scores, folder)
            stack.callback(faster.close)
            for beam in sizes.beams:
                search = lambda beam: faster.decode(beam, MAX_ACTIVE)  # noqa: E731
                cases.append(task.case(FASTER_DECODER.format(beam), beam, search))
        except PeerUnavailableError as error:
            notes.append(str(error))
        table = compare(
            cases,
            unit="s of speech",
            baseline=OURS.format(sizes.beams[len(sizes.beams) // 2]),
            repeats=sizes.repeats,
            title="Decoding on one core",
            clock=lambda: process_time() + (faster.processor_seconds if faster else 0.0),
        )
    errors = {name: task.wer(words) for name, words in task.found.items()}
    notes += [
        "Real-time factor and WER in %: "
        + "; ".join(f"{r.name} {1 / r.rate:.5f} {errors[r.name]:.2f}" for r in table.rows)
        + ".",
        "No row for torchaudio's lexicon decoder: it needs characters and a blank (CTC), not"
        " senones.",
    ]
    # (real-time factor, WER): speeds are compared at equal error rates.
    points = {row.name: (1 / row.rate, errors[row.name]) for row in table.rows}
    for figure, toolkit_name, peer_name in (
        (LARGEST, BEST_PATH, FASTER_DECODER),
        (LARGEST_K2, OURS, K2),
    ):
        if ratios := ratios_at_equal_wer(points, toolkit_name, peer_name):
            table = table.with_figures({figure: max(ratios.values())})
            parts = (f"{ratio:.2f} at {wer:.2f} %" for wer, ratio in ratios.items())
            notes.append(f"{figure}, each at its fastest beam: {', '.join(parts)}.")
    return table.with_notes(*notes)


def ratios_at_equal_wer(
    rows: Mapping[str, tuple[float, float]], toolkit_name: str, peer_name: str
) -> dict[float, float]:
    """Compare two searches at equal error rates, each at its fastest beam.

    Args:
      rows: real-time factor and WER by name of the row.
      toolkit_name, peer_name: names of our rows and of theirs, with a place for the beam.

    Returns:
      Our time divided by theirs, by WER; empty if no WER is reached by both.
    """
    names = [name.split("{")[0] for name in (toolkit_name, peer_name)]
    toolkit_values, peers = (
        [v for row, v in rows.items() if row.startswith(name)] for name in names
    )
    if not peers:
        return {}
    lowest = min(wer for _, wer in toolkit_values + peers)
    ratios = {}
    for goal in (lowest, *sorted({wer for _, wer in peers if lowest * EQUAL < wer <= USEFUL})):
        fastest = [
            min((factor for factor, wer in points if wer <= goal * EQUAL), default=None)
            for points in (toolkit_values, peers)
        ]
        if None not in fastest:
            ratios[goal] = fastest[0] / fastest[1]
    return ratios


@dataclass(frozen=True)
class DecodingInputs:
    """The inputs of decoding."""

    graph: Path
    """The decoding graph."""
    words: SymbolTable
    """Symbol table of the words."""
    scores: list[Tensor]
    """[T, P] scaled log-likelihoods of each utterance, 33 frames per second."""
    references: list[str]
    """Reference transcripts."""
    name: str
    """Description for the notes."""

    @classmethod
    def synthetic(cls, folder: Path, sizes: Sizes) -> "DecodingInputs":
        """Make synthetic sentences."""
        language = SyntheticSentences.make(sizes.words)
        graph = language.graph(folder, sizes.sentences)
        seeds = range(1, sizes.utterances + 1)
        spoken = [language.sentence(seed, sizes.seconds) for seed in seeds]
        return cls(
            graph,
            language.lang.words,
            [sentence.scores * SYNTHETIC_SCALE for sentence in spoken],
            [" ".join(sentence.words) for sentence in spoken],
            f"synthetic sentences of {sizes.words} words",
        )

    @classmethod
    def of_run(cls, run: Path, utterances: int = Sizes.utterances) -> "DecodingInputs":
        """Take evenly spaced utterances of the first decoded split of a run directory."""
        folder = run / "decode" / "lstm_ce"
        splits = sorted(path.parent.name for path in folder.glob("*/text"))
        if not splits:
            raise BenchmarkError(
                f"{VARIABLE}={run}: no LSTM was decoded in this run directory (it has no "
                "decode/lstm_ce/*/text)"
            )
        fbank = run / "fbank"
        scorer = NeuralScorer(run / "lstm_ce", fbank / "normaliser.json", fbank / splits[0])
        tuned = folder / "first_pass" / "tuned.json"
        scale = json.loads(tuned.read_text("utf-8"))["acoustic_scale"]
        ids = scorer.store.ids
        ids = ids[:: max(1, len(ids) // utterances)][:utterances]
        return cls(
            run / "graph.safetensors",
            SymbolTable.read(run / "lang" / "words.txt"),
            [scorer.log_likelihoods(utterance) * scale for utterance in ids],
            [text_of(scorer.store.cut(utterance)) for utterance in ids],
            f"{splits[0]} of {run.name}",
        )


class _Task:
    """The utterances, and the words that each case has recognised."""

    def __init__(self, inputs: DecodingInputs) -> None:
        self.inputs = inputs
        self.seconds = sum(map(len, inputs.scores)) / FRAMES_PER_SECOND
        self.found: dict[str, list[list[int]]] = {}
        self._graph = load_fst(inputs.graph)

    def case(self, name: str, beam: float, decode: Callable[[float], list[list[int]]]) -> Case:
        """Return a case that decodes with `decode`: beam -> word ids of every utterance."""

        def run() -> float:
            self.found[name] = decode(beam)
            return self.seconds

        return Case(name, run)

    def decode_with_toolkit(self, beam: float) -> list[list[int]]:
        """Decode as the recipes do; return the word ids of every utterance."""
        config = DecodeConfig(beam=Beam(beam, LATTICE_BEAM, max_active=MAX_ACTIVE))
        hypotheses = []
        for scores in self.inputs.scores:
            lattice, _ = search_with_retries(scores, self._graph, config.beams())
            best = lattice and ScoredLattice.of(lattice, scores, 1.0).best_words(Weights(1.0))
            hypotheses.append(best or [])
        return hypotheses

    def best_path(self, beam: float) -> list[list[int]]:
        """Search for the best path alone; return the word ids of every utterance."""
        beams = DecodeConfig(beam=Beam(beam, max_active=MAX_ACTIVE)).beams()
        hypotheses = []
        for scores in self.inputs.scores:
            for wider in beams:
                [path] = search_best_paths([scores], [self._graph], wider)
                if path is not None:
                    break
            hypotheses.append(path.words if path else [])
        return hypotheses

    def k2(self, beam: float) -> list[list[int]]:
        """Decode as `decode_with_toolkit` does, with k2's search."""
        with searching_with("k2"):
            return self.decode_with_toolkit(beam)

    def wer(self, hypotheses: list[list[int]]) -> float:
        """Return the word error rate in percent."""
        numbers = [str(i) for i in range(len(hypotheses))]
        hypotheses = [" ".join(map(self.inputs.words.symbol, words)) for words in hypotheses]
        references = dict(zip(numbers, self.inputs.references, strict=True))
        return score(references, dict(zip(numbers, hypotheses, strict=True))).percent

    def description(self) -> str:
        """Describe the task."""
        return (
            f"{len(self.inputs.scores)} utterances of {self.inputs.name},"
            f" {self.seconds / 60:.1f} min; graph of {self._graph.num_states:,} states,"
            f" {self._graph.num_arcs:,} arcs; at most {MAX_ACTIVE} states per"
            " frame; times are processor time."
        )
