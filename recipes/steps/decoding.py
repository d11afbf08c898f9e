"""Decoding with GMMs and networks, combination of systems, rescoring with an LSTM LM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from recipes.steps.data import cuts, decoded_features, splits
from toolkit.align.scorer import GmmScorer, Scorer
from toolkit.decode.combine import LATTICES, NAME, TEXT, DecodedSplit, combine_decodes
from toolkit.decode.rescore import rescore_system
from toolkit.decode.search import DecoderFiles
from toolkit.decode.system import Pass, decode_system, write_word_times
from toolkit.errors import ToolkitError
from toolkit.fsa.decoding_graph import make_decoding_graph
from toolkit.fsa.lattice import Weights
from toolkit.hmm.senones import Senones
from toolkit.models.neural_lm import NeuralLm
from toolkit.models.scorer import NeuralScorer
from toolkit.processes.workers import shared_workers
from toolkit.score.results import Result, read_results
from toolkit.stages.run import Run


def compose_graph(run: Run, senones: Senones, graph: Path) -> None:
    """Compile the decoding graph of GMMs, unless an interrupted run has already written it.

    Args:
      run: the run of the stage.
      senones: senones of the acoustic model.
      graph: the file to write.
    """
    if not graph.exists():
        make_decoding_graph(run.need("lang"), run.need("lm/lm.arpa"), senones, graph)


def graph_name(graphs: str | None = None) -> str:
    """Return the file name of the networks' decoding graph.

    Args:
      graphs: the folder of a network's own senones, such as `chain/graphs`; None: the graph is that
        of the senones that the networks share.
    """
    return f"{graphs.partition('/')[0]}_graph.safetensors" if graphs else "graph.safetensors"


def compile_network_graph(run: Run, graphs: str | None = None) -> dict[str, float]:
    """Compile the decoding graph of networks (Kaldi's mkgraph.sh).

    Only this graph contains the n-gram model, so the training of the networks does not depend on
    it.

    Args:
      run: the run of the stage.
      graphs: see `graph_name`.

    Returns:
      The numbers of states and arcs.
    """
    senones, graph = Senones.load(run.need(graphs or "senones")), run.make(graph_name(graphs))
    return make_decoding_graph(network_lang(run), run.need("lm/lm.arpa"), senones, graph)


def network_lang(run: Run) -> Path:
    """Return the lexicon of the networks' graphs: with probabilities if they are estimated."""
    return run.need("pronunciations" if run.config.pronunciation_probabilities else "lang")


def passes(run: Run, out: Path, rescore: bool) -> list[Pass]:
    """Return the search with the small language model, and rescoring with the larger one."""
    # The last pass writes to `out` itself, where later stages look for the results.
    small = f"{run.setting('lm.order')}gram"
    if not rescore:
        return [Pass(small, out)]
    return [Pass(small, out / "first_pass"), Pass(rescored_lm(run), out)]


def rescored_lm(run: Run) -> str:
    """Return the name of the larger language model in the results.

    It differs from the name of the small model, so that their rows can be told apart.
    """
    small, larger = run.setting("lm.order"), run.setting("rescoring.order")
    return f"{larger}gram-rescored" if larger == small else f"{larger}gram"


def decoding_options(run: Run) -> dict[str, Any]:
    """Return the arguments that all decoding functions share."""
    return {
        "tune_on": splits(run).tune,
        "jobs": run.jobs,
        "command": run.command,  # the command line, which the results record
        "progress": run.progress,
    }


@shared_workers()
def decode_gmm(run: Run, system: str, transforms: Mapping[str, Path] | None = None) -> dict:
    """Decode with a GMM system; on adapted features also rescore, and write n-best lists.

    Args:
      run: the run of the stage.
      system: name of the GMM system.
      transforms: files of fMLLR transforms by split; None: features are not adapted.
    """
    # Only the adapted system is rescored: the other systems serve as checks and as its first pass.
    out, senones = run.make(f"decode/{system}"), Senones.load(run.need(system))
    adapted = transforms is not None
    compose_graph(run, senones, out / "graph.safetensors")
    scorers = gmm_scorers(run, system, transforms or {})
    decoder = gmm_decoder(run, system, out, rescore=adapted)
    options = decoding_options(run) | {"passes": passes(run, out, rescore=adapted)}
    return decode_system(
        system,
        scorers,
        decoder=decoder,
        lang=run.need("lang") if adapted else None,
        senones=senones,
        nbest=run.config.nbest if adapted else None,
        **options,
    )


def gmm_decoder(run: Run, system: str, out: Path, rescore: bool) -> DecoderFiles:
    """Return the search of a GMM system, in the decoding graph in `out`."""
    config = run.config.gmm_decode
    if system == "mono":
        config = replace(config, beam=run.config.mono_beam)
    rescorer = run.need("rescoring/lm.safetensors") if rescore else None
    words = run.need("lang/words.txt")
    return DecoderFiles(out / "graph.safetensors", words, config, rescorer)


def gmm_scorers(run: Run, system: str, transforms: Mapping[str, Path]) -> dict[str, Scorer]:
    """Return scorers of a GMM system for all splits to decode, with transforms by split."""
    model = run.need(system)
    return {
        s: GmmScorer(model, run.need(f"plp/{s}"), transforms.get(s)) for s in splits(run).decoded
    }


def network_scorers(
    run: Run, system: str, features: Path, normaliser: Path | None = None
) -> dict[str, Scorer]:
    """Return scorers of a network for all splits to decode."""
    model, normaliser = run.need(system), normaliser or features / "normaliser.json"
    return {
        s: NeuralScorer(model, normaliser, features / s, device=run.device)
        for s in splits(run).decoded
    }


def network_decoder(run: Run, graphs: str | None = None) -> DecoderFiles:
    """Return the search with the small language model, rescored by the larger one.

    Args:
      run: the run of the stage.
      graphs: the folder of a network's own senones, whose graph is searched with the settings
        `chain_decode`; None: the senones that the networks share, and the settings `decode`.
    """
    graph = run.need(graph_name(graphs))
    config = run.config.decode if graphs is None else run.config.chain_decode
    return DecoderFiles(
        graph, run.need("lang/words.txt"), config, run.need("rescoring/lm.safetensors")
    )


@shared_workers()
def decode_network(
    run: Run,
    system: str,
    features: Path | None = None,
    normaliser: str | None = None,
    nbest: bool = False,
    graphs: str | None = None,
) -> dict[str, float]:
    """Decode with a network, and rescore with the larger language model.

    Args:
      run: the run of the stage.
      system: name of the network.
      features: the folder of the splits' features; by default `fbank`.
      normaliser: normaliser of the features; by default the one in their folder.
      nbest: also write n-best lists, word times, confidences and word lattices.
      graphs: the folder of the network's own senones, see `network_decoder`.
    """
    out = run.make(f"decode/{system}")
    features = features or decoded_features(run, "fbank")
    scorers = network_scorers(run, system, features, run.need(normaliser) if normaliser else None)
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


@dataclass(frozen=True)
class DecodedSystem:
    """A system that the recipe has decoded."""

    name: str
    """Name of the system."""
    features: Literal["cepstra", "fbank", "lda_mllt_features", "fmllr_features"] = "cepstra"
    """Features of a network; "cepstra" for GMMs."""
    gmm: str | None = None
    """The GMM system whose features are the network's input, if any."""
    first_pass: str | None = None
    """The speaker-independent GMM system of the first pass, if speakers are adapted."""
    graphs: str | None = None
    """The folder of a network's own senones, whose decoding graph is searched with the settings
    `chain_decode`; None: the senones that the networks share."""
    has_nbest: bool = False
    """Whether its n-best lists are written when it is decoded."""

    @property
    def by_utterance(self) -> bool:
        """Whether it recognises utterance by utterance, not by speaker."""
        return self.features == "fbank"

    @property
    def is_gmm(self) -> bool:
        """Whether it has no network."""
        return self.features == "cepstra"

    @property
    def rescored(self) -> bool:
        """Whether the larger n-gram model has rescored it."""
        return not self.is_gmm or self.first_pass is not None


def system_scorers(run: Run, system: DecodedSystem) -> dict[str, Scorer]:
    """Return the scorers of a system for all splits to decode."""
    if not system.is_gmm:
        return network_scorers(run, system.name, decoded_features(run, system.features))
    transforms = {}
    if system.first_pass is not None:
        transforms = {s: run.need(f"fmllr/{s}.safetensors") for s in splits(run).decoded}
    return gmm_scorers(run, system.name, transforms)


def system_decoder(run: Run, system: DecodedSystem) -> DecoderFiles:
    """Return the search of a system, with all its passes."""
    if system.is_gmm:
        decoded = run.need(f"decode/{system.name}")
        return gmm_decoder(run, system.name, decoded, system.rescored)
    return network_decoder(run, system.graphs)


def system_senones(run: Run, system: DecodedSystem) -> Senones:
    """Return the senones of a system's acoustic model."""
    return Senones.load(run.need(system.name if system.is_gmm else system.graphs or "senones"))


def last_rows(run: Run, system: DecodedSystem) -> list[Result]:
    """Return the results of a system's last n-gram pass, one for each split."""
    rows = read_results(run.need(f"decode/{system.name}/rows.json"))
    return [row for row in rows if row.lm == rows[-1].lm]


def tuning_errors(run: Run, rows: Sequence[Result]) -> int:
    """Return the word errors on the tuning splits."""
    tuned = [row for row in rows if row.split in splits(run).tune]
    return sum(row.insertions + row.deletions + row.substitutions for row in tuned)


def nbest_folders(run: Run, system: DecodedSystem) -> dict[str, Path]:
    """Return the folders of a system's n-best lists by split; none if they were not written."""
    if not system.has_nbest:
        return {}
    folder = f"decode/{system.name}"
    return {split: run.need(f"{folder}/{split}/nbest") for split in splits(run).decoded}


@shared_workers()
def combine_systems(run: Run, systems: Sequence[str]) -> dict[str, float]:
    """Combine decoded systems with word lattices; tune the weights, and score all splits."""
    # Weights are tuned on the splits that are marked as tuning splits.
    split_names = splits(run)
    combined = {
        split: DecodedSplit(
            cuts(run, split),
            {s: _decode(run, s, split) for s in systems},
            split in split_names.tune,
        )
        for split in split_names.decoded
    }
    rows = [run.need(f"decode/{system}/rows.json") for system in systems]
    out = run.make(f"decode/{NAME}")
    return combine_decodes(combined, rows, out, run.jobs, run.command, run.progress)


def _decode(run: Run, system: str, split: str) -> Path:
    """Return the folder of a decoded split."""
    run.need(f"decode/{system}/{split}/{TEXT}")
    return run.need(f"decode/{system}/{split}/{LATTICES}").parent


def neural_name(system: DecodedSystem) -> str:
    """Return the folder, below decode/, of a system rescored with the LSTM language model."""
    return f"{system.name}_lstm_lm"


def neural_systems(run: Run, systems: Sequence[DecodedSystem]) -> list[DecodedSystem]:
    """Return the systems to rescore with the LSTM LM; see `Config.neural_systems`.

    Without `neural` there are none.

    Args:
      run: the run of the stage.
      systems: what the recipe has decoded, the simplest first.

    Raises:
      ToolkitError: the setting names a system that was not decoded.
    """
    if not run.config.neural:
        return []
    # The systems that the setting names, or else the best system rescored with the larger n-grams.
    names = run.config.neural_systems
    if names:
        if unknown := set(names) - {system.name for system in systems}:
            raise ToolkitError(
                f"`neural_systems` contains {', '.join(sorted(unknown))}, which this run does not "
                "decode. Choose from " + ", ".join(system.name for system in systems)
            )
        return [system for system in systems if system.name in names]

    def errors(system: DecodedSystem) -> int:
        return tuning_errors(run, last_rows(run, system))

    return [min((system for system in systems if system.rescored), key=errors)]


@shared_workers()
def rescore_neural(run: Run, systems: Sequence[DecodedSystem]) -> dict[str, float]:
    """Rescore the n-best lists of each system's last pass with the LSTM language model."""
    model, results = NeuralLm.load(run.need("lstm_lm"), run.device), {}
    config = run.config.lstm_rescoring
    for system in systems:
        # Lists of the decoding stage are used if they are long enough; else new ones are made.
        long_enough = run.setting("nbest.count") >= config.count
        scorers, decoder = system_scorers(run, system), system_decoder(run, system)
        out = run.make(f"decode/{neural_name(system)}")
        tuned = run.need(f"decode/{system.name}/tuned.json")
        headline = rescore_system(
            system.name,
            f"{last_rows(run, system)[0].lm}+lstm",
            scorers,
            decoder=decoder,
            tuned=tuned,
            model=model,
            config=config,
            nbest=nbest_folders(run, system) if long_enough else None,
            out=out,
            **decoding_options(run),
        )
        decoder = decoder.at(Weights.load(tuned).acoustic_scale)
        senones = system_senones(run, system)
        write_word_times(scorers, decoder, run.need("lang"), senones, out, run.jobs)
        results |= {f"{system.name} {name}": value for name, value in headline.items()}
    return results
