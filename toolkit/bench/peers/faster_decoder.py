"""kaldi_decoder.FasterDecoder in a process, and perhaps an environment, of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from torch import Tensor

from toolkit.bench.peers.peer import Peer, PeerUnavailableError
from toolkit.fsa.arcs import Fsa

PINNED = ("kaldi-decoder==0.3.2", "kaldifst==1.8.3", "numpy<2")
# Names the Python that has them; this one is tried otherwise.
VARIABLE = "KALDI_DECODER_PYTHON"
# Seconds to wait for an answer. Graphs are built arc by arc.
PATIENCE = 300.0

_CHECK = "import kaldi_decoder, kaldifst"


class FasterDecoderSide(Peer):
    """Decodes utterances with FasterDecoder; a context manager.

    Args:
      graph: reads pdf + 1 and writes words, without epsilons.
      scores: [T, P] scaled log-likelihoods of each utterance.
      folder: for its files.

    Raises:
      PeerUnavailableError: it is not installed, or does not start.
    """

    def __init__(self, graph: Fsa, scores: Sequence[Tensor], folder: Path) -> None:
        python = os.environ.get(VARIABLE, sys.executable)
        check = [python, "-I", "-c", _CHECK]
        try:
            subprocess.run(check, capture_output=True, text=True, timeout=PATIENCE, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            install = " ".join(f"'{name}'" for name in PINNED)
            raise PeerUnavailableError(
                f"kaldi-decoder: not installed. In an environment of its own pip install {install},"
                f" then set {VARIABLE} to that environment's Python"
            ) from error
        self._paths = folder / "paths.json"
        task = folder / "decoder_task.npz"
        self._outputs = _write_task(graph, scores, task)
        files = (task, self._paths)
        super().__init__("kaldi-decoder", python, "faster_decoder_side.py", files, PATIENCE)

    def decode(self, beam: float, max_active: int) -> list[list[int]]:
        """The word ids of every utterance; adds the time to `processor_seconds`."""
        self.ask(f"{beam} {max_active}")
        paths = json.loads(self._paths.read_text(encoding="utf-8"))
        return [[word for output in path for word in self._outputs[output]] for path in paths]


def _write_task(graph: Fsa, scores: Sequence[Tensor], path: Path) -> list[tuple[int, ...]]:
    """Write graph and scores; return the words that each output label stands for."""
    splits = graph.aux_labels.shape.row_splits(1).tolist()
    values = graph.aux_labels.values.tolist()
    numbers: dict[tuple[int, ...], int] = {(): 0}
    written = [
        numbers.setdefault(tuple(w for w in values[first:last] if w > 0), len(numbers))
        for first, last in pairwise(splits)
    ]
    np.savez(
        path,
        arcs=graph.arcs.values()[:, :3].numpy(),
        written=np.array(written, dtype=np.int32),
        graph_scores=graph.scores.numpy(),
        scores=np.concatenate([x.numpy() for x in scores]),
        bounds=np.cumsum([len(x) for x in scores])[:-1],
    )
    return list(numbers)
