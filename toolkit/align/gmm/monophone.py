"""The monophone system: a flat start on the utterances of the fewest words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from toolkit.align.gmm.em import accumulate_tree, partition_utterances
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
from toolkit.hmm.topology import Topology
from toolkit.lang.lang import Lang


@dataclass(frozen=True)
class MonophoneConfig:
    """Kaldi's train_mono.sh, with its values as defaults."""

    em: EmConfig = EmConfig(
        iterations=40,
        realign=(*range(1, 11), *range(12, 21, 2), 23, 26, 29, 32, 35, 38),
        gaussians=1000,
        grow_until=30,
        min_occupancy=3.0,
    )
    """The EM schedule (Kaldi's)."""
    max_utterances: int = 2000
    """Train on this many utterances at most, those of the fewest words. Kaldi's recipes take those
    of the fewest frames (subset_data_dir.sh --shortest)."""

    def __post_init__(self) -> None:
        if self.max_utterances < 1:
            raise ValueError(f"max_utterances is {self.max_utterances}, needs to be 1 or more")


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
      out: gets the system (see `GmmSystem.save`) and `history.json`; an earlier unfinished
        training there is continued.
      jobs: worker processes; the result does not depend on them.
      progress: called with (iterations done, iterations).

    Raises:
      UnalignableError: more than `max_failed` of the utterances have no alignment.
    """
    ranked = sorted(transcripts, key=lambda u: (len(transcripts[u]), u))
    chosen = set(ranked[: config.max_utterances])
    partitions = partition_utterances({u: w for u, w in transcripts.items() if u in chosen}, out)
    features = GmmFeatures(cepstra)
    topology = Topology(tuple(Lang.load(lang).real_phones))
    with training_data(partitions, lang, config.em, jobs) as data:

        def start() -> tuple[GmmSystem, Tensor]:
            short = data.align_equally(features, topology)
            require_aligned(data, short, config.em.max_failed)
            statistics = data.accumulate(accumulate_tree, features=features, topology=topology)
            senones = Senones.monophone(topology)
            gmm, floor = single_gaussians(statistics, senones.table)
            return GmmSystem(features, senones, gmm), floor

        return train_em("monophones", start, cepstra, data, config.em, out, progress)
