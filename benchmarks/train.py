"""Training throughput of the networks, for the LSTM relative to the GEMM limit."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.limits import Gemm, flops_per_frame, size_on, synchronised
from benchmarks.run import Case, Table, Target, compare, rate_ratio
from benchmarks.synthetic import NoiseFeatures
from toolkit.align.store import LowRateAlignments
from toolkit.features.low_frame_rate import centre, stack
from toolkit.fsa.config import PhoneNgramConfig
from toolkit.fsa.denominator import make_denominator, phone_ngram
from toolkit.fsa.lfmmi import lfmmi
from toolkit.fsa.numerator import NumeratorMaker, PhoneTimes
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.models.config import LstmConfig, TdnnfConfig
from toolkit.models.lstm import LstmModel, with_lookahead
from toolkit.models.tdnnf import TdnnfModel
from toolkit.processes.devices import choose_device, to_device
from toolkit.train.batches import (
    Batch,
    ChunkSampler,
    CorpusBatches,
    ShardGroups,
    UtteranceSampler,
    load_ahead,
    prefetched,
)
from toolkit.train.config import ChunkConfig, LfmmiChunkConfig, TrainerConfig, WholeUtteranceConfig
from toolkit.train.corpus import Corpus
from toolkit.train.cross_entropy import cross_entropy
from toolkit.train.lfmmi import LfmmiBatch, LfmmiBatches, LfmmiChunkSampler, LfmmiLoss
from toolkit.train.trainer import Trainer

PHONES = 40
FOLLOWERS = 6  # of each phone
LEAK = 0.1


class _Utterances(NoiseFeatures):
    """Features and state alignments of a corpus of noise in memory."""

    def __init__(self, dimension: int, utterances: int, frames: int) -> None:
        super().__init__(dimension, utterances, frames)
        # A digit at the end would mark a stress, and phones that differ in it share their pdfs.
        phones = tuple(f"P{i}P" for i in range(PHONES))
        self.topology = Topology(phones, phones[:1], states=1, silence_states=1)
        self.states = _States({name: _spoken(frames) for name in self.ids})


class _States:
    """Alignments in memory."""

    def __init__(self, states: dict[str, Tensor]) -> None:
        self.ids = list(states)
        self._states = states

    def load(self, name: str) -> Tensor:
        return self._states[name]


def _spoken(frames: int) -> Tensor:
    """Return the states [T] of phones of 60 to 150 ms, each followed by one of a few others."""
    phones, spans = [0], torch.randint(6, 16, (frames,))  # 6 to 15 frames of 10 ms
    for step in torch.randint(1, 1 + FOLLOWERS, (frames,)).tolist():
        phones.append((phones[-1] + step) % PHONES)
    return torch.tensor(phones[:frames]).repeat_interleave(spans)[:frames]


class LatticeFreeSteps:
    """Training steps of a TDNN-F on pieces of 1.5 s.

    Args:
      network: its sizes; the number of outputs is taken from the denominator.
      utterances: number of utterances.
      frames: raw frames of each utterance.
      steps: number of steps that `run` takes.
      out: a folder for the trainer.
      device: where to train.
    """

    def __init__(
        self,
        network: TdnnfConfig,
        utterances: int,
        frames: int,
        steps: int,
        out: str,
        device: torch.device,
    ) -> None:
        noise = _Utterances(network.input_dim // 3, utterances, frames)
        senones = Senones.monophone(noise.topology.at_low_rate())
        times = {n: PhoneTimes.of(noise.states.load(n), noise.topology) for n in noise.ids}
        # Denominator: a phone trigram of the same alignments, composed with the topology.
        sentences = [word_times.phones.tolist() for word_times in times.values()]
        self.denominator = make_denominator(phone_ngram(sentences, PhoneNgramConfig(3)), senones)
        aligned = LowRateAlignments(noise.states, noise.topology, senones)
        corpus = Corpus([(noise, aligned)], noise, senones.num_pdfs)
        cut = LfmmiChunkConfig(left_context=network.context, right_context=network.context)
        maker = NumeratorMaker(senones, self.denominator, tolerance=5)
        sampler = LfmmiChunkSampler(cut, 0, times, maker)
        source = LfmmiBatches(ShardGroups(corpus, cut.shuffle_frames, 0), sampler, seed=0)
        # Half of the outputs are for LF-MMI, half for the cross entropy that regularises it.
        outputs = {"output_dim": 2 * senones.num_pdfs}
        model = TdnnfModel(TdnnfConfig(**{**vars(network), **outputs})).train()
        objective = LfmmiLoss(self.denominator, LEAK, cross_entropy=0.1, l2=5e-5)
        self._trainer = Trainer(model, objective, source, TrainerConfig(), out, device=device)
        self.model = self._trainer.model
        """The network that is trained."""
        self._batches = load_ahead(_endless_chunks(source), device)
        self._steps, self._device = steps, device

    def run(self) -> float:
        """Take the steps and return their scored frames."""
        frames = 0
        for _ in range(self._steps):
            batch = self.next_batch()
            self._trainer.train_step(batch)
            frames += batch.frames
        return float(frames)

    def next_batch(self) -> LfmmiBatch:
        """Return the next batch, with its numerators, on the device."""
        return next(self._batches).to(self._device)


class CriterionAlone:
    """Forward-backward of numerators and denominator for random scores, without a network."""

    def __init__(self, steps: LatticeFreeSteps) -> None:
        self._batch, self._denominator = steps.next_batch(), steps.denominator
        rows, frames = len(self._batch.ids), int(self._batch.chunk_lengths.max())
        pdfs = 1 + int(self._denominator.pdf.max())
        self.scores = to_device(torch.randn(rows, frames, pdfs), self._batch.inputs.device)
        """[N, T, P] the random scores; `run` adds to their gradient."""

    def run(self) -> float:
        """Compute value and gradient of one batch, and return its frames."""
        batch, scores = self._batch, self.scores.requires_grad_()
        result = lfmmi(scores, batch.chunk_lengths, batch.numerators, self._denominator, LEAK)
        result.objective.sum().backward()
        return float(batch.frames)


def _endless_chunks(source: LfmmiBatches) -> Iterator[LfmmiBatch]:
    """Yield the chunks of one epoch after another."""
    epoch = 0
    while True:
        yield from source.batches(epoch)
        epoch += 1


UTTERANCE_FRAMES = 1200  # 12 s of 10 ms frames, about the mean of LibriSpeech
UTTERANCES = 48
STEPS = {"cpu": 2, "cuda": 100}
LARGE_BATCHES = (156, 312)  # a quarter and a half of the chunks of UTTERANCES

LIMIT = "GEMM limit, float32"
LIMIT16 = "GEMM limit, bfloat16"
CHUNKS = "chunks of 32 frames, batch 64, float32"
CHUNKS16 = "chunks of 32 frames, batch 64, bfloat16"
LOOP = "plain loop, whole utterances, batch 1"
LATTICE_FREE = "LF-MMI, TDNN-F, pieces of 1.5 s, float32"
CRITERION = "its criterion alone"
SMOKE = {"config": LstmConfig(input_dim=12, output_dim=50, hidden=32, layers=2)}
TARGETS = (
    Target("LSTM on chunks, float32: share of the GEMM limit", 0.9, rate_ratio(CHUNKS, LIMIT)),
    Target("LSTM on chunks, bfloat16: share of its own limit", 0.9, rate_ratio(CHUNKS16, LIMIT16)),
)


class _Noise(NoiseFeatures):
    """Features, alignments and normaliser of a corpus of noise in memory."""

    def __init__(self, dimension: int, num_targets: int) -> None:
        super().__init__(dimension, UTTERANCES, UTTERANCE_FRAMES)
        self.alignments = _Targets(self.ids, torch.randint(num_targets, (UTTERANCE_FRAMES,)))


class _Targets:
    """The same targets for every utterance."""

    def __init__(self, ids: list[str], targets: Tensor) -> None:
        self.ids = ids
        self._targets = targets

    def load(self, name: str) -> Tensor:
        return self._targets


def benchmark(
    config: LstmConfig = LstmConfig(),  # noqa: B008 - frozen
    device: str | None = None,
) -> Table:
    """Measure low-rate frames per second of complete training steps (C6, C7), on a GPU if any.

    Loader, chunker, model, loss, clipping and Adam are all included. The ratio of a row is thus the
    fraction of the float32 GEMM rate that training turns into scored frames. The plain loop is the
    obvious implementation: load an utterance, run torch's LSTM, take one step of Adam. For a GPU
    there are also rows with larger batches, which are needed to fill it.

    Lattice-free MMI is measured with a TDNN-F as wide as the LSTM. The ratio of its row has no
    meaning, because the GEMM limit is that of the LSTM. The notes give the criterion's share of a
    step.

    Args:
      config: sizes of the network.
      device: where to train; None: on a GPU if there is one.
    """
    where = torch.device(choose_device(device))
    steps, per_frame = STEPS[where.type], flops_per_frame(config)
    factorised = TdnnfConfig(
        config.input_dim,
        hidden=config.hidden,
        bottleneck=config.hidden // 6,
        final=config.hidden // 4,
    )
    whole = WholeUtteranceConfig()
    with tempfile.TemporaryDirectory() as folder:
        lattice_free = LatticeFreeSteps(
            factorised, UTTERANCES, UTTERANCE_FRAMES, max(1, steps // 2), folder, where
        )
        runs = {
            LIMIT: Gemm(where, torch.float32, per_frame),
            LIMIT16: Gemm(where, torch.bfloat16, per_frame),
            CHUNKS: _Steps(config, None, "fp32", steps, folder, where),
            CHUNKS16: _Steps(config, None, "bf16", steps, folder, where),
            **(_large_batches(config, folder, where) if where.type == "cuda" else {}),
            f"whole utterances, {whole.batch_frames} frames, float32": _Steps(
                config, whole, "fp32", max(1, steps // 4), folder, where
            ),
            LOOP: UtteranceLoop(config, max(1, steps // 4), where),
            "loader and chunker alone": _Loader(config, 10 * steps),
            LATTICE_FREE: lattice_free,
            CRITERION: CriterionAlone(lattice_free),
        }
        cases = [Case(name, synchronised(run, where)) for name, run in runs.items()]
        table = compare(
            cases,
            unit="frames",
            baseline=LIMIT,
            repeats=3,
            title=f"Training {config.layers} x {config.hidden}, {config.input_dim} inputs, "
            f"{config.output_dim} targets, {where.type}",
        )
    rates = {name: table.row(name).rate for name in runs}  # scored low-rate frames per second
    fastest = max((name for name in runs if name.startswith("chunks")), key=lambda x: rates[x])
    # Computed frames per scored frame, and the share of the GEMM limit in scored frames.
    overhead, share = runs[CHUNKS].computed / runs[CHUNKS].scored, table.row(CHUNKS).ratio
    return table.with_notes(
        f"{per_frame / 1e6:.0f} MFLOP per frame. GEMM of {size_on(where)} x {size_on(where)}: "
        f"{rates[LIMIT] * per_frame / 1e9:.0f} GFLOP/s, "
        f"in bfloat16 {rates[LIMIT16] * per_frame / 1e9:.0f}.",
        f"Shares of their own GEMM limits: float32 {100 * share:.0f} %, "
        f"bfloat16 {100 * rates[CHUNKS16] / rates[LIMIT16]:.0f} %; bfloat16 is "
        f"{rates[CHUNKS16] / rates[CHUNKS]:.2f} times as fast. At best {rates[fastest]:.4g} "
        f"frames per second, {100 * rates[fastest] / rates[LIMIT16]:.1f} % of the bfloat16 "
        f"limit: {fastest}.",
        f"For each scored frame {overhead:.3f} are computed, with the look-ahead and the "
        f"padding of short chunks; counting these, float32 is at {100 * overhead * share:.0f} %.",
        f"The criterion takes {100 * rates[LATTICE_FREE] / rates[CRITERION]:.0f} % of a step of "
        f"LF-MMI with {lattice_free.denominator.num_states} states and "
        f"{len(lattice_free.denominator.source)} transitions.",
        f"Chunking is {rates[CHUNKS] / rates[LOOP]:.1f} times as fast as the plain loop.",
    )


def _large_batches(config: LstmConfig, folder: str, device: torch.device) -> dict[str, "_Steps"]:
    """Return training steps with larger batches in bfloat16, by name."""
    return {
        f"chunks of 32 frames, batch {size}, bfloat16": _Steps(
            config,
            None,
            "bf16",
            STEPS["cuda"] // 4,
            folder,
            device,
            ChunkConfig(chunks_per_batch=size),
        )
        for size in LARGE_BATCHES
    }


class _Steps:
    """Training steps on an endless stream of chunks or of whole utterances."""

    def __init__(
        self,
        config: LstmConfig,
        whole: WholeUtteranceConfig | None,
        amp: Literal["fp32", "bf16"],
        steps: int,
        out: str,
        device: torch.device,
        cutting: ChunkConfig = ChunkConfig(),  # noqa: B008 - frozen
    ) -> None:
        source = noise_batches(config, whole or cutting)
        model = LstmModel(config).train()
        settings = TrainerConfig(amp=amp)
        self._trainer = Trainer(model, cross_entropy, source, settings, Path(out), device=device)
        batches = _endless(source)
        if device.type == "cuda":
            batches = (batch.pin() for batch in batches)
        self._batches = prefetched(batches, depth=4)
        self._steps = steps
        self._device = device
        self.scored = self.computed = 0

    def run(self) -> float:
        """Take some steps and return their scored frames."""
        frames = 0
        for _ in range(self._steps):
            batch = next(self._batches)
            self._trainer.train_step(batch.to(self._device))
            frames += batch.frames
            self.scored += batch.frames
            self.computed += batch.inputs.shape[0] * batch.inputs.shape[1]
        return float(frames)


class UtteranceLoop:
    """Training on one utterance at a time with torch's LSTM."""

    def __init__(self, config: LstmConfig, steps: int, device: torch.device) -> None:
        self._noise = _Noise(config.input_dim // 3, config.output_dim)
        self._lookahead = config.lookahead
        self._lstm = nn.LSTM(config.input_dim, config.hidden, config.layers).to(device)
        self._output = nn.Linear(config.hidden, config.output_dim).to(device)
        self.parameters = [*self._lstm.parameters(), *self._output.parameters()]
        """The parameters that are trained."""
        self._optimizer = torch.optim.Adam(self.parameters)
        self._steps = steps
        self._device = device

    def run(self) -> float:
        """Take some steps and return their scored frames."""
        frames = 0
        for name in self._noise.ids[: self._steps]:
            inputs = with_lookahead(stack(self._noise.load(name)), self._lookahead)
            targets = self._noise.alignments.load(name)[centre(UTTERANCE_FRAMES)]
            hidden, _ = self._lstm(inputs.to(self._device)[:, None])
            logits = self._output(hidden[self._lookahead :, 0])
            loss = functional.cross_entropy(logits, targets.to(self._device))
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, 5.0)
            self._optimizer.step()
            frames += len(targets)
        return float(frames)


class _Loader:
    """Loading of batches without training on them."""

    def __init__(self, config: LstmConfig, steps: int) -> None:
        self._batches = _endless(noise_batches(config))
        self._steps = steps

    def run(self) -> float:
        return float(sum(next(self._batches).frames for _ in range(self._steps)))


def noise_batches(
    config: LstmConfig,
    rows: ChunkConfig | WholeUtteranceConfig = ChunkConfig(),  # noqa: B008 - frozen
) -> CorpusBatches:
    """Return the chunks or whole utterances of noise on which the steps are measured."""
    noise = _Noise(config.input_dim // 3, config.output_dim)
    corpus = Corpus([(noise, noise.alignments)], noise, config.output_dim)
    is_whole = isinstance(rows, WholeUtteranceConfig)
    sampler = (UtteranceSampler if is_whole else ChunkSampler)(rows, config.lookahead)
    return CorpusBatches(ShardGroups(corpus, ChunkConfig().shuffle_frames, seed=0), sampler, seed=0)


def _endless(source: CorpusBatches) -> Iterator[Batch]:
    """Yield the batches of one epoch after another."""
    epoch = 0
    while True:
        yield from source.batches(epoch)
        epoch += 1
