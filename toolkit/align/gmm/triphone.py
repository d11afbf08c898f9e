"""Triphone systems: a tree grown on the alignments of an earlier system, then EM."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from toolkit.align.gmm.em import TrainingData, deal, tree_sums
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.gmm.training import (
    EmConfig,
    require_aligned,
    single_gaussians,
    train_em,
    training_data,
)
from toolkit.features.cepstra import GmmFeatures
from toolkit.hmm.senones import Senones
from toolkit.hmm.tree.build import TreeConfig, grow_tree


@dataclass(frozen=True)
class TriphoneConfig:
    """Kaldi's train_deltas.sh."""

    tree: TreeConfig = TreeConfig()
    """The phonetic decision tree."""
    em: EmConfig = EmConfig()
    """The schedule."""


def train_triphone(
    cepstra: Path,
    transcripts: Mapping[str, Sequence[str]],
    lang: Path,
    previous: Path,
    config: TriphoneConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Train triphone GMMs on cepstra with deltas; mirrors Kaldi's steps/train_deltas.sh.

    Args:
      cepstra: a feature store.
      transcripts: the words of each training utterance, in the store's order.
      lang: the folder of the lexicon.
      previous: the folder of the system whose alignments the training starts from.
      config: tree and schedule.
      out: gets the system (see `GmmSystem.save`) and `history.json`; an earlier unfinished
        training there is continued.
      jobs: worker processes; the result does not depend on them.
      progress: told (iterations done, iterations).

    Raises:
      UnalignableError: more than `max_failed` of the utterances have no alignment.
    """
    with training_data(deal(transcripts, out), lang, config.em, jobs) as data:

        def start() -> tuple[GmmSystem, Tensor]:
            old = aligning_system(data, previous, cepstra, config)
            return grown_system(data, old.senones, GmmFeatures(cepstra), config)

        return train_em("triphones", start, cepstra, data, config.em, out, progress)


def aligning_system(
    data: TrainingData, previous: Path, cepstra: Path, config: TriphoneConfig
) -> GmmSystem:
    """The system that a training starts from, after it has aligned the data.

    Raises:
      UnalignableError: as `require_aligned`.
    """
    old = GmmSystem.load(previous, cepstra)
    require_aligned(data, data.realign(old), config.em.max_failed)
    return old


def grown_system(
    data: TrainingData, old: Senones, features: GmmFeatures, config: TriphoneConfig
) -> tuple[GmmSystem, Tensor]:
    """A new tree on the current alignments, with a Gaussian per pdf, and the variance floor [D].

    Args:
      data: aligned utterances.
      old: of the system that aligned them.
      features: what the new system sees.
      config: tree and schedule.
    """
    statistics = data.sum(tree_sums, features=features, topology=old.topology)
    senones = Senones(old.topology, grow_tree(statistics, old.topology, config.tree))
    gmm, floor = single_gaussians(statistics, senones.table, config.em)
    return GmmSystem(features, senones, gmm), floor
