"""Low-rate senones: a tree of their own, grown on alignments at 10 ms."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from toolkit.align.gmm.em import accumulate_tree, sum_statistics
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.store import AlignmentStore
from toolkit.features.gmm_features import load_transforms
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree.build import TreeConfig, grow_tree
from toolkit.processes.workers import map_in_processes


@dataclass(frozen=True)
class _Shard:
    """Some utterances of an alignment store."""

    folder: Path
    ids: Sequence[str]

    def load(self) -> dict[str, Tensor]:
        store = AlignmentStore(self.folder)
        aligned = set(store.ids)
        return {u: store.load(u) for u in self.ids if u in aligned}


def tie_low_rate(
    system: Path, cepstra: Path, alignments: Path, config: TreeConfig, out: Path, jobs: int
) -> dict[str, float]:
    """Tie the states of the low frame rate in context (C3).

    The tree is grown on the features of the GMM system that made the alignments, the speakers'
    transforms included if it has any (C4); every 10 ms frame counts for the state of its low-rate
    frame.

    Args:
      system: the folder of the GMM system, with `fmllr.safetensors` if it is speaker-adapted.
      cepstra: the feature store of the aligned utterances.
      alignments: the folder of the alignments.
      config: how far the tree grows.
      out: gets `topology.json` and `tree.json`.
      jobs: worker processes.

    Returns:
      The numbers of senones and of contexts in the statistics.
    """
    features = GmmSystem.load(system, cepstra).features
    transforms = system / "fmllr.safetensors"
    if transforms.exists():
        features = features.adapted(load_transforms(transforms))
    topology = Topology.load(system / "topology.json")
    low = topology.at_low_rate()
    shards = [_Shard(alignments, ids) for ids in features.store.shards]
    work = partial(accumulate_tree, features=features, topology=topology, low_rate=low)
    total = sum_statistics(map_in_processes(work, shards, jobs))
    senones = Senones(low, grow_tree(total, low, config))
    out.mkdir(parents=True, exist_ok=True)
    senones.save(out)
    return {"senones": senones.num_pdfs, "contexts": len(total)}
