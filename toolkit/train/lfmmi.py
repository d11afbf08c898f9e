"""Lattice-free MMI: training an acoustic model from scratch (Povey et al. 2016)."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_high
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from toolkit.features.config import LOW_RATE_FACTOR
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import FeatureStore
from toolkit.fsa.denominator import Denominator
from toolkit.fsa.fst import Lattice
from toolkit.fsa.lfmmi import lfmmi
from toolkit.fsa.numerator import Chunk, NumeratorMaker, PhoneSupervision, PhoneTimes
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.models.scorer import save_priors
from toolkit.models.store import make_model, save_model
from toolkit.train.batches import (
    Batch,
    CorpusBatches,
    ShardGroup,
    ShardGroups,
    UtteranceSampler,
    collate,
)
from toolkit.train.checkpoints import finish_training, finished_headline, training_identity
from toolkit.train.config import (
    LfmmiChunkConfig,
    LfmmiConfig,
    WholeUtteranceConfig,
)
from toolkit.train.corpus import (
    Alignments,
    DataSplit,
    open_corpora,
    split_by_speaker,
)
from toolkit.train.errors import TrainingDataError
from toolkit.train.monitor import Progress
from toolkit.train.specaugment import masked, view_divergence
from toolkit.train.trainer import fit

logger = logging.getLogger(__name__)
MAX_WITHOUT_NUMERATOR = 200
"""Training fails after this many chunks without a numerator if no chunk has had one."""


class Phones(Protocol):
    """The phones of a store's utterances, such as `AlignedPhones`."""

    transcribed: bool
    """Whether the phones come from transcripts, so that a network can be validated on them."""

    @property
    def ids(self) -> Sequence[str]:
        """The utterances whose phones are known."""

    def load(self, name: str) -> PhoneSupervision:
        """Read the phones of an utterance."""


class AlignedPhones:
    """The phones of transcribed utterances that were aligned.

    Args:
      states: the state id of every raw frame.
      topology: topology of `states`.
    """

    transcribed = True

    def __init__(self, states: Alignments, topology: Topology) -> None:
        self._states = states
        self._topology = topology

    @property
    def ids(self) -> Sequence[str]:
        """The aligned utterances."""
        return self._states.ids

    def load(self, name: str) -> PhoneTimes:
        """Read an utterance's alignment."""
        return PhoneTimes.of(self._states.load(name), self._topology)


def split_transcribed(
    features: Sequence[FeatureStore], phones: Sequence[Phones], number: int, seed: int = 0
) -> DataSplit:
    """Hold out transcribed utterances, and leave out recognised ones of held-out speakers.

    Recognised utterances are never held out: on them a network's score would only show how far it
    agrees with the recogniser.

    Args:
      features: stores of raw features.
      phones: the phones of each store's utterances.
      number: utterances to hold out, see `toolkit.train.corpus.split_by_speaker`.
      seed: seed of the choice.

    Raises:
      TrainingDataError: two stores have an utterance of the same id.
    """
    times = Counter(name for store in features for shard in store.shards for name in shard)
    if twice := sorted(name for name, count in times.items() if count > 1):
        raise TrainingDataError(
            f"{len(twice)} utterance ids, such as {twice[0]}, are in two feature stores: rename"
            " them, so that each utterance to train on has a different id"
        )
    pairs = list(zip(features, phones, strict=True))
    # Only the transcribed utterances decide which speakers are held out.
    speakers = {
        name: store.speaker(name)
        for store, store_phones in pairs
        if store_phones.transcribed
        for shard in store.shards
        for name in shard
    }
    split = split_by_speaker(speakers, number, seed)
    recognised = {
        name
        for store, store_phones in pairs
        if not store_phones.transcribed
        for name in store_phones.ids
        if store.speaker(name) not in split.speakers
    }
    return replace(split, train=split.train | recognised)


