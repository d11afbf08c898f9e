"""flashlight's lexicon decoder, as torchaudio up to 2.8 carries it, on a benchmark's material."""

import math
from pathlib import Path

import numpy as np
import torch

from toolkit.bench.peers.peer import PeerUnavailableError
from toolkit.decode.ctc.dictionary import Dictionary
from toolkit.lang.units.units import Units

_SPACE = "|"


class FlashlightDecoder:
    """Texts by flashlight, sums over alignments in a beam as ours does.

    It wants the space behind every word, the last one too.

    Args:
      dictionary: the words.
      units: characters.
      folder: gets the lexicon.
      arpa: the language model; None for none.
      width: beam width.
      margin: score below the best at which hypotheses are dropped.
      lm_weight: factor on natural logarithms.
      word_bonus: added for each word.

    Raises:
      PeerUnavailableError: torchaudio has no such decoder here.
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
            lm_weight=lm_weight * math.log(10.0),  # of its base 10
            word_score=word_bonus,
            log_add=True,
            blank_token=tokens[units.blank],
            sil_token=_SPACE,
        )

    def text(self, log_probs: np.ndarray) -> str:
        """The best text of posteriors [T, C]; empty where it finds none."""
        found = self._decode(torch.from_numpy(log_probs)[None])[0]
        return " ".join(found[0].words) if found else ""
