"""The language model stage, and lmplz."""

import json
import os
import re
import sys

import pytest

from toolkit.lang.arpa import ArpaError, read_arpa, write_arpa
from toolkit.lang.config import NgramConfig
from toolkit.lang.lm import estimate_with_lmplz, lm_word_counts, prepare_lm
from toolkit.lang.ngram import (
    NgramError,
    estimate,
    interpolate,
    mixture_weights,
    perplexity,
    prune_by_entropy,
)
from toolkit.lang.text_policy import TextPolicy

TEXTS = {"train": {"b": "A b", "a": "b, a c", "e": ""}, "dev": {"d": "a q"}}
TRAIN = [["B", "A", "C"], ["A", "B"]]


def test_from_transcripts(tmp_path):
    headline = prepare_lm(NgramConfig(order=2), TEXTS, {"A", "B", "C"}, tmp_path)
    expected, discounts = estimate(TRAIN, {"A", "B", "C"}, 2)
    model = read_arpa(tmp_path / "lm.arpa")
    assert model.logprob(["B", "C"]) == pytest.approx(expected.logprob(["B", "C"]), abs=1e-6)
    dev = perplexity(expected, [["A", "Q"]])
    assert headline["ppl_dev"] == pytest.approx(dev.ppl_known)
    assert headline["oov_percent_dev"] == 50.0
    assert headline["1-grams"] == 6
    lines = (tmp_path / "perplexity.tsv").read_text().splitlines()
    figures = f"{dev.ppl:.2f}\t{dev.ppl_known:.2f}\t{dev.ppl_charged:.2f}"
    assert lines[1] == f"dev\t1\t2\t1\t0.5000\t{figures}"
    report = json.loads((tmp_path / "report.json").read_text())
    rules = [description.split()[0] for description in report["discounts"]["transcripts"]]
    assert rules == [discount.rule for discount in discounts]


def test_from_text(tmp_path):
    (tmp_path / "text.txt").write_text("a c a\nb\n")
    config = NgramConfig(text=tmp_path / "text.txt", order=3, mix_transcripts=False)
    assert lm_word_counts(config) == {"A": 2, "C": 1, "B": 1}
    prepare_lm(config, TEXTS, {"A", "B"}, tmp_path)
    expected, _ = estimate([["A", "C", "A"], ["B"]], {"A", "B"}, 3)
    model = read_arpa(tmp_path / "lm.arpa")
    assert model.logprob(["A", "C"]) == pytest.approx(expected.logprob(["A", "C"]), abs=1e-6)


