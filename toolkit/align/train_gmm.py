"""Trains GMM systems, from monophones to speaker-adaptive training, and low-rate senones."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from toolkit.align.adapt import adapt
from toolkit.align.config import LdaMlltConfig, MonophoneConfig, SatConfig, TriphoneConfig
from toolkit.align.em import (
    AlignedUtterances,
    TrainingData,
    accumulate_tree,
    aligned_frames,
    partition_utterances,
    require_aligned,
    single_gaussians,
    speech_frames,
    sum_statistics,
    train_em,
    training_data,
)
from toolkit.align.store import AlignmentStore
from toolkit.features.gmm_features import GmmFeatures, GmmFrontend, load_transforms
from toolkit.hmm.config import TreeConfig
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.transforms import LdaStatistics, MlltStatistics, estimate_lda, estimate_mllt
from toolkit.hmm.tree_growing import grow_tree
from toolkit.lang.lang import Lang
from toolkit.processes.workers import map_in_processes


def train_monophone(
    cepstra: Path,
    transcripts: Mapping[str, Sequence[str]],
    lang: Path,
    config: MonophoneConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Train monophone GMMs from a flat start; mirrors Kaldi's steps/train_mono.sh.

    Differences: no transition probabilities are trained (see `Topology`), and utterances are chosen
    by their number of words.

    Args:
      cepstra: a feature store.
      transcripts: the words of each training utterance, in the store's order.
      lang: the folder of the lexicon.
      config: the schedule.
      out: the folder that gets the system (see `GmmSystem.save`) and `history.json`; an earlier
        unfinished training there is continued.
      jobs: worker processes; the result does not depend on them.
      progress: called with (iterations done, iterations).

    Raises:
      UnalignableError: the share of utterances without an alignment is above `max_failed`.
    """
    # The shortest transcripts; utterances keep the store's order.
    ranked = sorted(transcripts, key=lambda u: (len(transcripts[u]), u))
    chosen = set(ranked[: config.max_utterances])
    partitions = partition_utterances({u: w for u, w in transcripts.items() if u in chosen}, out)
    features = GmmFeatures(cepstra)
    topology = Topology(tuple(Lang.load(lang).real_phones))
    with training_data(partitions, lang, config.em, jobs) as data:

        def start() -> tuple[GmmSystem, Tensor]:
            # Flat start: equal alignment, one Gaussian per state.
            short = data.flat_start_alignment(features, topology)
            require_aligned(data, short, config.em.max_failed)
            statistics = data.accumulate(accumulate_tree, features=features, topology=topology)
            senones = Senones.monophone(topology)
            gmm, floor = single_gaussians(statistics, senones.table)
            return GmmSystem(features, senones, gmm), floor

        return train_em("monophones", start, cepstra, data, config.em, out, progress)


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
      out: the folder that gets the system (see `GmmSystem.save`) and `history.json`; an earlier
        unfinished training there is continued.
      jobs: worker processes; the result does not depend on them.
      progress: called with (iterations done, iterations).

    Raises:
      UnalignableError: the share of utterances without an alignment is above `max_failed`.
    """
    with training_data(partition_utterances(transcripts, out), lang, config.em, jobs) as data:

        def start() -> tuple[GmmSystem, Tensor]:
            old = align_with_previous(data, previous, cepstra, config)
            return initial_system(data, old.senones, GmmFeatures(cepstra), config)

        return train_em("triphones", start, cepstra, data, config.em, out, progress)


def align_with_previous(
    data: TrainingData, previous: Path, cepstra: Path, config: TriphoneConfig
) -> GmmSystem:
    """Align the data with the previous system, and return that system.

    Raises:
      UnalignableError: see `require_aligned`.
    """
    old = GmmSystem.load(previous, cepstra)
    require_aligned(data, data.realign(old), config.em.max_failed)
    return old


def initial_system(
    data: TrainingData, old: Senones, features: GmmFeatures, config: TriphoneConfig
) -> tuple[GmmSystem, Tensor]:
    """Grow a tree on the current alignments; return single Gaussians and the variance floor.

    Args:
      data: aligned utterances.
      old: the senones of the system that aligned them.
      features: those of the new system.
      config: tree and schedule.

    Returns:
      The system and its variance floor [D].
    """
    # Statistics by (left phone, state, right phone), on which the tree is grown; its pdfs start
    # with one Gaussian each.
    statistics = data.accumulate(accumulate_tree, features=features, topology=old.topology)
    senones = Senones(old.topology, grow_tree(statistics, old.topology, config.tree))
    gmm, floor = single_gaussians(statistics, senones.table)
    return GmmSystem(features, senones, gmm), floor


logger = logging.getLogger(__name__)


def train_lda_mllt(
    cepstra: Path,
    transcripts: Mapping[str, Sequence[str]],
    lang: Path,
    previous: Path,
    config: LdaMlltConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Train triphone GMMs on LDA + MLLT features; mirrors Kaldi's steps/train_lda_mllt.sh.

    As in Kaldi, LDA and MLLT are estimated without silence frames. See `train_triphone` for
    arguments and errors.
    """
    with training_data(partition_utterances(transcripts, out), lang, config.em, jobs) as data:

        def start() -> tuple[GmmSystem, Tensor]:
            old = align_with_previous(data, previous, cepstra, config)
            return initial_system(
                data, old.senones, _lda(data, old.senones, cepstra, config), config
            )

        def update(iteration: int, system: GmmSystem) -> GmmSystem:
            return _with_mllt(data, system) if iteration in config.mllt else system

        return train_em("LDA + MLLT", start, cepstra, data, config.em, out, progress, update)


