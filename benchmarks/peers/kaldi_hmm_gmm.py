"""kaldi-hmm-gmm in a separate process with its own Python environment."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from benchmarks.peers.process import PeerProcess, PeerUnavailableError
from toolkit.hmm.gmm import Gmm

if TYPE_CHECKING:
    from toolkit.fsa.alignment import TrainingGraph

# kaldifst 1.7.10 and 1.8.3 do not work with this version of kaldi-hmm-gmm.
PINNED = ("kaldi-hmm-gmm==1.1.4", "kaldifst==1.7.17", "numpy==1.26.4")
# Environment variable: the Python that has them installed.
VARIABLE = "KALDI_HMM_GMM_PYTHON"
# Seconds to wait for an answer.
TIMEOUT = 120.0

CHECK = """
from importlib.metadata import version
for pinned in {pinned!r}:
    name, required = pinned.split("==")
    if version(name) != required:
        raise SystemExit(name + " " + version(name) + " is installed")
"""
"""What the other interpreter must be able to do."""


class KaldiHmmGmm(PeerProcess):
    """Aligns utterances with kaldi-hmm-gmm, and sums up statistics; a context manager.

    Args:
      gmm: the acoustic model.
      graphs: alignment graphs of the utterances.
      features: [T, D] of each.
      pdfs: [T] of each, along which statistics are summed up.
      folder: folder for the files that are exchanged.

    Raises:
      PeerUnavailableError: the package is not installed in the pinned versions, or does not start.
    """

    def __init__(
        self,
        gmm: Gmm,
        graphs: "Sequence[TrainingGraph]",
        features: Sequence[Tensor],
        pdfs: Sequence[Tensor],
        folder: Path,
    ) -> None:
        python = os.environ.get(VARIABLE)
        if not python:
            install = f"pip install {' '.join(PINNED)}"
            raise PeerUnavailableError(
                f"kaldi-hmm-gmm: not installed. In a fresh Python 3.10 environment {install},"
                f" then set {VARIABLE} to that environment's Python"
            )
        check = [python, "-I", "-c", CHECK.format(pinned=PINNED)]
        try:
            subprocess.run(check, capture_output=True, text=True, timeout=TIMEOUT, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            written = (getattr(error, "stderr", "") or str(error)).strip()
            raise PeerUnavailableError(
                f"kaldi-hmm-gmm: the Python that {VARIABLE} names, {python}, does not have"
                f" {', '.join(PINNED)}: {written.splitlines()[-1]}"
            ) from error
        self._found = folder / "found.npy"
        task = folder / "task.npz"
        np.savez(task, **_task(gmm, graphs, features, pdfs))
        files = (task, self._found)
        self.pdfs = np.zeros(0, np.int64)
        """The pdf of every frame of all utterances, after `align`."""
        self.log_likelihood = 0.0
        """Of all frames, after `accumulate`."""
        super().__init__("kaldi-hmm-gmm", python, "kaldi_hmm_gmm_worker.py", files, TIMEOUT)

    def align(self) -> None:
        """Align all utterances once and add the time to `processor_seconds`."""
        self.request("align")
        self.pdfs = np.load(self._found)

    def accumulate(self) -> None:
        """Sum up the statistics of all frames once and add the time to `processor_seconds`."""
        self.request("accumulate")
        self.log_likelihood = float(np.load(self._found))


def _task(
    gmm: Gmm,
    graphs: "Sequence[TrainingGraph]",
    features: Sequence[Tensor],
    pdfs: Sequence[Tensor],
) -> dict[str, np.ndarray]:
    arcs = []
    for graph in graphs:
        fst = graph.fst
        table = np.stack([fst.source, fst.target, fst.labels], axis=1)
        reads = table[:, 2] > 0
        table[reads, 2] = graph.pdfs.numpy()[table[reads, 2] - 1] + 1
        arcs.append(table)
    return {
        "sizes": np.bincount(gmm.owner.numpy()),
        "weights": gmm.weights.numpy(),
        "means": gmm.means.numpy(),
        "variances": gmm.variances.numpy(),
        "arcs": np.concatenate(arcs),
        "arc_bounds": np.cumsum([len(table) for table in arcs])[:-1],
        "features": np.concatenate([x.numpy() for x in features]),
        "frame_bounds": np.cumsum([len(x) for x in features])[:-1],
        "pdfs": np.concatenate([x.numpy() for x in pdfs]),
    }
