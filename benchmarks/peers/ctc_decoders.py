"""flashlight-text and pyctcdecode, each in a process of its own, with a Python that has it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.process import PeerProcess, PeerUnavailableError
from toolkit.decode.ctc.dictionary import Dictionary
from toolkit.lang.ngram.arpa import write_arpa
from toolkit.lang.ngram.backoff import BackoffModel
from toolkit.lang.units.units import Units

VARIABLE = "CTC_DECODERS_PYTHON"
"""Environment variable: the Python that has the decoders; by default this one is tried."""
TIMEOUT = 900.0
"""Seconds to wait for an answer."""
FLASHLIGHT_TEXT, PYCTCDECODE = "flashlight-text", "pyctcdecode"
_NEEDED = {
    FLASHLIGHT_TEXT: ("from flashlight.lib.text.decoder.kenlm import KenLM", "flashlight-text"),
    PYCTCDECODE: ("import pyctcdecode, kenlm", "pyctcdecode kenlm"),
}
"""What is imported to see whether a decoder is there, and what is installed for it."""
_FIRST_LETTER = 0x100
"""Symbols become one letter each for pyctcdecode, from this code point on."""


class CtcDecoderProcess(PeerProcess):
    """Decodes utterances by one of the decoders; a context manager.

    Args:
      name: `FLASHLIGHT_TEXT` or `PYCTCDECODE`.
      dictionary: the words.
      units: the output units, one of which is a space.
      lm: n-grams of these words.
      posteriors: [T, C] float32 of each utterance.
      folder: folder for the files that are exchanged.

    Raises:
      PeerUnavailableError: it is not installed, or does not start.
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
        python = os.environ.get(VARIABLE, sys.executable)
        needed, packages = _NEEDED[name]
        try:
            check = [python, "-I", "-c", needed]
            subprocess.run(check, capture_output=True, text=True, timeout=TIMEOUT, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise PeerUnavailableError(
                f"{name}: not installed. In an environment of its own pip install {packages}, then"
                f" set {VARIABLE} to that environment's Python"
            ) from error
        letters = [chr(_FIRST_LETTER + n) for n in range(units.size)]
        spellings = [units.encode(word) for word in dictionary.words]
        if name == PYCTCDECODE:
            spelled = ("".join(letters[n] for n in spelling) for spelling in spellings)
            names = dict(zip(dictionary.words, spelled, strict=True))
            lm = BackoffModel([names.get(word, word) for word in lm.vocabulary], lm.levels)
        arpa, task, self._texts = (folder / f"{name}.{end}" for end in ("arpa", "json", "texts"))
        write_arpa(lm, arpa)
        plain = {
            "symbols": list(units.symbols),
            "letters": letters,
            "space": units.symbols.index(" "),
            "blank": units.blank,
            "words": list(dictionary.words),
            "spellings": spellings,
            "posteriors": [x.tolist() for x in posteriors],
        }
        task.write_text(json.dumps(plain), encoding="utf-8")
        arguments = (name, task, arpa, self._texts)
        super().__init__(name, python, "ctc_decoders_worker.py", arguments, TIMEOUT)

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