def test_mixture_weights_maximise_the_likelihood_of_the_tuning_splits(tmp_path):
    (tmp_path / "text.txt").write_text("a c a\nb\n" * 3)
    texts = TEXTS | {"test": {"t": "a b"}}
    config = NgramConfig(text=tmp_path / "text.txt", order=2)
    headline = prepare_lm(config, texts, {"A", "B", "C"}, tmp_path, tune=("dev",))
    parts = [estimate(t, {"A", "B", "C"}, 2)[0] for t in ([["A", "C", "A"], ["B"]] * 3, TRAIN)]
    weights = mixture_weights(parts, [["A", "Q"]])
    assert headline["transcripts_weight"] == pytest.approx(weights[1])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["weights"] == pytest.approx({"text": weights[0], "transcripts": weights[1]})
    assert list(report["discounts"]) == ["text", "transcripts"]
    expected = interpolate(parts, weights)
    model = read_arpa(tmp_path / "lm.arpa")
    assert model.logprob(["B", "A"]) == pytest.approx(expected.logprob(["B", "A"]), abs=1e-5)
    prepare_lm(config, texts, {"A", "B", "C"}, tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["weights"] == {"text": 0.5, "transcripts": 0.5}


def test_models_are_pruned(tmp_path):
    config = NgramConfig(order=2, prune=0.03)
    prepare_lm(config, TEXTS, {"A", "B", "C"}, tmp_path)
    expected = prune_by_entropy(estimate(TRAIN, {"A", "B", "C"}, 2)[0], 0.03)
    whole = estimate(TRAIN, {"A", "B", "C"}, 2)[0]
    model = read_arpa(tmp_path / "lm.arpa")
    assert len(model.levels[1].word) == len(expected.levels[1].word) < len(whole.levels[1].word)
    assert model.logprob(["B", "C"]) == pytest.approx(expected.logprob(["B", "C"]), abs=1e-6)


def test_an_arpa_file_is_restricted_to_the_vocabulary(tmp_path):
    prepare_lm(NgramConfig(order=2), TEXTS, {"A", "B", "C"}, tmp_path / "one")
    config = NgramConfig(arpa=tmp_path / "one/lm.arpa")
    weights = lm_word_counts(config)
    assert {*weights} == {"A", "B", "C"}
    assert weights["A"] > weights["C"]
    prepare_lm(config, TEXTS, {"A", "B", "NEW"}, tmp_path / "two")
    model = read_arpa(tmp_path / "two/lm.arpa")
    assert model.vocabulary == ("</s>", "<UNK>", "<s>", "A", "B")
    assert json.loads((tmp_path / "two/report.json").read_text())["missing_words"] == 1
    whole = read_arpa(config.arpa)
    assert model.logprob(["A", "B"]) == pytest.approx(whole.logprob(["A", "B"]))


def test_an_arpa_file_without_words_of_the_vocabulary_is_refused(tmp_path):
    prepare_lm(NgramConfig(order=2), TEXTS, {"A", "B", "C"}, tmp_path / "one")
    arpa = tmp_path / "small.arpa"
    text = (tmp_path / "one/lm.arpa").read_text()
    for word in "ABC":
        text = re.sub(rf"(?<=[\t ]){word}(?=[\t \n])", word.lower(), text)
    arpa.write_text(text)
    with pytest.raises(ArpaError, match=r"none of its words, such as 'c'.*such as 'C'. Use the"):
        prepare_lm(NgramConfig(arpa=arpa), TEXTS, {"A", "B", "C"}, tmp_path / "two")


def test_no_weights_without_text():
    assert lm_word_counts(NgramConfig()) is None


def test_words_of_another_alphabet(tmp_path):
    (tmp_path / "text.txt").write_text("Да, нет.\nда\n")
    config = NgramConfig(text=tmp_path / "text.txt", order=2)
    letters = TextPolicy("letters-upper-1")
    assert lm_word_counts(config) == {}
    assert lm_word_counts(config, letters) == {"ДА": 2, "НЕТ": 1}
    texts = {"train": {"a": "нет"}, "dev": {"b": "Да!"}}
    headline = prepare_lm(config, texts, {"ДА", "НЕТ"}, tmp_path, policy=letters)
    assert (headline["1-grams"], headline["oov_percent_dev"]) == (5, 0.0)
    assert "ДА НЕТ" in (tmp_path / "lm.arpa").read_text()


FAKE = """#!{python}
import shutil, sys
arguments = sys.argv[1:]
open({log!r}, "w").write(" ".join(arguments))
text = open(arguments[arguments.index("--text") + 1]).read()
assert text == "A B\\nC\\n", text
shutil.copy({arpa!r}, arguments[arguments.index("--arpa") + 1])
sys.exit({status})
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put a program called lmplz on the PATH that writes a ready model."""

    def install(status):
        model = estimate([["A", "B"], ["C"]], {"A", "B"}, order=2)[0]
        write_arpa(model, tmp_path / "ready.arpa")
        program = tmp_path / "lmplz"
        arpa, log = str(tmp_path / "ready.arpa"), str(tmp_path / "log")
        program.write_text(FAKE.format(python=sys.executable, arpa=arpa, log=log, status=status))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return model

    return install


def test_model_and_arguments(fake, tmp_path):
    expected = fake(0)
    model = estimate_with_lmplz([["A", "B"], ["C"]], {"A", "B"}, 3, (1, 2))
    assert model.vocabulary == expected.vocabulary
    arguments = (tmp_path / "log").read_text()
    assert arguments.startswith("-o 3 --discount_fallback --limit_vocab_file")
    assert "--prune 0 1 1 " in arguments


def test_a_failure_of_lmplz_is_raised(fake):
    fake(3)
    with pytest.raises(NgramError, match="status 3"):
        estimate_with_lmplz([["A", "B"], ["C"]], {"A", "B"}, 3, (1,))


def test_a_missing_lmplz_is_an_error_that_names_the_alternative(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NgramError, match="set `estimator` to 'numpy'"):
        estimate_with_lmplz([["A"]], {"A"}, 3, (1,))
