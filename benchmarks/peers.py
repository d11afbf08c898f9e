"""Other projects' engines, most of them in processes with separate environments."""

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from benchmarks.run import BenchmarkError
from toolkit.decode.ctc.dictionary import Dictionary
from toolkit.fsa.fst import Fst
from toolkit.hmm.gmm import Gmm
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import BackoffModel
from toolkit.lang.units import Units

if TYPE_CHECKING:
    from toolkit.align.force_align import TrainingGraph


class PeerUnavailableError(BenchmarkError):
    """An engine is missing or does not work; the message says how to install it."""


class PeerProcess:
    """A process that runs its task once for every line of input; a context manager.

    The process writes `ready`, then answers each line with the processor time of its work in
    seconds.

    Args:
      name: the engine's name, for messages.
      python: a Python interpreter that has the engine installed.
      script: the script to run, a file beside this module.
      arguments: files that are the script's arguments.
      timeout: seconds to wait for an answer, since such libraries sometimes hang.

    Raises:
      PeerUnavailableError: the process does not start.
    """

    def __init__(
        self, name: str, python: str, script: str, arguments: tuple[Path, ...], timeout: float
    ) -> None:
        self.processor_seconds = 0.0
        self._name, self.timeout = name, timeout
        # -I: do not search the script's folder for imports; its modules shadow those of packages.
        path = Path(__file__).with_name(script)
        self._process = subprocess.Popen(
            [python, "-I", str(path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._answer()
        except PeerUnavailableError:
            self.close()
            raise

    def request(self, line: str = "") -> None:
        """Run the task once and add its time to `processor_seconds`."""
        with suppress(BrokenPipeError):  # if the process has ended, `_answer` reports it
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        self.processor_seconds += float(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answer(self) -> str:
        """Return a line of the process's output; end the process after the timeout."""
        timer = threading.Timer(self.timeout, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line:
            raise PeerUnavailableError(
                f"{self._name} crashed, or gave no answer within {self.timeout:g} s"
            )
        return line


KALDI_DECODER_PINNED = ("kaldi-decoder==0.3.2", "kaldifst==1.8.3", "numpy<2")
# Environment variable: the Python that has these packages; by default this Python is tried.
KALDI_DECODER_VARIABLE = "KALDI_DECODER_PYTHON"
# Seconds to wait for an answer: graphs are built arc by arc, which is slow.
KALDI_DECODER_TIMEOUT = 300.0

KALDI_DECODER_CHECK = "import kaldi_decoder, kaldifst"
"""Code that checks the package; it must run in the other interpreter."""


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
        python = os.environ.get(KALDI_DECODER_VARIABLE, sys.executable)
        check = [python, "-I", "-c", KALDI_DECODER_CHECK]
        try:
            subprocess.run(
                check, capture_output=True, text=True, timeout=KALDI_DECODER_TIMEOUT, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            install = " ".join(f"'{name}'" for name in KALDI_DECODER_PINNED)
            raise PeerUnavailableError(
                f"kaldi-decoder is not installed. Run `pip install {install}` in a separate"
                f" environment, and set {KALDI_DECODER_VARIABLE} to the Python of that environment"
            ) from error
        self._paths = folder / "paths.json"
        task = folder / "decoder_task.npz"
        self._outputs = _write_task(graph, scores, task)
        files = (task, self._paths)
        super().__init__(
            "kaldi-decoder", python, "faster_decoder_worker.py", files, KALDI_DECODER_TIMEOUT
        )

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


# kaldifst 1.7.10 and 1.8.3 do not work with this version of kaldi-hmm-gmm.
KALDI_HMM_GMM_PINNED = ("kaldi-hmm-gmm==1.1.4", "kaldifst==1.7.17", "numpy==1.26.4")
# Environment variable: the Python that has these packages.
KALDI_HMM_GMM_VARIABLE = "KALDI_HMM_GMM_PYTHON"
# Seconds to wait for an answer.
KALDI_HMM_GMM_TIMEOUT = 120.0

KALDI_HMM_GMM_CHECK = """
from importlib.metadata import version
for pinned in {pinned!r}:
    name, required = pinned.split("==")
    if version(name) != required:
        raise SystemExit(name + " " + version(name) + " is installed")
"""
"""Code that checks the packages; it must run in the other interpreter."""


class KaldiHmmGmm(PeerProcess):
    """Aligns utterances with kaldi-hmm-gmm, and sums up statistics; a context manager.

    Args:
      gmm: the acoustic model.
      graphs: alignment graphs of the utterances.
      features: [T, D] features of each utterance.
      pdfs: [T] pdfs of each utterance, along which statistics are summed up.
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
        python = os.environ.get(KALDI_HMM_GMM_VARIABLE)
        if not python:
            install = f"pip install {' '.join(KALDI_HMM_GMM_PINNED)}"
            raise PeerUnavailableError(
                f"kaldi-hmm-gmm is not installed. Run `{install}` in a fresh Python 3.10"
                f" environment, and set {KALDI_HMM_GMM_VARIABLE} to the Python of that environment"
            )
        check = [python, "-I", "-c", KALDI_HMM_GMM_CHECK.format(pinned=KALDI_HMM_GMM_PINNED)]
        try:
            subprocess.run(
                check, capture_output=True, text=True, timeout=KALDI_HMM_GMM_TIMEOUT, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            written = (getattr(error, "stderr", "") or str(error)).strip()
            raise PeerUnavailableError(
                f"kaldi-hmm-gmm: {KALDI_HMM_GMM_VARIABLE} is {python}, but that Python cannot use"
                f" {', '.join(KALDI_HMM_GMM_PINNED)}: {written.splitlines()[-1]}"
            ) from error
        self._found = folder / "found.npy"
        task = folder / "task.npz"
        np.savez(task, **_task(gmm, graphs, features, pdfs))
        files = (task, self._found)
        self.pdfs = np.zeros(0, np.int64)
        """The pdf of every frame of all utterances, after `align`."""
        self.log_likelihood = 0.0
        """Log-likelihood of all frames, after `accumulate`."""
        super().__init__(
            "kaldi-hmm-gmm", python, "kaldi_hmm_gmm_worker.py", files, KALDI_HMM_GMM_TIMEOUT
        )

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
    """Return the arrays of a task for the worker script."""
    arcs = []
    for graph in graphs:
        fst = graph.fst
        table = np.stack([fst.source, fst.target, fst.labels], axis=1)
        # Arcs that read a frame: label -> pdf + 1; 0 stays epsilon.
        reads = table[:, 2] > 0
        table[reads, 2] = graph.pdfs.numpy()[table[reads, 2] - 1] + 1
        arcs.append(table)
    # npz has no ragged arrays: concatenated, with the inner bounds for `np.split`.
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


CTC_DECODERS_VARIABLE = "CTC_DECODERS_PYTHON"
"""Environment variable with the Python that has the decoders; by default this Python is tried."""
CTC_DECODERS_TIMEOUT = 900.0
"""Seconds to wait for an answer."""
FLASHLIGHT_TEXT, PYCTCDECODE = "flashlight-text", "pyctcdecode"
_NEEDED = {
    FLASHLIGHT_TEXT: ("from flashlight.lib.text.decoder.kenlm import KenLM", "flashlight-text"),
    PYCTCDECODE: ("import pyctcdecode, kenlm", "pyctcdecode kenlm"),
}
"""Imports that show whether a decoder is installed, and the packages to install, by decoder."""
_FIRST_LETTER = 0x100
"""Symbols become one letter each for pyctcdecode, from this code point on."""


class CtcDecoderProcess(PeerProcess):
    """Decodes utterances with flashlight-text or pyctcdecode; a context manager.

    Args:
      name: `FLASHLIGHT_TEXT` or `PYCTCDECODE`.
      dictionary: the words.
      units: the output units, one of which is a space.
      lm: n-grams of these words.
      posteriors: [T, C] float32 of each utterance.
      folder: folder for the files that are exchanged.

    Raises:
      PeerUnavailableError: the decoder is not installed, or does not start.
    """

    def __init__(
        self,
        name: str,
        dictionary: Dictionary,
        units: Units,
        lm: BackoffModel,
        posteriors: Sequence[np.ndarray],
        folder: Path,
    ) -> None:
        python = os.environ.get(CTC_DECODERS_VARIABLE, sys.executable)
        needed, packages = _NEEDED[name]
        try:
            check = [python, "-I", "-c", needed]
            subprocess.run(
                check, capture_output=True, text=True, timeout=CTC_DECODERS_TIMEOUT, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise PeerUnavailableError(
                f"{name} is not installed. Run `pip install {packages}` in a separate environment,"
                f" and set {CTC_DECODERS_VARIABLE} to the Python of that environment"
            ) from error
        # pyctcdecode takes a character per unit; a unit of several characters gets a letter.
        letters = [chr(_FIRST_LETTER + n) for n in range(units.size)]
        spellings = [units.encode(word) for word in dictionary.words]
        if name == PYCTCDECODE:
            spelled = ("".join(letters[n] for n in spelling) for spelling in spellings)
            names = dict(zip(dictionary.words, spelled, strict=True))
            lm = BackoffModel([names.get(word, word) for word in lm.vocabulary], lm.levels)
        arpa, task, self._texts = (folder / f"{name}.{end}" for end in ("arpa", "json", "texts"))
        write_arpa(lm, arpa)
        settings = {
            "symbols": list(units.symbols),
            "letters": letters,
            "space": units.symbols.index(" "),
            "blank": units.blank,
            "words": list(dictionary.words),
            "spellings": spellings,
            "posteriors": [x.tolist() for x in posteriors],
        }
        task.write_text(json.dumps(settings), encoding="utf-8")
        arguments = (name, task, arpa, self._texts)
        super().__init__(name, python, "ctc_decoders_worker.py", arguments, CTC_DECODERS_TIMEOUT)

    def decode(
        self, width: int, margin: float, lm_weight: float, word_bonus: float, with_lm: bool
    ) -> list[str]:
        """Return the best text of every utterance; adds the time to `processor_seconds`.

        Args:
          width: beam width.
          margin: hypotheses whose score is lower than the best by more than this are pruned.
          lm_weight: weight of the language model's natural logarithms.
          word_bonus: score added for each word.
          with_lm: whether the language model is used; pyctcdecode needs it.
        """
        options = {"width": width, "margin": margin, "lm": with_lm}
        options |= {"lm_weight": lm_weight, "word_bonus": word_bonus}
        self.request(json.dumps(options))
        return json.loads(self._texts.read_text(encoding="utf-8"))


_SPACE = "|"


class FlashlightDecoder:
    """flashlight's decoder, set up to sum over the alignments in the beam as ours does.

    It needs a space after every word, including the last.

    Args:
      dictionary: the words.
      units: characters.
      folder: folder in which the lexicon is written.
      arpa: the language model; None for none.
      width: beam width.
      margin: hypotheses whose score is lower than the best by more than this are pruned.
      lm_weight: weight of the language model's natural logarithms.
      word_bonus: score added for each word.

    Raises:
      PeerUnavailableError: the installed torchaudio has no such decoder.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        units: Units,
        folder: Path,
        arpa: Path | None,
        width: int,
        margin: float,
        lm_weight: float,
        word_bonus: float,
    ) -> None:
        try:
            from torchaudio.models.decoder import ctc_decoder
        except (ImportError, OSError, RuntimeError) as error:
            raise PeerUnavailableError(
                f"flashlight: torchaudio cannot import its CTC decoder ({error}). The reference"
                " environment (Python 3.10) has this decoder"
            ) from error
        # Numbers as tokens: units may contain white space, which separates tokens in the lexicon.
        tokens = [str(i) for i in range(units.size)]
        tokens[units.symbols.index(" ")] = _SPACE
        lexicon = folder / "lexicon.txt"
        with lexicon.open("w", encoding="utf-8") as file:
            for word in dictionary.words:
                spelling = " ".join(tokens[label] for label in units.encode(word))
                file.write(f"{word} {spelling} {_SPACE}\n")
        self._decode = ctc_decoder(
            lexicon=str(lexicon),
            tokens=tokens,
            lm=None if arpa is None else str(arpa),
            beam_size=width,
            beam_threshold=margin,
            lm_weight=lm_weight * math.log(10.0),  # the decoder's logarithms are to base 10
            word_score=word_bonus,
            log_add=True,  # sum over the alignments of a text, not their maximum
            blank_token=tokens[units.blank],
            sil_token=_SPACE,
        )

    def text(self, log_probs: np.ndarray) -> str:
        """Return the best text of posteriors [T, C]; empty if there is no hypothesis."""
        labels = self._decode(torch.from_numpy(log_probs)[None])[0]
        return " ".join(labels[0].words) if labels else ""
