"""Lattice-free MMI: a tree and a denominator of its own, training, decoding without priors."""

from functools import partial
from pathlib import Path

from recipes.steps.data import has_copies, need_user_files
from recipes.steps.decoding import (
    compose_graph,
    decoding_options,
    network_lang,
    passes,
    write_nbest,
)
from recipes.steps.network import network_decoder, network_scorers
from toolkit.align.augmented_copies import AugmentedAlignments
from toolkit.align.gmm.low_frame_rate import tie_low_rate
from toolkit.align.store import AlignmentStore
from toolkit.decode.system import decode_passes
from toolkit.features.normalise import Normaliser
from toolkit.features.store import FeatureStore
from toolkit.fsa.denominator import Denominator, make_denominator
from toolkit.fsa.numerator import PhoneTimes
from toolkit.fsa.phone_ngram import phone_ngram
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.processes import ranks
from toolkit.processes.workers import shared_workers
from toolkit.stages.run import Run
from toolkit.train.lfmmi.training import train_lfmmi


def train_chain(run: Run, system: str, aligner: str, features: Path) -> dict[str, float]:
    """Train a network with LF-MMI on a GMM system's alignments and their augmented copies.

    Args:
      run: the run of the stage.
      system: name of the network.
      aligner: the GMM system that has aligned the data.
      features: the folder of the splits' features.
    """
    out, config, tree = run.make(system), run.config.lfmmi, run.config.chain_tree
    need_user_files(run, tree.questions, tree.roots)
    ranks.on_rank_zero(partial(_make_graphs, run, aligner, out / "graphs"))
    topology = Topology.load(run.need(f"{aligner}/topology.json"))
    aligned = AlignmentStore(run.need("ali"))
    stores, states = [FeatureStore(features / "train")], [aligned]
    if has_copies(run):
        stores.append(FeatureStore(features / "copies"))
        states.append(AugmentedAlignments(aligned, stores[1]))
    return train_lfmmi(
        stores,
        states,
        topology,
        Senones.load(out / "graphs"),
        Denominator.load(out / "graphs" / "denominator.safetensors"),
        Normaliser.load(features / "normaliser.json"),
        config,
        out,
        run.device,
        run.progress,
    )


def _make_graphs(run: Run, aligner: str, out: Path) -> None:
    """Tie the senones, estimate the denominator and compile the decoding graph."""
    graph = out / "graph.safetensors"
    if graph.exists():  # written last
        return
    system, alignments = run.need(aligner), run.need("ali")
    tie_low_rate(system, run.need("plp/train"), alignments, run.config.chain_tree, out, run.jobs)
    senones, topology = Senones.load(out), Topology.load(system / "topology.json")
    store = AlignmentStore(alignments)
    aligned = (store.load(name) for name in store.ids)
    sentences = (PhoneTimes.of(states, topology).phones.tolist() for states in aligned)
    phones = phone_ngram(sentences, run.config.lfmmi.ngram)
    make_denominator(phones, senones).save(out / "denominator.safetensors")
    compose_graph(run, senones, graph, network_lang(run))


@shared_workers()
def decode_chain(run: Run, system: str, features: Path) -> dict[str, float]:
    """Decode with the network's own graph at acoustic scale 1, and rescore; n-best lists."""
    out, graphs = run.make(f"decode/{system}"), f"{system}/graphs"
    scorers, decoder = network_scorers(run, system, features), network_decoder(run, graphs)
    found = decode_passes(
        system,
        scorers,
        decoder=decoder,
        passes=passes(run, out, rescore=True),
        keep_lattices=True,
        **decoding_options(run, out),
    )
    return found | write_nbest(run, system, scorers, decoder, Senones.load(run.need(graphs)))
