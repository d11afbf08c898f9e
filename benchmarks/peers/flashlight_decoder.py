"""flashlight's lexicon decoder, which torchaudio up to 2.8 contains, for CTC posteriors."""

import math
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.process import PeerUnavailableError
from toolkit.decode.ctc.dictionary import Dictionary
from toolkit.lang.units.units import Units

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
                f"flashlight: no decoder in torchaudio here ({error}); the reference environment"
                " (Python 3.10) has it"
            ) from error
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
            lm_weight=lm_weight * math.log(10.0),  # its logarithms are to base 10
            word_score=word_bonus,
            log_add=True,
            blank_token=tokens[units.blank],
            sil_token=_SPACE,
        )

    def text(self, log_probs: np.ndarray) -> str:
        """Return the best text of posteriors [T, C]; empty if there is no hypothesis."""
        found = self._decode(torch.from_numpy(log_probs)[None])[0]
        return " ".join(found[0].words) if found else ""