def _lda(data: TrainingData, senones: Senones, cepstra: Path, config: LdaMlltConfig) -> GmmFeatures:
    """Return the features projected by LDA; the classes are the pdfs of the aligning system."""
    # LDA reduces the spliced frames to the `dimension` directions that separate the pdfs best.
    spliced = GmmFeatures(cepstra, GmmFrontend(config.splice))
    statistics = data.accumulate(accumulate_lda, features=spliced, senones=senones)
    return spliced.projected(estimate_lda(statistics, config.dimension).float())


def _with_mllt(data: TrainingData, system: GmmSystem) -> GmmSystem:
    """Rotate the features so that the Gaussians' covariances become more diagonal."""
    matrix, gain = estimate_mllt(data.accumulate(accumulate_mllt, system=system))
    logger.info("MLLT raised the log-likelihood by %.3f nats per frame", gain)
    # With the MLLT matrix M and the projection P, features P x become M P x, and means m become M
    # m.
    projection = matrix @ system.features.frontend.projection.double()
    features = system.features.projected(projection.float())
    return GmmSystem(features, system.senones, system.gmm.transform_means(matrix))


def accumulate_lda(
    partition: AlignedUtterances, features: GmmFeatures, senones: Senones
) -> LdaStatistics:
    """Accumulate LDA statistics over the speech frames."""
    statistics = LdaStatistics.zeros(senones.num_pdfs, features.dimension)
    for x, batch, counted in aligned_frames(partition.load(), features):
        statistics.accumulate(*speech_frames(x, batch, counted, senones))
    return statistics


def accumulate_mllt(partition: AlignedUtterances, system: GmmSystem) -> MlltStatistics:
    """Accumulate MLLT statistics over the speech frames."""
    statistics = MlltStatistics.zeros(system.features.dimension)
    for x, batch, counted in aligned_frames(partition.load(), system.features):
        statistics.accumulate(system.gmm, *speech_frames(x, batch, counted, system.senones))
    return statistics


def train_sat(
    cepstra: Path,
    transcripts: Mapping[str, Sequence[str]],
    lang: Path,
    previous: Path,
    config: SatConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Train triphone GMMs on fMLLR features; mirrors Kaldi's steps/train_sat.sh.

    `out` gets the training speakers' transforms too, as `fmllr.safetensors`. The system needs
    `adapt_speakers` before it can decode. See `train_triphone` for arguments and errors.
    """
    with training_data(partition_utterances(transcripts, out), lang, config.em, jobs) as data:

        def start() -> tuple[GmmSystem, Tensor]:
            old = align_with_previous(data, previous, cepstra, config)
            return initial_system(data, old.senones, adapt(data, old).features, config)

        def update(iteration: int, system: GmmSystem) -> GmmSystem:
            return adapt(data, system) if iteration in config.fmllr else system

        return train_em("SAT", start, cepstra, data, config.em, out, progress, update)


@dataclass(frozen=True)
class _Shard:
    """Some utterances of an alignment store; implements `AlignedUtterances`."""

    folder: Path
    ids: Sequence[str]

    def load(self) -> dict[str, Tensor]:
        """Return the state ids [T] int64 of the aligned utterances."""
        store = AlignmentStore(self.folder)
        aligned = set(store.ids)
        return {u: store.load(u) for u in self.ids if u in aligned}


def build_low_rate_senones(
    system: Path, cepstra: Path, alignments: Path, config: TreeConfig, out: Path, jobs: int
) -> dict[str, float]:
    """Build the tree that ties low-frame-rate states in context (C3).

    The tree is grown on the features of the GMM system that made the alignments, including the
    speakers' transforms if it has any (C4). Every 10 ms frame counts for the state of its low-rate
    frame.

    Args:
      system: the folder of the GMM system, with `fmllr.safetensors` if it is speaker-adapted.
      cepstra: the feature store of the aligned utterances.
      alignments: the folder of the alignments.
      config: settings of the tree.
      out: the folder that gets `topology.json` and `tree.json`.
      jobs: worker processes.

    Returns:
      The numbers of `senones`, and of `contexts` in the statistics.
    """
    features = GmmSystem.load(system, cepstra).features
    transforms = system / "fmllr.safetensors"
    if transforms.exists():
        features = features.adapted(load_transforms(transforms))
    topology = Topology.load(system / "topology.json")
    # The low-rate topology: onset and rest of each phone instead of three states.
    low = topology.at_low_rate()
    shards = [_Shard(alignments, ids) for ids in features.store.shards]
    accumulate = partial(accumulate_tree, features=features, topology=topology, low_rate=low)
    # Statistics of 10 ms frames by low-rate state and phonetic context, then the tree.
    total = sum_statistics(map_in_processes(accumulate, shards, jobs))
    senones = Senones(low, grow_tree(total, low, config))
    out.mkdir(parents=True, exist_ok=True)
    senones.save(out)
    return {"senones": senones.num_pdfs, "contexts": len(total)}
