"""Worker script of `benchmarks.peers`, run by a Python that has the decoder.

Arguments: the decoder's name, the task's file, the language model's file, the output file for the
texts. The script prints `ready`; for every line of JSON on standard input it decodes all utterances
once and prints the processor time in seconds.
"""

import json
import math
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np

Decode = Callable[[np.ndarray], str]
SPACE = "|"


class Flashlight:
    """flashlight's lexicon decoder, set up to sum over the alignments in its beam."""

    def __init__(self, task: dict[str, Any], arpa: str) -> None:
        from flashlight.lib.text.decoder import SmearingMode, Trie, ZeroLM
        from flashlight.lib.text.decoder.kenlm import KenLM
        from flashlight.lib.text.dictionary import Dictionary

        self._size, self._space, self._blank = len(task["symbols"]), task["space"], task["blank"]
        self._words = Dictionary()
        for word in task["words"]:
            self._words.add_entry(word)
        self._words.add_entry("<unk>")
        self._unknown = self._words.get_index("<unk>")
        self._lms = {False: ZeroLM(), True: KenLM(arpa, self._words)}
        self._tries = {}
        for with_lm, lm in self._lms.items():
            trie = self._tries[with_lm] = Trie(self._size, self._space)
            start = lm.start(False)
            for number, spelling in enumerate(task["spellings"]):
                _, score = lm.score(start, number)
                trie.insert([*spelling, self._space], number, score)
            trie.smear(SmearingMode.MAX)

    def make_decoder(self, options: dict[str, Any]) -> Decode:
        """Return the decoder for a width and weights."""
        from flashlight.lib.text.decoder import (
            CriterionType,
            LexiconDecoder,
            LexiconDecoderOptions,
        )

        settings = LexiconDecoderOptions(
            beam_size=options["width"],
            beam_size_token=self._size,
            beam_threshold=options["margin"],
            lm_weight=options["lm_weight"] * math.log(10.0),  # KenLM's logarithms are to base 10
            word_score=options["word_bonus"],
            unk_score=-math.inf,
            sil_score=0.0,
            log_add=True,
            criterion_type=CriterionType.CTC,
        )
        with_lm = options["lm"]
        decoder = LexiconDecoder(
            settings, self._tries[with_lm], self._lms[with_lm], self._space, self._blank,
            self._unknown, [], False,
        )  # fmt: skip

        def decode(log_probs: np.ndarray) -> str:
            results = decoder.decode(log_probs.ctypes.data, *log_probs.shape)
            words = [n for n in results[0].words if n >= 0] if results else []
            return " ".join(self._words.get_entry(n) for n in words)

        return decode


class Pyctcdecode:
    """pyctcdecode's beam search, with words spelled by one character per symbol."""

    def __init__(self, task: dict[str, Any], arpa: str) -> None:
        import kenlm
        from pyctcdecode import Alphabet, LanguageModel

        labels = list(task["letters"])
        labels[task["blank"]], labels[task["space"]] = "", " "
        self._alphabet = Alphabet.build_alphabet(labels)
        spelled = ["".join(task["letters"][n] for n in spelling) for spelling in task["spellings"]]
        self._words = dict(zip(spelled, task["words"], strict=True))
        self._make, self._kenlm = LanguageModel, kenlm.Model(arpa)
        self._unigrams = list(self._words)

    def make_decoder(self, options: dict[str, Any]) -> Decode:
        """Return the decoder for a width and weights; words outside the dictionary cost 1,000.

        Without a language model it has no dictionary. As by default, symbols with a log-probability
        below -5 are pruned, which is faster than keeping all.
        """
        from pyctcdecode import BeamSearchDecoderCTC

        lm = self._make(
            self._kenlm, self._unigrams, options["lm_weight"], options["word_bonus"], -1000.0
        )
        decoder = BeamSearchDecoderCTC(self._alphabet, lm)

        def decode(log_probs: np.ndarray) -> str:
            text = decoder.decode(log_probs, options["width"], -options["margin"])
            return " ".join(self._words.get(word, "") for word in text.split())

        return decode


DECODERS = {"flashlight-text": Flashlight, "pyctcdecode": Pyctcdecode}


def main(name: str, task_file: str, arpa: str, out: str) -> None:
    """Answer requests until the input ends."""
    with open(task_file, encoding="utf-8") as file:
        task = json.load(file)
    utterances = [np.array(rows, np.float32) for rows in task["posteriors"]]
    engine = DECODERS[name](task, arpa)
    print("ready", flush=True)
    for line in sys.stdin:
        decode = engine.make_decoder(json.loads(line))
        begin = process_time()
        texts = [decode(x) for x in utterances]
        seconds = process_time() - begin
        with open(out, "w", encoding="utf-8") as file:
            json.dump(texts, file)
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
