"""Refinement of speakers' fMLLR transforms on the lattices of an adapted decoding pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor

from toolkit.align.gmm.adaptation import SpeakerStatistics, refined
from toolkit.align.gmm.system import GmmSystem
from toolkit.features.gmm_features import save_transforms
from toolkit.features.store import map_shards
from toolkit.fsa.beam import Beam, GraphMismatchError
from toolkit.fsa.files import load_fst
from toolkit.fsa.forward_backward import pdf_posteriors
from toolkit.fsa.fst import Fst
from toolkit.fsa.search import search_with_retries
from toolkit.hmm.fmllr import FmllrStatistics

SILENCE_WEIGHT = 0.01
"""Weight of the posteriors of silence and noise, as in Kaldi's decode_fmllr.sh."""


@dataclass(frozen=True)
class LatticeSearch:
    """The search that makes the lattices; picklable."""

    graph: Path
    """The decoding graph of the adapted system."""
    acoustic_scale: float
    """Factor on acoustic log-likelihoods, in the search and in the posteriors."""
    beams: Sequence[Beam]
    """The beams to try, in order."""


def refine_on_lattices(system: GmmSystem, search: LatticeSearch, out: Path, jobs: int) -> None:
    """Estimate transforms anew from all that a decoding pass with the present ones considers.

    The second estimate of Kaldi's decode_fmllr.sh: every frame counts for each pdf by its
    posterior in the lattice, so that doubtful words count little. Speakers without a lattice keep
    their transforms.

    Args:
      system: a system trained with fMLLR, with the present transforms of `adapt_speakers`.
      search: the decoding pass.
      out: the file of the refined transforms.
      jobs: worker processes.
    """
    work = partial(accumulate_on_lattices, system=system, search=search)
    store = system.features.store
    parts = map_shards(work, store, jobs, "adapt")
    save_transforms(out, refined(parts, store.shards, system.features))


def accumulate_on_lattices(
    shard: tuple[int, Sequence[str]], system: GmmSystem, search: LatticeSearch
) -> SpeakerStatistics:
    """Accumulate fMLLR statistics over the posteriors of a shard's lattices."""
    graph = _graph(search.graph)
    GraphMismatchError.check(graph.top_label, system.gmm.num_pdfs, search.graph)
    weight = _pdf_weights(system)
    sums = SpeakerStatistics({})
    for utterance in shard[1]:
        x = system.features.load(utterance)
        scores = system.gmm.log_likelihoods(x) * search.acoustic_scale
        lattice, _ = search_with_retries(scores, graph, search.beams)
        if lattice is None:
            continue
        frames, pdfs, posteriors = pdf_posteriors(lattice)
        statistics = FmllrStatistics.zeros(x.shape[1])
        weights = posteriors * weight[pdfs] * system.features.counted(utterance)[frames]
        statistics.accumulate(system.gmm, x[frames], pdfs, weights)
        sums.add(SpeakerStatistics({system.features.speaker(utterance): statistics}))
    return sums


def _pdf_weights(system: GmmSystem) -> Tensor:
    """[P] the weight of each pdf."""
    phones, topology = system.senones.phone_of_pdf, system.senones.topology
    silent = torch.tensor([topology.is_silence(phone) for phone in phones.tolist()])
    return torch.where(silent, SILENCE_WEIGHT, 1.0).double()


@lru_cache(maxsize=1)
def _graph(path: Path) -> Fst:
    """Load a graph, once per process."""
    return load_fst(path)
