"""Training throughput: chunks against whole utterances, as a fraction of the GEMM limit."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from toolkit.bench.harness import Case, Table, compare
from toolkit.models.lstm import LstmConfig, LstmModel
from toolkit.train.batch import Batch
from toolkit.train.chunks import ChunkConfig, Chunks
from toolkit.train.config import TrainerConfig
from toolkit.train.corpus import Corpus
from toolkit.train.loop import Trainer
from toolkit.train.objectives import CrossEntropy
from toolkit.train.prefetch import prefetched

UTTERANCE_FRAMES = 1200  # 12 s of 10 ms frames, about the mean of LibriSpeech
UTTERANCES = 48
GEMM_SIZE = 2048
GEMM_REPEATS = 8
CHUNK_STEPS = 2


class _Noise:
    """Features, alignments and normaliser of a corpus of noise in memory."""

    def __init__(self, dimension: int, num_targets: int) -> None:
        self.ids = [f"utterance-{i}" for i in range(UTTERANCES)]
        self.shards = [self.ids]
        self._features = torch.randn(UTTERANCE_FRAMES, dimension)
        self.alignments = _Targets(self.ids, torch.randint(num_targets, (UTTERANCE_FRAMES,)))

    def num_frames(self, name: str) -> int:
        return UTTERANCE_FRAMES

    def load(self, name: str) -> Tensor:
        return self._features

    def state(self, name: str) -> None:
        return None

    def apply(self, features: Tensor, state: None) -> Tensor:
        return features


class _Targets:
    def __init__(self, ids: list[str], targets: Tensor) -> None:
        self.ids = ids
        self._targets = targets

    def load(self, name: str) -> Tensor:
        return self._targets


def flops_per_frame(config: LstmConfig) -> int:
    """Floating point operations of training on one frame: 2 per weight forward, 4 backward.

    Biases, activations and the look-ahead's extra frames are not counted: they are no use.
    """
    hidden = config.hidden
    first = config.input_dim + hidden
    weights = 4 * hidden * (first + (config.layers - 1) * 2 * hidden) + hidden * config.output_dim
    return 6 * weights


def benchmark(config: LstmConfig = LstmConfig()) -> Table:  # noqa: B008 - frozen
    """Measure low-rate frames per second of complete training steps (C6, C7), float32, on the CPU.

    Loader, chunker, model, loss, clipping and Adam are all in; so the ratio of the chunked row is
    the fraction of the best GEMM rate that training turns into scored frames.
    """
    per_frame = flops_per_frame(config)
    a, b = torch.rand(GEMM_SIZE, GEMM_SIZE), torch.rand(GEMM_SIZE, GEMM_SIZE)

    def gemm() -> float:
        for _ in range(GEMM_REPEATS):
            torch.mm(a, b)
        return GEMM_REPEATS * 2 * GEMM_SIZE**3 / per_frame

    with tempfile.TemporaryDirectory() as folder:
        chunked = _Steps(config, ChunkConfig(), CHUNK_STEPS, Path(folder))
        whole = _Steps(config, ChunkConfig(frames=UTTERANCE_FRAMES // 3, batch=1), 1, Path(folder))
        table = compare(
            [
                Case("GEMM limit", gemm),
                Case("chunks of 32 frames, batch 64", chunked.run),
                Case("whole utterances, batch 1", whole.run),
            ],
            unit="frames",
            baseline="GEMM limit",
            repeats=3,
            title=f"Training {config.layers} x {config.hidden}, {config.input_dim} inputs, "
            f"{config.output_dim} targets",
        )
    gain = table.row("chunks of 32 frames, batch 64").rate
    gain /= table.row("whole utterances, batch 1").rate
    return table.with_notes(
        f"{per_frame / 1e6:.0f} MFLOP per frame; GEMM: {GEMM_SIZE} x {GEMM_SIZE}, "
        f"{table.row('GEMM limit').rate * per_frame / 1e9:.0f} GFLOP/s.",
        f"Chunking is {gain:.1f} times as fast as whole utterances.",
    )


class _Steps:
    """Training steps on endless epochs."""

    def __init__(self, config: LstmConfig, chunks: ChunkConfig, steps: int, out: Path) -> None:
        noise = _Noise(config.input_dim // 3, config.output_dim)
        corpus = Corpus([(noise, noise.alignments)], noise, config.output_dim)
        self._chunks = Chunks(corpus, chunks, config.lookahead, seed=0)
        model = LstmModel(config).train()
        self._trainer = Trainer(model, CrossEntropy(), self._chunks, TrainerConfig(), out)
        self._batches = prefetched(self._epochs(), depth=4)
        self._steps = steps

    def _epochs(self) -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from self._chunks.batches(epoch)
            epoch += 1

    def run(self) -> float:
        """Take some steps and return their scored frames."""
        frames = 0
        for _ in range(self._steps):
            batch = next(self._batches)
            self._trainer.update(batch)
            frames += batch.frames
        return float(frames)
