"""sMBR on a device: the criterion on lattices, beside whole training steps with and without it."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.limits import Gemm, flops_per_frame, synchronise
from benchmarks.run import Case, Table, compare
from benchmarks.synthetic import SyntheticSentences
from toolkit.decode.config import LatticeConfig
from toolkit.decode.denominators import search
from toolkit.fsa.config import Criterion
from toolkit.fsa.discriminative import PdfClasses, sequence_objective
from toolkit.fsa.fst import Lattice, load_fst
from toolkit.fsa.lattice_store import GraphCodec, GraphInfo, LatticeStore, write_lattices
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel, with_lookahead
from toolkit.train.config import TrainerConfig
from toolkit.train.cross_entropy import cross_entropy
from toolkit.train.sequence import LatticeBatch, SequenceLoss
from toolkit.train.trainer import Trainer

UTTERANCES = 64
SECONDS = 10.0
WORDS = 2000
BATCH = 8
REPEATS = 3
CONFIG = LatticeConfig(acoustic_scale=0.4)

LIMIT = "GEMM limit, bfloat16"
CRITERION = "sMBR, forward and backward"
CE_STEP = "training step, cross entropy, bfloat16"
SMBR_STEP = "training step, sMBR, bfloat16"


def measure(device: str, network: LstmConfig = LstmConfig()) -> Table:  # noqa: B008 - frozen
    """Measure low-rate frames per second of wall time, on lattices of synthetic sentences.

    Args:
      device: where network and criterion compute.
      network: its sizes (C6), except the outputs, which are the synthetic language's pdfs.
    """
    where = torch.device(device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = _Task(folder, network)
        config = task.network
        per_frame = flops_per_frame(config)
        gemm = Gemm(where, torch.bfloat16, per_frame)
        criterion = Criterion(acoustic_scale=CONFIG.acoustic_scale)
        classes, flat = task.classes.to(where), torch.zeros(config.output_dim, device=where)
        objective = SequenceLoss(criterion, classes, flat, smoothing=0.1)
        smbr = _trainer(config, objective, task, folder / "smbr", where)
        entropy = _trainer(config, cross_entropy, task, folder / "ce", where)
        scores = [batch.log_likelihoods.to(where) for batch in task.batches]

        # Gradients with respect to the scores alone: no network.
        def criteria() -> None:
            for batch, log_likelihoods in zip(task.batches, scores, strict=True):
                leaf = log_likelihoods.detach().requires_grad_()
                value = sequence_objective(
                    batch.lattices, leaf, batch.references, criterion, classes
                )
                value.objective.sum().backward()

        training = [batch.training for batch in task.batches]
        if where.type == "cuda":
            training = [batch.pin() for batch in training]

        def steps(trainer: Trainer) -> Callable[[], None]:
            def take() -> None:
                for batch in training:
                    trainer.train_step(batch.to(where))

            return take

        def case(title: str, function: Callable[[], object]) -> Case:
            def run() -> float:
                function()
                synchronise(where)
                return float(task.frames)

            return Case(title, run)

        def limit() -> float:
            amount = gemm.run()
            synchronise(where)
            return amount

        table = compare(
            [
                Case(LIMIT, limit),
                case(CRITERION, criteria),
                case(CE_STEP, steps(entropy)),
                case(SMBR_STEP, steps(smbr)),
            ],
            unit="frames",
            baseline=LIMIT,
            repeats=REPEATS,
            title=f"sMBR of {config.layers} x {config.hidden} on {device}",
        )
    seconds = {row.name: 1 / row.rate for row in table.rows}  # per frame
    # A step with sMBR has the same network passes as one with cross entropy, then the criterion.
    share = 1 - seconds[CE_STEP] / seconds[SMBR_STEP]
    return table.with_notes(
        f"{UTTERANCES} synthetic utterances of {SECONDS:g} s, {BATCH} per step,"
        f" {task.arcs:.1f} arcs per frame, {config.output_dim} pdfs;"
        f" {per_frame / 1e6:.0f} MFLOP per frame,"
        f" GEMM {per_frame / seconds[LIMIT] / 1e12:.3g} TFLOP/s.",
        "Share of the bfloat16 limit: cross entropy"
        f" {100 * seconds[LIMIT] / seconds[CE_STEP]:.1f} %,"
        f" sMBR {100 * seconds[LIMIT] / seconds[SMBR_STEP]:.1f} %.",
        f"{100 * share:.0f} % of a step with sMBR is work that a step with cross entropy does not"
        " need; the criterion alone takes"
        f" {100 * seconds[CRITERION] / seconds[SMBR_STEP]:.0f} % of the step.",
    )


class _Prepared:
    """A batch in the forms that the cases need."""

    def __init__(
        self,
        lattices: list[Lattice],
        references: list[Tensor],
        scores: list[Tensor],
        config: LstmConfig,
    ) -> None:
        lengths = torch.tensor([len(row) for row in references])
        rows = [
            with_lookahead(torch.randn(len(row), config.input_dim), config.lookahead)
            for row in references
        ]
        self.lattices, self.references = lattices, references
        self.log_likelihoods = pad_sequence(scores, batch_first=True)
        self.training = LatticeBatch(
            ids=[str(n) for n in range(len(references))],
            inputs=pad_sequence(rows, batch_first=True),
            targets=pad_sequence(references, batch_first=True),
            # [N, T]: 1 for the frames of an utterance, 0 for its padding.
            weights=(torch.arange(int(lengths.max())) < lengths[:, None]).float(),
            lengths=lengths,
            frames=int(lengths.sum()),
            lattices=lattices,
        )


class _Task:
    """Synthetic utterances with their lattices.

    The trainer uses it as a source only to count steps; the batches are passed one by one.
    """

    def __init__(self, folder: Path, network: LstmConfig) -> None:
        language = SyntheticSentences.make(WORDS)
        spoken = [language.sentence(seed, SECONDS) for seed in range(UTTERANCES)]
        # Longest first, so that the utterances of a batch need little padding.
        spoken.sort(key=lambda sentence: -len(sentence.pdfs))
        path = language.graph(folder)
        graph = load_fst(path)
        searched = [
            search(CONFIG.acoustic_scale * sentence.scores, graph, CONFIG)[0] for sentence in spoken
        ]
        lattices_by_name = {
            f"{n:04d}": lattice for n, lattice in enumerate(searched) if lattice is not None
        }
        codec = GraphCodec(path)
        write_lattices(codec.path(folder, 0), lattices_by_name, codec, GraphInfo())
        # Read back from shards, as in training: stored lattices are what the criterion gets.
        store = LatticeStore(folder, codec)
        pairs = [(store.load(name), spoken[int(name)]) for name in lattices_by_name]
        self.classes = PdfClasses.of(language.senones)
        sizes = {**vars(network), "output_dim": language.senones.num_pdfs}
        self.network = LstmConfig(**sizes)
        self.frames = sum(len(sentence.pdfs) for _, sentence in pairs)
        # Arcs that read a frame (label above 0), per frame.
        self.arcs = sum(int((x.labels > 0).sum()) for x, _ in pairs) / self.frames
        self.batches = [
            self._batch(pairs[first : first + BATCH]) for first in range(0, len(pairs), BATCH)
        ]

    def _batch(self, group: Sequence[tuple]) -> _Prepared:
        """Prepare a batch in the forms that the cases need."""
        lattices, sentences = [x for x, _ in group], [sentence for _, sentence in group]
        references, scores = (
            [sentence.pdfs for sentence in sentences],
            [sentence.scores for sentence in sentences],
        )
        return _Prepared(lattices, references, scores, self.network)

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        return len(self.batches) // world_size


def _trainer(
    config: LstmConfig, objective: object, task: _Task, out: Path, device: torch.device
) -> Trainer:
    """Make a trainer of an LSTM in bfloat16."""
    settings = TrainerConfig(amp="bf16")
    return Trainer(LstmModel(config).train(), objective, task, settings, out, device=device)
