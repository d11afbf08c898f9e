"""Times of the words of decoded texts."""

import numpy as np
import pytest

from toolkit.align.times import read_ctm
from toolkit.score.results import write_texts

TEXTS = {"a1": "YES NO", "b1": "NO YES YES", "hush": "", "mumble": "YES"}


def spans(path):
    found = {}
    for entry in read_ctm(path):
        times = round(entry.start, 3), round(entry.duration, 3)
        found.setdefault(entry.utterance, []).append((entry.token, *times))
    return found


def test_times_are_those_of_the_decoded_words(recogniser, tmp_path):
    from toolkit.decode.search import DecodeConfig, Decoder
    from toolkit.decode.system import write_word_times
    from toolkit.fsa.config import Beam

    config = DecodeConfig(acoustic_scale=1.0, beam=Beam(1000.0, 1000.0))
    decoder = Decoder(recogniser.graph, recogniser.words, config)
    write_texts(TEXTS | {"a1": "YES YES"}, tmp_path / "dev")
    scorers = {"dev": recogniser.scorer(TEXTS)}
    lang, senones = recogniser.folder / "lang", recogniser.senones
    write_word_times(scorers, decoder, lang, senones, tmp_path, jobs=1)
    found = spans(tmp_path / "dev/words.ctm")
    # Frames of 10 ms, two per state: YES has three phones of two states, NO two, silences one.
    assert found["b1"] == [("NO", 0.02, 0.08), ("YES", 0.12, 0.12), ("YES", 0.26, 0.12)]
    assert [word for word, *_ in found["a1"]] == ["YES", "YES"]  # as decoded, though NO was said
    assert found.keys() == {"a1", "b1"}  # nothing was recognised in "hush"; "mumble" has no frame


@pytest.mark.parametrize("text", ["A CAT", "CAT A"])
def test_times_by_a_network_of_characters(tmp_path, text):
    from toolkit.decode.system import write_ctc_word_times
    from toolkit.decode.words import CtcWordAligner
    from toolkit.lang.units import Characters

    units = Characters()
    labels = units.encode(text)
    frames = [units.blank] + [label for label in labels for _ in range(3)] + [units.blank]
    log_probs = np.full((len(frames), units.size), -20.0, np.float32)
    log_probs[range(len(frames)), frames] = 0.0
    texts = {"right": text, "hush": "", "long": "CAT " * 20, "digits": "4"}
    write_texts(texts, tmp_path)
    aligner = CtcWordAligner(units, frame_shift=0.04, offset=-0.02)
    write_ctc_word_times(dict.fromkeys(texts, log_probs), aligner, tmp_path)
    words = text.split()
    first, second = 0.12 * len(words[0]), 0.12 * len(words[1])
    assert spans(tmp_path / "words.ctm") == {
        "right": [
            (words[0], 0.02, pytest.approx(first)),
            (words[1], pytest.approx(0.02 + first + 0.12), pytest.approx(second)),
        ]
    }
