"""Decoding at several beams: k2's pruned search as we call it, beside kaldi_decoder."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import process_time

from torch import Tensor

from toolkit.bench.instruments.harness import BenchmarkError, Case, Table, compare
from toolkit.bench.instruments.planted_sentences import FRAMES_PER_SECOND, PlantedSentences
from toolkit.bench.peers.faster_decoder import FasterDecoderSide
from toolkit.bench.peers.peer import PeerUnavailableError
from toolkit.corpus.manifest import text_of
from toolkit.decode.first_pass import DecodeConfig
from toolkit.fsa.arcs import load_fsa, load_graph
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.search import Beam, search_widening
from toolkit.lang.tables import SymbolTable
from toolkit.models.scorer import NeuralScorer
from toolkit.processes.threads import one_thread
from toolkit.score.wer import score

UTTERANCES = 24
SECONDS = 8.0
WORDS = 2000
SENTENCES = 10_000
REPEATS = 3
BEAMS = (8.0, 10.0, 12.0, 14.0, 16.0, 20.0)
MAX_ACTIVE = 4000
LATTICE_BEAM = 4.0
# The scale of the made-up scores that gives the fewest errors.
PLANTED_SCALE = 0.7
# Names a run directory with an LSTM whose graph and posteriors are taken instead.
VARIABLE = "DECODE_BENCH_RUN"
# A rate of errors counts as equal up to this factor; our time by the fastest's is at most TARGET.
EQUAL, TARGET = 1.02, 1.2

OURS = "ours (k2), beam {:g}"
THEIRS = "FasterDecoder, beam {:g}"


def benchmark() -> Table:
    """Measure seconds of speech per second of processor time on one core.

    Scores and graph are ready and the same for all. Ours makes a lattice and takes its best path,
    as decoding does, a wider beam where no path survives included; FasterDecoder finds the best
    path alone.
    """
    with one_thread(), tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        run = os.environ.get(VARIABLE)
        task = _Task(Material.of_run(Path(run)) if run else Material.planted(folder))
        cases = [task.case(OURS.format(beam), beam, task.ours) for beam in BEAMS]
        notes, side = [task.description()], None
        try:
            graph = load_fsa(task.material.graph)
            side = FasterDecoderSide(graph, task.material.scores, folder)
            stack.callback(side.close)
            for beam in BEAMS:
                theirs = lambda beam: side.decode(beam, MAX_ACTIVE)  # noqa: E731
                cases.append(task.case(THEIRS.format(beam), beam, theirs))
        except PeerUnavailableError as error:
            notes.append(str(error))
        table = compare(
            cases,
            unit="s of speech",
            baseline=OURS.format(BEAMS[len(BEAMS) // 2]),
            repeats=REPEATS,
            title="Decoding on one core",
            clock=lambda: process_time() + (side.processor_seconds if side else 0.0),
        )
    errors = {name: task.wer(words) for name, words in task.found.items()}
    notes += [
        "Real-time factor and WER in %: "
        + "; ".join(f"{r.name} {1 / r.rate:.5f} {errors[r.name]:.2f}" for r in table.rows)
        + ".",
        "torchaudio's lexicon decoder reads characters with a blank (CTC), not senones: no row.",
    ]
    if side:
        notes.append(verdict({row.name: (1 / row.rate, errors[row.name]) for row in table.rows}))
    return table.with_notes(*notes)


def verdict(rows: Mapping[str, tuple[float, float]]) -> str:
    """Compare the sides at equal error rates.

    Args:
      rows: real-time factor and WER by the row's name.
    """
    sides = [OURS.split(",")[0], THEIRS.split(",")[0]]
    ours, theirs = ([v for name, v in rows.items() if name.startswith(side)] for side in sides)
    lowest = min(wer for _, wer in ours + theirs)
    parts = []
    for goal in (lowest, *sorted({wer for _, wer in theirs if wer > lowest * EQUAL})):
        fastest = [
            min((factor for factor, wer in side if wer <= goal * EQUAL), default=None)
            for side in (ours, theirs)
        ]
        if None not in fastest:
            ratio = fastest[0] / fastest[1]
            parts.append(f"{ratio:.2f} at {goal:.2f} % ({'met' if ratio <= TARGET else 'missed'})")
    return (
        "Our time by FasterDecoder's at equal WER, each at its fastest beam (target: at most"
        f" {TARGET}): {', '.join(parts) or 'none is reached by both'}."
    )


@dataclass(frozen=True)
class Material:
    """What is decoded."""

    graph: Path
    """The decoding graph."""
    words: SymbolTable
    """Its words."""
    scores: list[Tensor]
    """[T, P] scaled log-likelihoods of each utterance, 33 frames per second."""
    references: list[str]
    """Their transcripts."""
    name: str
    """For the notes."""

    @classmethod
    def planted(cls, folder: Path) -> "Material":
        """Made-up sentences."""
        language = PlantedSentences.make(WORDS)
        graph = language.graph(folder, SENTENCES)
        spoken = [language.sentence(seed, SECONDS) for seed in range(1, UTTERANCES + 1)]
        return cls(
            graph,
            language.lang.words,
            [sentence.scores * PLANTED_SCALE for sentence in spoken],
            [" ".join(sentence.words) for sentence in spoken],
            f"made-up sentences of {WORDS} words",
        )

    @classmethod
    def of_run(cls, run: Path) -> "Material":
        """Utterances of the first decoded split of a run directory, evenly chosen."""
        folder = run / "decode" / "lstm_ce"
        splits = sorted(path.parent.name for path in folder.glob("*/text"))
        if not splits:
            raise BenchmarkError(f"{run}: no LSTM was decoded there ({VARIABLE} names it)")
        fbank = run / "fbank"
        scorer = NeuralScorer(run / "lstm_ce", fbank / "normaliser.json", fbank / splits[0])
        tuned = folder / "first_pass" / "tuned.json"
        scale = json.loads(tuned.read_text("utf-8"))["acoustic_scale"]
        ids = scorer.store.ids
        ids = ids[:: max(1, len(ids) // UTTERANCES)][:UTTERANCES]
        return cls(
            run / "graph.safetensors",
            SymbolTable.read(run / "lang" / "words.txt"),
            [scorer.log_likelihoods(utterance) * scale for utterance in ids],
            [text_of(scorer.store.cut(utterance)) for utterance in ids],
            f"{splits[0]} of {run.name}",
        )


class _Task:
    """The utterances, and what each case has recognised."""

    def __init__(self, material: Material) -> None:
        self.material = material
        self.seconds = sum(map(len, material.scores)) / FRAMES_PER_SECOND
        self.found: dict[str, list[list[int]]] = {}
        self._graph = load_graph(material.graph)

    def case(self, name: str, beam: float, decode: Callable[[float], list[list[int]]]) -> Case:
        """A contestant: beam -> the word ids of every utterance."""

        def run() -> float:
            self.found[name] = decode(beam)
            return self.seconds

        return Case(name, run)

    def ours(self, beam: float) -> list[list[int]]:
        """Decode as the recipes do."""
        config = DecodeConfig(beam=Beam(beam, LATTICE_BEAM, max_active=MAX_ACTIVE))
        found = []
        for scores in self.material.scores:
            lattice, _ = search_widening(scores, self._graph, config.beams())
            best = lattice and ScoredLattice(lattice, scores, 1.0).best_words(Weights(1.0))
            found.append(best or [])
        return found

    def wer(self, found: list[list[int]]) -> float:
        """The error rate in percent."""
        numbers = [str(i) for i in range(len(found))]
        hypotheses = [" ".join(map(self.material.words.symbol, words)) for words in found]
        references = dict(zip(numbers, self.material.references, strict=True))
        return score(references, dict(zip(numbers, hypotheses, strict=True))).percent

    def description(self) -> str:
        """What is measured."""
        states = self._graph.shape[1] or self._graph.arcs.shape().tot_size(1)
        return (
            f"{len(self.material.scores)} utterances of {self.material.name},"
            f" {self.seconds / 60:.1f} min; graph of {states:,} states, {self._graph.num_arcs:,}"
            f" arcs; at most {MAX_ACTIVE} states per frame; seconds of processor time."
        )
