"""Triphone systems: a tree grown on the alignments of an earlier system, then EM."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from toolkit.align.gmm.em import TrainingData, accumulate_tree, partition_utterances
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.gmm.training import (
    EmConfig,
    require_aligned,
    single_gaussians,
    train_em,
    training_data,
)
from toolkit.features.gmm_features import GmmFeatures
from toolkit.hmm.senones import Senones
from toolkit.hmm.tree.build import TreeConfig, grow_tree


@dataclass(frozen=True)
class TriphoneConfig:
    """Kaldi's train_deltas.sh."""

    tree: TreeConfig = TreeConfig()
    """The phonetic decision tree."""
    em: EmConfig = EmConfig()
    """The EM schedule."""


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
      progress: called with (iterations done, iterations).

    Raises:
      UnalignableError: more than `max_failed` of the utterances have no alignment.
    """
    with training_data(partition_utterances(transcripts, out), lang, config.em, jobs) as data:

        def start() -> tuple[GmmSystem, Tensor]:
            old = align_with_previous(data, previous, cepstra, config)
            return initial_system(data, old.senones, GmmFeatures(cepstra), config)

        return train_em("triphones", start, cepstra, data, config.em, out, progress)


def align_with_previous(
    data: TrainingData, previous: Path, cepstra: Path, config: TriphoneConfig
) -> GmmSystem:
    """Align the data with the system that a training starts from, and return that system.

    Raises:
      UnalignableError: as `require_aligned`.
    """
    old = GmmSystem.load(previous, cepstra)
    require_aligned(data, data.realign(old), config.em.max_failed)
    return old


def initial_system(
    data: TrainingData, old: Senones, features: GmmFeatures, config: TriphoneConfig
) -> tuple[GmmSystem, Tensor]:
    """Grow a tree on the current alignments; return one Gaussian per pdf, and the variance floor.

    Args:
      data: aligned utterances.
      old: the senones of the system that aligned them.
      features: those of the new system.
      config: tree and schedule.

    Returns:
      The system and its variance floor [D].
    """
    statistics = data.accumulate(accumulate_tree, features=features, topology=old.topology)
    senones = Senones(old.topology, grow_tree(statistics, old.topology, config.tree))
    gmm, floor = single_gaussians(statistics, senones.table)
    return GmmSystem(features, senones, gmm), floor
