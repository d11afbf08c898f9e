"""Rescoring of the dictionary search's n-best lists with a neural language model."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.synthetic import Emissions
from toolkit.decode.config import NeuralRescoringConfig, WordsConfig
from toolkit.decode.ctc.search import CtcHypothesis, WordsDecoder
from toolkit.decode.ctc.system import SplitData
from toolkit.decode.rescore import (
    CtcRescorer,
    Rescorer,
    RescoringWeights,
    missing_words,
    nbest_search_config,
    rescore_ctc,
    to_nbest_list,
    to_weights,
)
from toolkit.fsa.lattice import Weights
from toolkit.lang.ngram import estimate
from toolkit.lang.units import Characters

UNITS = Characters()
WORDS = ("BALL", "BIG", "CALL", "CAT", "SAT", "THE")
SENTENCES = [["THE", "BIG", "BALL"], ["THE", "CAT", "SAT"], ["THE", "BIG", "CAT"]]
LM = estimate(SENTENCES, set(WORDS), 2)[0]
SEARCH = WordsConfig(width=30, lm_weight=0.8, word_bonus=0.4)
WIDE = WordsConfig(width=20_000, margin=math.inf, lm_weight=0.8, word_bonus=0.4)
"""So wide that the scores of all texts are complete."""
SENTENCES = ("THE BIG CALL", "THE CAT SAT")


class Preference:
    """A language model that is sure of some texts."""

    def __init__(self, *preferred):
        self.preferred = [text.split() for text in preferred]

    def score(self, sentences):
        return [
            np.full(len(words) + 1, 0.0 if list(words) in self.preferred else -100.0)
            for words in sentences
        ]


def posteriors(text, seed=0):
    """Posteriors in which B and C sound alike."""
    rng = np.random.default_rng(seed)
    drawn = Emissions().draw(UNITS.encode(text), UNITS.size, UNITS.blank, rng)
    alike = UNITS.encode("BC")
    drawn[:, alike] = drawn[:, alike].max(axis=1, keepdims=True)
    return torch.from_numpy(drawn)


@given(st.floats(0.1, 4.0), st.floats(-3.0, 3.0))
def test_the_weights_of_a_search_are_those_of_its_lists(lm_weight, word_bonus):
    config = WordsConfig(width=8, lm_weight=lm_weight, word_bonus=word_bonus)
    restored = nbest_search_config(config, to_weights(config), count=20)
    assert restored.lm_weight == pytest.approx(lm_weight)
    assert restored.word_bonus == pytest.approx(word_bonus)
    assert (restored.width, restored.nbest) == (20, 20)
    assert nbest_search_config(config, to_weights(config), count=5).width == 8


def test_scores_are_split_into_parts_and_summed_again():
    config = nbest_search_config(WIDE, to_weights(WIDE), 20)
    hypotheses = WordsDecoder(UNITS, WORDS, LM, config).decode(posteriors("THE BIG BALL"))
    listed = to_nbest_list(hypotheses, LM, config)
    assert listed.texts == tuple(hypothesis.text for hypothesis in hypotheses)
    assert len(listed.texts) > 5
    expected = [math.log(10) * LM.logprob(text.split()) for text in listed.texts]
    assert listed.lm == pytest.approx(expected)
    # Another weight of the language model changes its share of the scores alone.
    reweighted = nbest_search_config(WIDE, Weights(2.0, -1.0), 20)
    reweighted_hypotheses = WordsDecoder(UNITS, WORDS, LM, reweighted).decode(
        posteriors("THE BIG BALL")
    )
    acoustic_by_text = dict(zip(listed.texts, listed.acoustic, strict=True))
    acoustic = to_nbest_list(reweighted_hypotheses, LM, reweighted).acoustic
    common = [
        (acoustic_by_text[h.text], a)
        for h, a in zip(reweighted_hypotheses, acoustic, strict=True)
        if h.text in acoustic_by_text
    ]
    assert len(common) > 5
    assert [a for a, _ in common] == pytest.approx([b for _, b in common], abs=1e-3)
    total = RescoringWeights.of(0.0, to_weights(config)).total(listed, np.zeros(len(hypotheses)))
    assert config.lm_weight * total == pytest.approx(
        [hypothesis.score for hypothesis in hypotheses], abs=1e-4
    )


def test_words_missing_from_the_ngrams_share_the_unknown_probability():
    """The acoustic score of a text does not depend on the weight of the language model."""
    words = (*WORDS, "BIT", "HAT")
    missing = missing_words(LM, words)
    assert missing == 2
    acoustic = []
    for weights in (to_weights(WIDE), Weights(2.0, -1.0)):
        config = nbest_search_config(WIDE, weights, 60)
        hypotheses = WordsDecoder(UNITS, words, LM, config).decode(posteriors("THE HAT SAT HAT"))
        listed = to_nbest_list(hypotheses, LM, config, missing)
        acoustic.append(dict(zip(listed.texts, listed.acoustic, strict=True)))
    common = [text for text in acoustic[0] if text in acoustic[1]]
    assert "THE HAT SAT HAT" in common
    for text in common:
        assert acoustic[0][text] == pytest.approx(acoustic[1][text], abs=1e-3)


def test_where_no_text_is_possible_none_is_chosen():
    nothing = [CtcHypothesis("", -math.inf)]
    rescorer = Rescorer(Preference("THE CAT"), RescoringWeights(0.5, 1.0, 0.0))
    assert CtcRescorer(rescorer, LM, SEARCH).best(nothing) == ""


def rescored(out, model, weights=(0.0, 0.5, 1.0), sentences=SENTENCES, failed=None):
    """Dev and test, each with the texts of `sentences`; half of a minute of speech.

    `failed` has transcripts of utterances of test that have no posteriors.
    """
    splits = {}
    for seed, split in enumerate(("dev", "test")):
        texts = {f"{split}{n}": text for n, text in enumerate(sentences * 5)}
        split_posteriors = {
            u: posteriors(text, 7 * seed + n) for n, (u, text) in enumerate(texts.items())
        }
        texts |= (failed or {}) if split == "test" else {}
        splits[split] = SplitData(split_posteriors, texts, dict.fromkeys(texts, "anna"), 30.0)
    decoder = WordsDecoder(UNITS, WORDS, LM, SEARCH)
    named = {"system": "ctc", "lm": "words+2gram+lstm", "command": "./run_ctc.py"}
    config = NeuralRescoringConfig(count=20, weights=weights)
    headline = rescore_ctc(splits, ["dev"], decoder, LM, model, config, out, 1, named)
    return splits, decoder, headline


def texts_of(path):
    return dict(line.partition(" ")[::2] for line in path.read_text().splitlines())


def test_a_model_of_the_references_lowers_the_error_rate(tmp_path):
    """The bigrams expect BALL, of which CALL has the sound; the other model does not."""
    splits, decoder, headline = rescored(tmp_path, Preference(*SENTENCES))
    assert headline["neural weight"] > 0
    assert headline["wer test"] == 0.0
    first_pass = {name: decoder.decode(x)[0].text for name, x in splits["test"].posteriors.items()}
    assert first_pass != splits["test"].references
    assert texts_of(tmp_path / "test/text") == dict(splits["test"].references)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(r["system"], r["split"], r["lm"]) for r in rows] == [
        ("ctc", "dev", "words+2gram+lstm"),
        ("ctc", "test", "words+2gram+lstm"),
    ]
    # The weights written are those with which a bundle finds the same texts.
    weights = RescoringWeights.load(tmp_path / "weights.json")
    pair = Weights(weights.acoustic_scale, to_weights(SEARCH).word_penalty)
    config = nbest_search_config(SEARCH, pair, 20)
    rescorer = CtcRescorer(Rescorer(Preference(*SENTENCES), weights), LM, config)
    search = decoder.configured(config)
    chosen = {n: rescorer.best(search.decode(x)) for n, x in splits["test"].posteriors.items()}
    assert chosen == texts_of(tmp_path / "test/text")


def test_a_model_that_does_not_help_is_not_used(tmp_path):
    *_, headline = rescored(tmp_path, Preference("CAT CAT"), sentences=("THE BIG BALL",))
    assert headline["neural weight"] == 0.0
    grid = (tmp_path / "grid.tsv").read_text().splitlines()
    assert {line.split("\t")[0] for line in grid[1:]} == {"0", "0.5", "1"}


def test_utterances_without_posteriors_are_deletions(tmp_path):
    rescored(tmp_path, Preference(*SENTENCES), failed={"short": "THE CAT"})
    rows = {row["split"]: row for row in json.loads((tmp_path / "rows.json").read_text())}
    assert (rows["dev"]["del"], rows["test"]["del"]) == (0, 2)
    assert rows["test"]["ref_words"] == rows["dev"]["ref_words"] + 2
    assert texts_of(tmp_path / "test/text")["short"] == ""