@dataclass(frozen=True)
class LfmmiBatch(Batch):
    """Chunks with their numerators; rows have context that is not scored on either side."""

    numerators: tuple[Lattice, ...] = ()
    """The numerator of each row, on the CPU even if the batch is not. Empty if no chunk has one;
    then no frame is scored."""
    left_context: int = 0
    """Index of the frame with which the chunk begins, in every row."""
    chunk_lengths: torch.Tensor = torch.empty(0)
    """[N] int64 on the CPU, scored frames of each row."""
    ids_without_numerator: tuple[str, ...] = ()
    """The utterances whose chunks were left out."""
    views: int = 1
    """Number of views of each chunk, all counted in `frames`: with two views of N chunks, rows n
    and n + N are the same chunk."""

    @staticmethod
    def of_views(views: "Sequence[LfmmiBatch]") -> "LfmmiBatch":
        """Join batches of the same chunks, one per view."""
        first, several = views[0], len(views)
        return replace(
            first,
            ids=first.ids * several,
            inputs=torch.cat([view.inputs for view in views]),
            targets=first.targets.repeat(several, 1),
            weights=first.weights.repeat(several, 1),
            lengths=first.lengths.repeat(several),
            frames=first.frames * several,
            numerators=first.numerators * several,
            chunk_lengths=first.chunk_lengths.repeat(several),
            views=several,
        )


class LfmmiChunkSampler(UtteranceSampler):
    """Shuffled chunks of utterances with their numerators; see `UtteranceSampler`.

    Chunks that have no numerator are left out of their batch, which names their utterances.

    Args:
      config: lengths and batch size.
      lookahead: frames of input beyond the last output.
      supervisions: the phones of each utterance.
      maker: makes the numerators.
    """

    def __init__(
        self,
        config: LfmmiChunkConfig,
        lookahead: int,
        supervisions: Mapping[str, PhoneSupervision],
        maker: NumeratorMaker,
    ) -> None:
        cut = WholeUtteranceConfig(batch_frames=config.batch_frames, max_frames=config.max_frames)
        super().__init__(cut, lookahead)
        self._left_context = config.left_context
        self._right_context = config.right_context
        self._supervisions = supervisions
        self._maker = maker

    def collate(self, group: ShardGroup, rows: np.ndarray) -> LfmmiBatch:
        """Make the batch of some rows; chunks without a numerator are left out.

        If no chunk has a numerator, all rows stay, with weight 0. Numerators are made here, in the
        thread that loads batches ahead.
        """
        # rows [N, 3]: utterance, first frame and number of frames of each chunk
        ids = [group.names[u] for u in rows[:, 0]]
        numerators = [
            self._maker.lattice(self._supervisions[name], Chunk(group.offset, start, length))
            for name, (_, start, length) in zip(ids, rows.tolist(), strict=True)
        ]
        # None: the chunk's phones have no path through the denominator.
        usable = [n for n, numerator in enumerate(numerators) if numerator is not None]
        batch = collate(
            group,
            rows[usable] if usable else rows,
            left_context=self._left_context,
            right_context=self._right_context,
            lookahead=self._lookahead,
        )
        return LfmmiBatch(
            **{
                **vars(batch),
                "weights": batch.weights * bool(usable),
                "frames": batch.frames if usable else 0,
            },
            numerators=tuple(numerators[n] for n in usable),
            left_context=self._left_context,
            chunk_lengths=torch.from_numpy((rows[usable] if usable else rows)[:, 2].copy()),
            ids_without_numerator=tuple(
                name for name, numerator in zip(ids, numerators, strict=True) if numerator is None
            ),
        )


