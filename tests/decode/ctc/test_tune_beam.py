"""The choice of width and margin."""

import numpy as np
import pytest
import torch

from benchmarks.synthetic import Emissions
from toolkit.decode.config import BeamTuneConfig, WordsConfig
from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.ctc.search import WordsDecoder
from toolkit.decode.ctc.system import TunedBeam, tune_beam, widen
from toolkit.lang.units import Characters
from toolkit.score.wer import score

UNITS = Characters()
WORDS = ["A", "BALL", "BELL", "BIG", "CAT", "CATS", "SAT", "THE", "THEN"]
TEXTS = {f"u{n}": " ".join(np.random.default_rng(n).choice(WORDS, 5)) for n in range(6)}


@pytest.fixture(scope="module")
def log_probs():
    rng = np.random.default_rng(0)
    clean = {
        name: Emissions().draw(UNITS.encode(text), UNITS.size, UNITS.blank, rng)
        for name, text in TEXTS.items()
    }
    return {
        name: torch.from_numpy(x + rng.normal(0, 2.0, x.shape)).log_softmax(dim=1).float()
        for name, x in clean.items()
    }


@pytest.fixture
def decoder():
    return WordsDecoder(UNITS, WORDS, None, WordsConfig(1, "words"))


def errors(decoder, log_probs, width, margin):
    nbest_lists = decoder.with_beam(width, margin).decode_many(list(log_probs.values()))
    texts = dict(zip(log_probs, [best.text for best, *_ in nbest_lists], strict=True))
    return score(TEXTS, texts).errors


def test_the_narrowest_beam_without_loss_is_chosen(decoder, log_probs, tmp_path):
    config = BeamTuneConfig((1, 2, 4, 64), (1.0, 4.0, 30.0))
    best = tune_beam(decoder, log_probs, TEXTS, config, tmp_path)
    most = errors(decoder, log_probs, 256, 30.0)
    assert best.errors == errors(decoder, log_probs, best.width, best.margin) <= most
    narrower = [w for w in config.widths if w < best.width]
    assert all(errors(decoder, log_probs, w, 30.0) > most for w in narrower)
    tighter = [m for m in config.margins if m < best.margin]
    assert all(errors(decoder, log_probs, best.width, m) > most for m in tighter)
    assert narrower
    assert tune_beam(None, {}, {}, config, tmp_path) == best  # not decoded again
    (tmp_path / "beam.json").write_text("{")
    with pytest.raises(CtcDecodeError, match="remove it to tune again"):
        tune_beam(decoder, log_probs, TEXTS, config, tmp_path)
    assert isinstance(best, TunedBeam)


def test_a_beam_is_widened_until_the_gain_is_small(decoder, log_probs):
    utterances = list(log_probs.values())
    tried = widen(decoder, utterances)
    assert [beam.width for beam in tried] == [2**n for n in range(len(tried))]
    assert [beam.converged for beam in tried] == [False] * (len(tried) - 1) + [True]
    assert len(tried) > 1
    assert widen(decoder, utterances, most=2)[-1].width == 2
    assert widen(decoder.widened(8), utterances, most=1)[-1].width == 8


@pytest.mark.parametrize("wrong", [{"widths": ()}, {"widths": (8, 4)}, {"margins": (0.0,)}])
def test_invalid_beams_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BeamTuneConfig(**wrong)
