"""Decoding graphs, options and n-best lists: what GMM systems and networks share."""

from pathlib import Path
from typing import Any

from recipes.steps.data import splits
from toolkit.decode.graph import make_decoding_graph
from toolkit.decode.system import Pass
from toolkit.hmm.senones import Senones
from toolkit.stages.run import Run


def compose_graph(run: Run, senones: Senones, graph: Path) -> None:
    """Compile the decoding graph of GMMs, unless an interrupted run has already written it.

    Args:
      run: the run of the stage.
      senones: of the acoustic model.
      graph: the file to write.
    """
    if not graph.exists():
        make_decoding_graph(run.need("lang"), run.need("lm/lm.arpa"), senones, graph)


def graph_name(graphs: str | None = None) -> str:
    """Return the file of the networks' decoding graph.

    Args:
      graphs: the folder of a network's own senones, such as `chain/graphs`; None: of the senones
        that the networks share.
    """
    return f"{graphs.partition('/')[0]}_graph.safetensors" if graphs else "graph.safetensors"


def compile_network_graph(run: Run, graphs: str | None = None) -> dict[str, float]:
    """Compile the decoding graph of networks (Kaldi's mkgraph.sh).

    It alone holds the n-gram model, so that the training of the networks does not depend on it.

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
    small = f"{run.setting('lm.order')}gram"
    if not rescore:
        return [Pass(small, out)]
    return [Pass(small, out / "first_pass"), Pass(rescored_lm(run), out)]


def rescored_lm(run: Run) -> str:
    """Return the name of the larger language model in the results.

    It differs from that of the small one, as their rows must.
    """
    small, larger = run.setting("lm.order"), run.setting("rescoring.order")
    return f"{larger}gram-rescored" if larger == small else f"{larger}gram"


def decoding_options(run: Run) -> dict[str, Any]:
    """Return the arguments that all decoding functions share."""
    return {
        "tune_on": splits(run).tune,
        "jobs": run.jobs,
        "command": run.command,
        "progress": run.progress,
    }
