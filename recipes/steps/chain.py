"""Lattice-free MMI: a tree and a denominator of its own, and training."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from recipes.steps.data import has_copies
from recipes.steps.gmm import tree_config
from toolkit.align.store import AlignmentStore, AugmentedAlignments
from toolkit.align.train_gmm import build_low_rate_senones
from toolkit.features.normalise import Normaliser
from toolkit.features.shards import FeatureStore
from toolkit.fsa.denominator import Denominator, make_denominator, phone_ngram
from toolkit.hmm.config import TreeConfig
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.processes import ranks
from toolkit.stages.run import Run
from toolkit.train.lfmmi import AlignedPhones, train_lfmmi

DENOMINATOR = "denominator.safetensors"


def train_chain(
    run: Run,
    system: str,
    aligner: str,
    features: Path,
    cepstra: str = "train",
    senones: str | None = None,
) -> dict[str, float]:
    """Train a network with LF-MMI on a GMM system's alignments and their augmented copies.

    Args:
      run: the run of the stage.
      system: name of the network.
      aligner: the GMM system that has aligned the data.
      features: the folder of the splits' features.
      cepstra: the split on whose cepstra the tree is grown; it has the utterances of `train`.
      senones: the folder with tree and denominator of an earlier network on the same alignments;
        None: they are made.
    """
    out = run.make(system)
    if senones is None:
        graphs, tree = out / "graphs", tree_config(run, run.config.chain_tree)
        ranks.on_rank_zero(partial(_make_graphs, run, aligner, cepstra, tree, graphs))
    else:
        graphs = run.need(senones)
    stores, phones = transcribed_phones(run, aligner, features)
    return train_lfmmi(
        stores,
        phones,
        Senones.load(graphs),
        Denominator.load(graphs / DENOMINATOR),
        Normaliser.load(features / "normaliser.json"),
        run.config.lfmmi,
        out,
        run.device,
        run.progress,
    )


def transcribed_phones(
    run: Run, aligner: str, features: Path
) -> tuple[list[FeatureStore], list[AlignedPhones]]:
    """Return features and phones of the transcribed speech, and of its augmented copies.

    Args:
      run: the run of the stage.
      aligner: the GMM system that has aligned it.
      features: the folder of the splits' features.
    """
    topology = Topology.load(run.need(f"{aligner}/topology.json"))
    aligned = AlignmentStore(run.need("ali"))
    stores = [FeatureStore(features / "train")]
    phones = [AlignedPhones(aligned, topology)]
    if has_copies(run):
        stores.append(FeatureStore(features / "copies"))
        phones.append(AlignedPhones(AugmentedAlignments(aligned, stores[1]), topology))
    return stores, phones


def phone_sequences(phones: AlignedPhones) -> Iterator[list[int]]:
    """Return the phones of each utterance, for their n-gram."""
    return (phones.load(name).phones.tolist() for name in phones.ids)


def _make_graphs(run: Run, aligner: str, cepstra: str, config: TreeConfig, out: Path) -> None:
    """Tie the senones and estimate the denominator."""
    if (out / DENOMINATOR).exists():  # written last
        return
    system, alignments = run.need(aligner), run.need("ali")
    build_low_rate_senones(system, run.need(f"plp/{cepstra}"), alignments, config, out, run.jobs)
    senones, topology = Senones.load(out), Topology.load(system / "topology.json")
    sentences = phone_sequences(AlignedPhones(AlignmentStore(alignments), topology))
    phones = phone_ngram(sentences, run.config.lfmmi.ngram)
    make_denominator(phones, senones).save(out / DENOMINATOR)
