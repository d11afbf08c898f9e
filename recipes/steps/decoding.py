"""Decoding graphs and options that GMM systems and networks share."""

from pathlib import Path
from typing import Any

from recipes.steps.data import splits
from toolkit.decode.graph import make_decoding_graph
from toolkit.hmm.senones import Senones
from toolkit.stages.run import Run


def compose_graph(run: Run, senones: Senones, graph: Path, lang: Path | None = None) -> None:
    """Compile a decoding graph, unless an interrupted run has already written it.

    Args:
      run: the run of the stage.
      senones: of the acoustic model.
      graph: the file to write.
      lang: the folder of the lexicon; by default that of the language stage.
    """
    if not graph.exists():
        make_decoding_graph(lang or run.need("lang"), run.need("lm/lm.arpa"), senones, graph)


def network_lang(run: Run) -> Path:
    """Return the lexicon of the networks' graphs: with probabilities if they are estimated."""
    return run.need("pronunciations" if run.config.pronunciation_probabilities else "lang")


def decoding_options(run: Run, out: Path) -> dict[str, Any]:
    """Return the arguments that all decoding functions share."""
    return {
        "tune_on": splits(run).tune,
        "out": out,
        "jobs": run.jobs,
        "command": run.command,
        "progress": run.progress,
    }
