"""Tuning of weight and bonus: fewest errors; among equals the smallest values."""

import json
import math

import pytest

from toolkit.decode.config import TuneConfig, WordsConfig
from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.ctc.system import TunedWeights, tune_words

REFERENCES = {"u1": "A B", "u2": "C"}


class TableDecoder:
    """A fake decoder that looks up the texts of a weight and a bonus in a table."""

    config = WordsConfig()

    def __init__(self, table):
        self._table = table

    def texts(self, utterances, pairs, jobs=1):
        return (self._table[pair] for pair in pairs)


def test_the_fewest_errors_win_and_the_grid_is_written(tmp_path):
    table = {
        (1.0, 0.0): ["A", "C"],
        (1.0, 2.0): ["A B", "C"],
        (2.0, 0.0): ["", ""],
        (2.0, 2.0): ["A B C", "C"],
    }
    table |= {(w, b): ["", ""] for w in (0.5, 1.0, 2.0) for b in (0.0, 2.0, 3.0)} | table
    config = TuneConfig(lm_weights=(1.0, 2.0), word_bonuses=(0.0, 2.0))
    best = tune_words(TableDecoder(table), {"u1": None, "u2": None}, REFERENCES, config, tmp_path)
    assert (best.lm_weight, best.word_bonus, best.errors, best.words) == (1.0, 2.0, 0, 3)
    rows = [line.split("\t") for line in (tmp_path / "grid.tsv").read_text().splitlines()]
    assert rows[0] == ["lm_weight", "word_bonus", "errors", "words", "wer"]
    errors = {(float(row[0]), float(row[1])): int(row[2]) for row in rows[1:]}
    assert errors == dict.fromkeys(table, 3) | {(1.0, 0.0): 1, (1.0, 2.0): 0, (2.0, 2.0): 1}
    stored = json.loads((tmp_path / "tuned.json").read_text())
    assert (stored["lm_weight"], stored["word_bonus"]) == (1.0, 2.0)


def test_the_grid_grows_where_the_best_lies_at_its_end(tmp_path):
    class Formula:
        """Fewest errors at a weight of 0.05 and a bonus of 3: each step away loses a word."""

        config = WordsConfig()

        def texts(self, utterances, pairs, jobs=1):
            for weight, bonus in pairs:
                steps = round(abs(math.log2(weight / 0.05))) + abs(bonus - 3)
                yield [" ".join("A" * (20 - int(steps)))]

    config = TuneConfig(lm_weights=(0.4, 0.8, 1.6), word_bonuses=(0.0, 1.0, 2.0))
    references = {"u1": " ".join("A" * 20)}
    best = tune_words(Formula(), {"u1": None}, references, config, tmp_path / "far")
    assert (best.lm_weight, best.word_bonus, best.errors) == (0.05, 3.0, 0)
    single = TuneConfig(lm_weights=(0.4,), word_bonuses=(1.0,))
    best = tune_words(Formula(), {"u1": None}, references, single, tmp_path / "single")
    assert (best.lm_weight, best.word_bonus) == (0.4, 1.0)


def test_stored_weights_are_reused(tmp_path):
    stored = '{"lm_weight": 3.0, "word_bonus": -1.0, "errors": 5, "words": 9}'
    (tmp_path / "tuned.json").write_text(stored)
    tuned = tune_words(
        TableDecoder({}), {"u1": None, "u2": None}, REFERENCES, TuneConfig(), tmp_path
    )
    assert tuned == TunedWeights(3.0, -1.0, 5, 9)
    (tmp_path / "tuned.json").write_text(stored[:20])
    with pytest.raises(CtcDecodeError, match="remove it to tune again"):
        tune_words(TableDecoder({}), {}, REFERENCES, TuneConfig(), tmp_path)


def test_among_equals_the_smallest_weights_win(tmp_path):
    table = {(w, b): ["A B", "C"] for w in (0.5, 1.0) for b in (-1.0, 0.0, 1.0)}
    table |= {(0.25, b): ["", ""] for b in (-1.0, 0.0, 1.0)}
    config = TuneConfig(lm_weights=(1.0, 0.5), word_bonuses=(-1.0, 1.0, 0.0))
    best = tune_words(TableDecoder(table), {"u1": None, "u2": None}, REFERENCES, config, tmp_path)
    assert (best.lm_weight, best.word_bonus) == (0.5, 0.0)


@pytest.mark.parametrize("text", ["A B", ""])
def test_too_few_words_tune_nothing(text, tmp_path, caplog):
    class FakeDecoder:
        config = WordsConfig(lm_weight=0.8, word_bonus=-0.5)

        def texts(self, utterances, pairs, jobs=1):
            assert pairs == [(0.8, -0.5)]
            yield ["A"]

    best = tune_words(FakeDecoder(), {"u1": None}, {"u1": text}, TuneConfig(), tmp_path)
    words = len(text.split())
    assert best == TunedWeights(0.8, -0.5, min(words, 1), words)
    assert f"NOT TUNED: the development splits have {words} words" in caplog.text
    assert tune_words(FakeDecoder(), {}, {}, TuneConfig(), tmp_path) == best


def test_an_empty_grid_is_refused():
    with pytest.raises(ValueError, match="value each"):
        TuneConfig(lm_weights=())


@pytest.mark.parametrize(("wrong", "chosen"), [(2, (0.5, 1.0)), (9, (2.0, 0.0))])
def test_the_decoders_weights_are_replaced_only_when_others_are_significantly_better(
    tmp_path, wrong, chosen
):
    """Of ten utterances the decoder's own weights, which the grid lacks, have some wrong."""
    names = [f"u{n}" for n in range(10)]

    class FakeDecoder:
        config = WordsConfig(lm_weight=0.5, word_bonus=1.0)

        def texts(self, utterances, pairs, jobs=1):
            for weight, bonus in pairs:
                errors = {(2.0, 0.0): 0, (0.5, 1.0): wrong}.get((weight, bonus), 10)
                yield ["A" if n >= errors else "B" for n in range(10)]

    config = TuneConfig(lm_weights=(1.0, 2.0, 3.0), word_bonuses=(0.0, 2.0), untuned_within=2.0)
    best = tune_words(
        FakeDecoder(), dict.fromkeys(names), dict.fromkeys(names, "A"), config, tmp_path
    )
    assert (best.lm_weight, best.word_bonus) == chosen
    assert best.errors == (wrong if chosen == (0.5, 1.0) else 0)


def test_standard_errors_are_not_negative():
    with pytest.raises(ValueError, match="untuned_within"):
        TuneConfig(untuned_within=-1.0)


def test_a_single_weight_is_the_users_choice(tmp_path):
    class FakeDecoder:
        config = WordsConfig(lm_weight=0.5, word_bonus=1.0)

        def texts(self, utterances, pairs, jobs=1):
            return (["A"] for _ in pairs)

    config = TuneConfig(lm_weights=(0.7,), word_bonuses=(0.0, 2.0), untuned_within=2.0)
    best = tune_words(FakeDecoder(), {"u1": None}, {"u1": "A A A"}, config, tmp_path)
    assert (best.lm_weight, best.word_bonus) == (0.7, 1.0)
