"""fMLLR adaptation to speakers: transforms estimated from alignments and refined on lattices."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor

from toolkit.align.config import EmConfig
from toolkit.align.em import (
    AlignedUtterances,
    TrainingData,
    aligned_frames,
    partition_utterances,
    speech_frames,
    training_data,
)
from toolkit.features.gmm_features import GmmFeatures, save_transforms
from toolkit.features.shards import map_shards
from toolkit.fsa.config import Beam
from toolkit.fsa.forward_backward import pdf_posteriors
from toolkit.fsa.fst import Fst, load_fst
from toolkit.fsa.search import GraphMismatchError, search_with_retries
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.hmm.transforms import FmllrStatistics, estimate_fmllr

logger = logging.getLogger(__name__)


class SpeakerStatistics:
    """fMLLR statistics of each speaker."""

    def __init__(self, by_speaker: dict[str, FmllrStatistics]) -> None:
        self.by_speaker = by_speaker

    def add(self, part: "SpeakerStatistics") -> None:
        """Add the statistics of other frames."""
        for speaker, statistics in part.by_speaker.items():
            # Statistics are sums over frames, so parts of a speaker add up.
            if speaker in self.by_speaker:
                self.by_speaker[speaker].add(statistics)
            else:
                self.by_speaker[speaker] = statistics


def accumulate_fmllr(partition: AlignedUtterances, system: GmmSystem) -> SpeakerStatistics:
    """Accumulate fMLLR statistics over the speech frames (Kaldi's silence weight 0)."""
    statistics: dict[str, FmllrStatistics] = {}
    aligned = partition.load()
    speakers: dict[str, list[str]] = {}
    for utterance in aligned:
        speakers.setdefault(system.features.speaker(utterance), []).append(utterance)
    for speaker, utterances in speakers.items():
        # Only speech frames that are not digital silence count.
        of_speaker = {u: aligned[u] for u in utterances}
        statistics[speaker] = FmllrStatistics.zeros(system.features.dimension)
        for x, batch, counted in aligned_frames(of_speaker, system.features):
            speech = speech_frames(x, batch, counted, system.senones)
            statistics[speaker].accumulate(system.gmm, *speech)
    return SpeakerStatistics(statistics)


def adapt(data: TrainingData, system: GmmSystem) -> GmmSystem:
    """Estimate an fMLLR transform for every speaker from the current alignments.

    A speaker's earlier transform is refined: another transform is estimated on features to which
    the earlier one has been applied, and the two are composed.
    """
    parts = data.pool.map(partial(accumulate_fmllr, system=system), data.partitions)
    utterances = [[u for u, _ in partition.transcripts] for partition in data.partitions]
    return system.adapted(refined(parts, utterances, system.features))


def refined(
    parts: Iterable[SpeakerStatistics],
    utterances: Sequence[Sequence[str]],
    features: GmmFeatures,
) -> dict[str, Tensor]:
    """Estimate each speaker's new transform [D, D+1] and compose it with the earlier one.

    A speaker without statistics keeps the earlier transform. A speaker's statistics, which take
    half a megabyte, are released after the speaker's last part: if parts are sorted by speaker, few
    statistics are in memory at a time.

    Args:
      parts: statistics of frames that the speakers' earlier transforms have been applied to.
      utterances: the utterances of each part.
      features: GMM features with the earlier transforms.
    """
    # The last part that contains each speaker, and the speakers that end with each part.
    last_part = {features.speaker(u): n for n, names in enumerate(utterances) for u in names}
    last_speakers: dict[int, list[str]] = {}
    for speaker, number in last_part.items():
        last_speakers.setdefault(number, []).append(speaker)
    sums, estimates = SpeakerStatistics({}), {}
    for number, part in enumerate(parts):
        sums.add(part)
        # Estimate the speakers that are complete, and release their statistics.
        for speaker in last_speakers.get(number, []):
            statistics = sums.by_speaker.pop(speaker, None)
            if statistics is not None:
                estimates[speaker] = (*estimate_fmllr(statistics), statistics.beta)
    transforms, gains, frames = dict(features.transforms), 0.0, 0.0
    # W_new = W_estimate W_previous; the gain is averaged over frames.
    for speaker, (estimate, gain, beta) in sorted(estimates.items()):
        previous = features.transforms.get(speaker)
        transforms[speaker] = (
            estimate if previous is None else compose(estimate, previous.double())
        ).float()
        gains, frames = gains + gain * beta, frames + beta
    mean = gains / max(frames, 1)
    logger.info(
        "fMLLR of %d speakers: mean log-likelihood gain of %.3f nats per frame",
        len(estimates),
        mean,
    )
    return transforms


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """Return the transform [D, D+1] that applies `inner` first, then `outer`."""
    # A (B x + c) + d = (A B) x + (A c + d)
    square, offset = outer[:, :-1], outer[:, -1:]
    linear = square @ inner[:, :-1]
    return torch.cat([linear, square @ inner[:, -1:] + offset], dim=1)


def adapt_speakers(
    adapted: GmmSystem,
    independent: GmmSystem,
    hypotheses: Mapping[str, Sequence[str]],
    lang: Path,
    config: EmConfig,
    out: Path,
    jobs: int,
) -> None:
    """Estimate each speaker's fMLLR transform from the hypotheses of a first pass.

    The first estimate uses alignments of the speaker-independent system, the second one alignments
    of the adapted system with the first transforms.

    Args:
      adapted: a system trained with fMLLR, over the utterances' cepstra, without transforms.
      independent: the system of the first pass, over the same cepstra.
      hypotheses: the recognised words of every utterance, in the store's order.
      lang: the folder of the lexicon.
      config: settings of the forced alignments.
      out: the file of the transforms.
      jobs: worker processes.
    """
    folder = out.parent
    with training_data(partition_utterances(hypotheses, folder), lang, config, jobs) as data:
        # First transforms from alignments of the speaker-independent system, second ones from
        # alignments of the adapted system with the first.
        data.realign(independent)
        system = adapt(data, adapted)
        data.realign(system)
        system = adapt(data, system)
    save_transforms(out, system.features.transforms)
    for partition in data.partitions:
        partition.alignments.unlink(missing_ok=True)


SILENCE_WEIGHT = 0.01
"""Weight of the posteriors of silence and noise, as in Kaldi's decode_fmllr.sh."""


@dataclass(frozen=True)
class LatticeSearch:
    """Settings of the search that makes the lattices; picklable."""

    graph: Path
    """The decoding graph of the adapted system."""
    acoustic_scale: float
    """Factor on acoustic log-likelihoods, in the search and in the posteriors."""
    beams: Sequence[Beam]
    """The beams to try, in order."""


def refine_on_lattices(system: GmmSystem, search: LatticeSearch, out: Path, jobs: int) -> None:
    """Re-estimate the transforms from lattices that are decoded with the current ones.

    This is the second estimate of Kaldi's decode_fmllr.sh: every frame counts for each pdf by its
    posterior in the lattice, so that doubtful words count little. Speakers without a lattice keep
    their transforms.

    Args:
      system: a system trained with fMLLR, with the current transforms of `adapt_speakers`.
      search: settings of the decoding pass.
      out: the file of the refined transforms.
      jobs: worker processes.
    """
    accumulate = partial(accumulate_on_lattices, system=system, search=search)
    store = system.features.store
    parts = map_shards(accumulate, store, jobs, "adapt")
    save_transforms(out, refined(parts, store.shards, system.features))


def accumulate_on_lattices(
    shard: tuple[int, Sequence[str]], system: GmmSystem, search: LatticeSearch
) -> SpeakerStatistics:
    """Accumulate the fMLLR statistics of a shard, weighted by lattice posteriors."""
    graph = _graph(search.graph)
    GraphMismatchError.check(graph.top_label, system.gmm.num_pdfs, search.graph)
    weight = _pdf_weights(system)
    sums = SpeakerStatistics({})
    for utterance in shard[1]:
        x = system.features.load(utterance)
        # [T, P] scaled as in decoding, so that the posteriors are those of the decoder's lattice.
        scores = system.gmm.log_likelihoods(x) * search.acoustic_scale
        lattice, _ = search_with_retries(scores, graph, search.beams)
        if lattice is None:
            continue
        # Every frame counts for each pdf by its posterior, and little in silence.
        # [N] each: the (frame, pdf) pairs of the lattice and their posteriors.
        frames, pdfs, posteriors = pdf_posteriors(lattice)
        statistics = FmllrStatistics.zeros(x.shape[1])
        weights = posteriors * weight[pdfs] * system.features.counted(utterance)[frames]
        statistics.accumulate(system.gmm, x[frames], pdfs, weights)
        sums.add(SpeakerStatistics({system.features.speaker(utterance): statistics}))
    return sums


def _pdf_weights(system: GmmSystem) -> Tensor:
    """Return the weight of each pdf: [P]."""
    phones, topology = system.senones.phone_of_pdf, system.senones.topology
    # [P] whether the pdf belongs to silence or noise.
    silent = torch.tensor([topology.is_silence(phone) for phone in phones.tolist()])
    return torch.where(silent, SILENCE_WEIGHT, 1.0).double()


@lru_cache(maxsize=1)
def _graph(path: Path) -> Fst:
    """Load a decoding graph, once per process."""
    return load_fst(path)
