"""kaldi_decoder.FasterDecoder in a separate process, if need be with its own environment."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from torch import Tensor

from benchmarks.peers.process import PeerProcess, PeerUnavailableError
from toolkit.fsa.fst import Fst

PINNED = ("kaldi-decoder==0.3.2", "kaldifst==1.8.3", "numpy<2")
# Environment variable: the Python that has them installed; by default this one is tried.
VARIABLE = "KALDI_DECODER_PYTHON"
# Seconds to wait for an answer: graphs are built arc by arc, which is slow.
TIMEOUT = 300.0

CHECK = "import kaldi_decoder, kaldifst"
"""What the other interpreter must be able to do."""


class FasterDecoder(PeerProcess):
    """Decodes utterances with FasterDecoder; a context manager.

    Args:
      graph: decoding graph without epsilons; labels are pdf + 1, auxiliary labels are words.
      scores: [T, P] scaled log-likelihoods of each utterance.
      folder: folder for the files that are exchanged.

    Raises:
      PeerUnavailableError: the package is not installed, or does not start.
    """

    def __init__(self, graph: Fst, scores: Sequence[Tensor], folder: Path) -> None:
        python = os.environ.get(VARIABLE, sys.executable)
        check = [python, "-I", "-c", CHECK]
        try:
            subprocess.run(check, capture_output=True, text=True, timeout=TIMEOUT, check=True)
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
        super().__init__("kaldi-decoder", python, "faster_decoder_worker.py", files, TIMEOUT)

    def decode(self, beam: float, max_active: int) -> list[list[int]]:
        """Return the word ids of every utterance; adds the time to `processor_seconds`."""
        self.request(f"{beam} {max_active}")
        paths = json.loads(self._paths.read_text(encoding="utf-8"))
        return [[word for output in path for word in self._outputs[output]] for path in paths]


def _write_task(graph: Fst, scores: Sequence[Tensor], path: Path) -> list[tuple[int, ...]]:
    """Write graph and scores; return the words of each output label."""
    numbers: dict[tuple[int, ...], int] = {(): 0}
    words = graph.words.tolist()
    written = [
        numbers.setdefault(tuple(words[first:last]), len(numbers))
        for first, last in pairwise(graph.splits.tolist())
    ]
    np.savez(
        path,
        arcs=np.stack([graph.source, graph.target, graph.labels], axis=1),
        written=np.array(written, dtype=np.int32),
        graph_scores=graph.scores,
        scores=np.concatenate([x.numpy() for x in scores]),
        bounds=np.cumsum([len(x) for x in scores])[:-1],
    )
    return list(numbers)
