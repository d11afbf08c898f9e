"""Steps of training with lattice-free MMI on noise, and what its criterion takes of them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.noise_features import NoiseFeatures
from toolkit.align.store import LowRateAlignments
from toolkit.fsa.denominator import make_denominator
from toolkit.fsa.lfmmi import lfmmi
from toolkit.fsa.numerator import NumeratorMaker, PhoneTimes
from toolkit.fsa.phone_ngram import PhoneNgramConfig, phone_ngram
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.models.tdnnf import TdnnfConfig, TdnnfModel
from toolkit.processes.devices import to_device
from toolkit.train.config import TrainerConfig
from toolkit.train.corpus import Corpus
from toolkit.train.lfmmi.data import PieceBatch, PieceConfig, Pieces
from toolkit.train.lfmmi.objective import LfmmiObjective
from toolkit.train.loop import Trainer
from toolkit.train.prefetch import batches_ahead
from toolkit.train.windows import Windows

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
    def __init__(self, states: dict[str, Tensor]) -> None:
        self.ids = list(states)
        self._states = states

    def load(self, name: str) -> Tensor:
        return self._states[name]


def _spoken(frames: int) -> Tensor:
    """States [T] of phones of 60 to 150 ms, each followed by one of a few."""
    phones, spans = [0], torch.randint(6, 16, (frames,))
    for step in torch.randint(1, 1 + FOLLOWERS, (frames,)).tolist():
        phones.append((phones[-1] + step) % PHONES)
    return torch.tensor(phones[:frames]).repeat_interleave(spans)[:frames]


class LatticeFreeSteps:
    """Training steps of a TDNN-F on pieces of 1.5 s.

    Args:
      network: its sizes; those of its outputs are taken from the denominator.
      utterances: number of utterances.
      frames: raw frames of each.
      steps: that `run` takes.
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
        sentences = [found.phones.tolist() for found in times.values()]
        self.denominator = make_denominator(phone_ngram(sentences, PhoneNgramConfig(3)), senones)
        aligned = LowRateAlignments(noise.states, noise.topology, senones)
        corpus = Corpus([(noise, aligned)], noise, senones.num_pdfs)
        cut = PieceConfig(left_context=network.context, right_context=network.context)
        maker = NumeratorMaker(senones, self.denominator, tolerance=5)
        source = Pieces(Windows(corpus, cut.window, 0), times, maker, cut, 0, seed=0)
        outputs = {"output_dim": 2 * senones.num_pdfs}
        model = TdnnfModel(TdnnfConfig(**{**vars(network), **outputs})).train()
        objective = LfmmiObjective(self.denominator, LEAK, cross_entropy=0.1, l2=5e-5)
        self._trainer = Trainer(model, objective, source, TrainerConfig(), out, device=device)
        self.model = self._trainer.model
        """The network that is trained."""
        self._batches = batches_ahead(_endless(source), device)
        self._steps, self._device = steps, device

    def run(self) -> float:
        """Take the steps and return their scored frames."""
        frames = 0
        for _ in range(self._steps):
            batch = self.next_batch()
            self._trainer.update(batch)
            frames += batch.frames
        return float(frames)

    def next_batch(self) -> PieceBatch:
        """The next batch, with its numerators, on the device."""
        return next(self._batches).to(self._device)


class CriterionAlone:
    """Forward-backward of numerators and denominator for random scores, without a network."""

    def __init__(self, steps: LatticeFreeSteps) -> None:
        self._batch, self._denominator = steps.next_batch(), steps.denominator
        rows, frames = len(self._batch.ids), int(self._batch.piece_lengths.max())
        pdfs = 1 + int(self._denominator.pdf.max())
        self.scores = to_device(torch.randn(rows, frames, pdfs), self._batch.inputs.device)
        """[N, T, P] the random scores; `run` adds to their gradient."""

    def run(self) -> float:
        """Compute value and gradient of one batch, and return its frames."""
        batch, scores = self._batch, self.scores.requires_grad_()
        found = lfmmi(scores, batch.piece_lengths, batch.numerators, self._denominator, LEAK)
        found.objective.sum().backward()
        return float(batch.frames)


def _endless(source: Pieces) -> Iterator[PieceBatch]:
    epoch = 0
    while True:
        yield from source.batches(epoch)
        epoch += 1
