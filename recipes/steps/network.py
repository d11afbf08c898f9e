"""Neural acoustic models of the hybrid recipes: training, decoding, n-best lists."""

from functools import partial
from pathlib import Path

from recipes.steps.data import has_copies, splits
from recipes.steps.decoding import (
    decoding_options,
    graph_name,
    passes,
)
from toolkit.align.corpus import align_at_offsets
from toolkit.align.scorer import Scorer
from toolkit.align.store import (
    AlignmentStore,
    AugmentedAlignments,
    LowRateAlignments,
    OffsetAlignments,
)
from toolkit.decode.search import Decoder
from toolkit.decode.system import decode_system
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.normalise import Normaliser
from toolkit.features.shards import FeatureStore
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.models.scorer import NeuralScorer
from toolkit.processes.ranks import on_rank_zero
from toolkit.processes.workers import shared_workers
from toolkit.stages.run import Run
from toolkit.train.config import CrossEntropyConfig
from toolkit.train.corpus import Alignments
from toolkit.train.cross_entropy import train_cross_entropy


def train_network(
    run: Run,
    system: str,
    features: Path,
    config: CrossEntropyConfig | None = None,
    aligner: str = "sat",
    valid: tuple[FeatureStore, LowRateAlignments] | None = None,
) -> dict[str, float]:
    """Train a network with cross entropy on the training data and its augmented copies.

    `align.rounds` times the network aligns the data at each of its three offsets, and another one
    is trained on these targets (C4), so that every epoch has targets of its own offset. Senones are
    unchanged; weights are initialised again, so that no round inherits the errors of earlier ones.
    The networks of earlier rounds and their alignments are in `rounds/`.

    Args:
      run: the run of the stage.
      system: name of the network.
      features: the folder of the splits' features.
      config: the network and its training; by default the section `ce`.
      aligner: the GMM system that has aligned the data.
      valid: held-out data; by default some training utterances are held out.
    """
    align, lang, out = run.config.align, run.need("lang"), run.make(system)
    senones, normaliser = Senones.load(run.need("senones")), features / "normaliser.json"
    train = FeatureStore(features / "train")
    copies = [FeatureStore(features / "copies")] if has_copies(run) else []
    alignments: Alignments = targets(run, aligner)
    headline: dict[str, float] = {}
    for number in range(align.rounds + 1):
        folder = out if number == align.rounds else out / f"rounds/{number}"
        headline = train_cross_entropy(
            [train, *copies],
            [alignments, *(AugmentedAlignments(alignments, store) for store in copies)],
            Normaliser.load(normaliser),
            config or run.config.ce,
            senones.num_pdfs,
            folder,
            run.device,
            run.progress,
            valid,
        )
        if folder != out:
            scorers = [
                NeuralScorer(folder, normaliser, train.path, offset, device=run.device)
                for offset in range(LOW_RATE_FACTOR)
            ]
            on_rank_zero(partial(align_at_offsets, scorers, senones, lang, align, folder, run.jobs))
            alignments = OffsetAlignments.open(folder, senones)
    return headline


def targets(run: Run, aligner: str, name: str = "ali") -> LowRateAlignments:
    """Return senone alignments made with a GMM system, by default those of the training data."""
    topology = Topology.load(run.need(f"{aligner}/topology.json"))
    return LowRateAlignments(
        AlignmentStore(run.need(name)), topology, Senones.load(run.need("senones"))
    )


def network_scorers(
    run: Run, system: str, features: Path, normaliser: Path | None = None
) -> dict[str, Scorer]:
    """Return scorers of a network for all splits to decode."""
    model, normaliser = run.need(system), normaliser or features / "normaliser.json"
    return {
        s: NeuralScorer(model, normaliser, features / s, device=run.device)
        for s in splits(run).decoded
    }


def network_decoder(run: Run, graphs: str | None = None) -> Decoder:
    """Return the search with the small language model, rescored by the larger one.

    Args:
      run: the run of the stage.
      graphs: the folder of a network's own senones, whose graph is searched by `chain_decode`;
        None: those that the networks share.
    """
    graph = run.need(graph_name(graphs))
    config = run.config.decode if graphs is None else run.config.chain_decode
    return Decoder(graph, run.need("lang/words.txt"), config, run.need("rescoring/lm.safetensors"))


@shared_workers()
def decode_network(
    run: Run,
    system: str,
    features: Path,
    normaliser: Path | None = None,
    nbest: bool = False,
    graphs: str | None = None,
) -> dict[str, float]:
    """Decode with a network, and rescore with the larger language model.

    Args:
      run: the run of the stage.
      system: name of the network.
      features: the folder of the splits' features.
      normaliser: of the features; by default that beside them.
      nbest: also write n-best lists, word times, confidences and word lattices.
      graphs: the folder of the network's own senones, see `network_decoder`.
    """
    out = run.make(f"decode/{system}")
    scorers = network_scorers(run, system, features, normaliser)
    decoder = network_decoder(run, graphs)
    return decode_system(
        system,
        scorers,
        decoder=decoder,
        passes=passes(run, out, rescore=True),
        lang=run.need("lang"),
        senones=Senones.load(run.need(graphs or "senones")),
        nbest=run.config.nbest if nbest else None,
        **decoding_options(run),
    )