class LfmmiBatches(CorpusBatches):
    """Batches of a corpus's chunks, with warnings about chunks that have no numerator.

    See `CorpusBatches`. Iterating over the object itself yields the batches of epoch 0, for
    validation.
    """

    def __init__(self, groups: ShardGroups, sampler: LfmmiChunkSampler, seed: int) -> None:
        super().__init__(groups, sampler, seed)
        self._warned: set[str] = set()
        self._without = self._with = 0  # chunks without and with a numerator so far

    def __iter__(self) -> Iterator[LfmmiBatch]:
        return self.batches(0)

    def batches(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[LfmmiBatch]:
        """Implement `BatchSource.batches`.

        Raises:
          TrainingDataError: no chunk has had a numerator, after an epoch or
            `MAX_WITHOUT_NUMERATOR` chunks.
        """
        for batch in super().batches(epoch, start, rank, world_size):
            self._without += len(batch.ids_without_numerator)
            self._with += len(batch.numerators)
            self._warn(batch.ids_without_numerator)
            # A denominator made from other alignments is detected early, not after an epoch without
            # learning.
            if self._without >= MAX_WITHOUT_NUMERATOR:
                self._require_some()
            yield batch
        if start == 0 and world_size == 1:
            self._require_some()

    def _require_some(self) -> None:
        """Raise an error if no chunk so far has a numerator."""
        if self._without and not self._with:
            raise TrainingDataError(
                f"in all {self._without} chunks, such as those of {min(self._warned)}, the phones"
                " have no path through the denominator graph. Make this graph from the alignments"
                " of the training data"
            )

    def _warn(self, ids: Sequence[str]) -> None:
        """Warn about utterances with chunks without a numerator, naming each utterance once."""
        if names := sorted(set(ids) - self._warned):
            self._warned.update(names)
            logger.warning(
                "so far, %d of %d chunks were left out, most recently chunks of %s: their phones"
                " have no path through the denominator graph, or the chunks have too few frames",
                self._without,
                self._without + self._with,
                ", ".join(names),
            )


class LfmmiLoss:
    """Minus the LF-MMI criterion, in training plus weighted cross entropy and squared outputs.

    The network has 2 P outputs: the first P are the criterion's scores; the softmax of the others,
    the second head, learns the numerator's posteriors from the same trunk (Povey et al. 2016,
    section 2.7).

    For batches of two views, the loss includes CR-CTC's consistency regularisation (Yao et al.
    2024): `consistency` times the divergence of the second head's outputs for each view from those
    for the other view; the latter count as constants in the gradient. The second head takes the
    place of CTC's outputs, as it has a distribution over the pdfs for each frame.

    `stats`: `weight`, the scored frames; `objective`, the criterion, boosted in training;
    `cross_entropy`; `divergence`, of batches of two views.

    Args:
      denominator: denominator of P pdfs.
      leak: coefficient of the leaky HMM.
      cross_entropy: weight of the second head's cross entropy.
      l2: weight of half the squared norm of a frame's scores.
      consistency: weight of the divergence between two views of a chunk.
      boost: boost of boosted MMI, used only in training; see `toolkit.fsa.lfmmi.lfmmi`.
    """

    def __init__(
        self,
        denominator: Denominator,
        leak: float,
        cross_entropy: float,
        l2: float,
        consistency: float = 0.0,
        boost: float = 0.0,
    ) -> None:
        self._denominator = denominator
        self._leak = leak
        self._cross_entropy = cross_entropy
        self._l2 = l2
        self._consistency = consistency
        self._boost = boost

    def __call__(self, model: nn.Module, batch: LfmmiBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Implement `Objective.__call__`."""
        if not batch.numerators:
            return _zero_loss(model)
        logits, _ = model(batch.inputs, lengths=batch.lengths)
        # Frames around a chunk are the network's context; the criterion uses only the chunk.
        frames = int(batch.chunk_lengths.max())
        scored = slice(batch.left_context, batch.left_context + frames)
        # Two heads, [N, T, P] each: the criterion's scores, and the logits of cross entropy.
        scores, cross_entropy_logits = logits[:, scored].float().chunk(2, dim=2)
        result = lfmmi(
            scores,
            batch.chunk_lengths,
            batch.numerators,
            self._denominator,
            self._leak,
            self._boost if model.training else 0.0,
        )
        # Loss of a chunk with scores y_t and numerator posteriors g_t, both over the pdfs:
        #   -(log p(numerator) - log p(denominator)) - w_ce sum_t g_t log softmax(z_t)
        #   + w_l2 / 2 sum_t |y_t|^2
        # Only the first term is that of held-out data.
        objective = result.objective.sum()
        log_probs = cross_entropy_logits.log_softmax(dim=2)
        cross_entropy = -(result.numerator_posteriors * log_probs).sum()
        loss = -objective
        if model.training:
            squares = scores.square().sum(dim=2) * batch.weights[:, scored]
            loss = loss + self._cross_entropy * cross_entropy + self._l2 / 2 * squares.sum()
        stats = {
            "weight": torch.full((), float(batch.frames), device=scores.device),
            "objective": objective.detach(),
            "cross_entropy": cross_entropy.detach(),
        }
        if model.training and batch.views == 2:
            # The rows are N chunks in one view, then the same in the other.
            divergence = view_divergence(log_probs, batch.chunk_lengths)
            loss = loss + self._consistency * divergence
            stats["divergence"] = divergence.detach()
        return loss, stats


def _zero_loss(model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a loss with gradients of 0, and a weight of 1: the loss is divided by the weight."""
    # Every parameter takes part, so that all have gradients, like those of the other ranks.
    loss = sum(0.0 * parameter.sum() for parameter in model.parameters())
    unit, zero = torch.ones((), device=loss.device), torch.zeros((), device=loss.device)
    return loss, {"weight": unit, "objective": zero, "cross_entropy": zero}


def train_lfmmi(
    features: Sequence[FeatureStore],
    phones: Sequence[Phones],
    senones: Senones,
    denominator: Denominator,
    normaliser: Cmvn,
    config: LfmmiConfig,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train a network on aligned or recognised phones, or continue what a killed run left in `out`.

    Writes into `out` what `train_cross_entropy` does. The outputs are log-likelihoods up to a
    constant for each frame, without priors: those of `priors.json` are all equal.

    Args:
      features: stores of raw features.
      phones: phones for each store; utterances are held out only from transcribed speech
        (`AlignedPhones`).
      senones: senones of the network, at the low frame rate.
      denominator: denominator of the same senones.
      normaliser: normaliser of the raw features.
      config: sizes, schedule, seed.
      out: folder of this training alone.
      device: where to train.
      progress: called from time to time with (steps done, steps in all).

    Returns:
      `objective`, the model's criterion per frame on held-out data (without held-out data: the last
      epoch's on the training data, boosted), `frames_per_second`, `utterances`,
      `held_out_speakers`.

    Raises:
      TrainingDataError: stores do not belong together, or too little is left of them.
      TrainingError: the loss is not finite, or `out` holds a training with other settings.
    """
    out = Path(out)
    digest = hashlib.sha256(denominator.weight.tobytes() + denominator.pdf.tobytes()).hexdigest()
    identity = training_identity(config, num_targets=senones.num_pdfs, denominator=digest)
    headline = finished_headline(out, identity)
    if headline is not None:
        return headline
    # 1. The data: chunks with the numerators of their phones.
    split = split_transcribed(features, phones, config.valid_utterances, config.valid_seed)
    sources = list(zip(features, phones, strict=True))
    corpora = open_corpora(sources, normaliser, None, config, out, split=split)
    train, held_out = corpora.train, corpora.valid
    sampler = LfmmiChunkSampler(
        config.chunks,
        config.model.lookahead,
        train.supervisions | held_out.supervisions,
        NumeratorMaker(senones, denominator, config.tolerance),
    )
    data, valid = (
        LfmmiBatches(
            ShardGroups(corpus, config.chunks.shuffle_frames, config.seed), sampler, config.seed
        )
        for corpus in (train, held_out)
    )
    # 2. The network. The seed is set just before it is made, so that the initial weights do not
    # depend on what was drawn earlier.
    input_dim = LOW_RATE_FACTOR * train.load(train.utterances[0])[0].shape[1]
    outputs = 2 * senones.num_pdfs  # two heads, see `LfmmiLoss`
    torch.manual_seed(config.seed)
    model = make_model(replace(config.model, input_dim=input_dim, output_dim=outputs))
    logger.info(
        "training on %d utterances (%d more are held out) with %d targets and a denominator graph"
        " of %d states and %d transitions",
        len(train.utterances),
        len(held_out.utterances),
        senones.num_pdfs,
        denominator.num_states,
        len(denominator.source),
    )
    # 3. Training; the second head is dropped afterwards.
    result = fit(
        model,
        LfmmiLoss(
            denominator,
            config.leak,
            config.cross_entropy,
            config.l2,
            config.consistency,
            config.boost,
        ),
        masked(data, config.specaugment, config.seed, views=2 if config.consistency else 1),
        config,
        out,
        device=device,
        valid=valid if held_out.utterances else None,
        identity=identity,
        progress=progress,
    )
    save_model(out, first_head(model))
    # Outputs are log-likelihoods up to a constant: equal priors leave them as they are.
    save_priors(out, torch.ones(senones.num_pdfs, dtype=torch.int64))
    headline = {
        "objective": result.score if held_out.utterances else result.history[-1]["objective"],
        "frames_per_second": median_high(r["frames_per_second"] for r in result.history),
        "utterances": len(train.utterances),
        "held_out_speakers": corpora.held_out_speakers,
    }
    return finish_training(out, identity, headline)


def first_head(model: nn.Module) -> nn.Module:
    """Return the network with the first half of its outputs alone, on the CPU."""
    # The output layer is the last one; all other shapes are equal, and are copied whole.
    narrow = make_model(replace(model.config, output_dim=model.config.output_dim // 2))
    shapes = narrow.state_dict()
    weights = {
        name: value.detach().cpu()[: len(shapes[name])] if value.dim() else value.cpu()
        for name, value in model.state_dict().items()
    }
    narrow.load_state_dict(weights)
    return narrow
