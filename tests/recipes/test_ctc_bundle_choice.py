"""Which search the bundle of the CTC recipe holds."""

from types import SimpleNamespace

import pytest

from tests.dummies import setting_of
from toolkit.score.results import Result
from toolkit.score.wer import score

WORDS = ["A", "B", "C", "D", "E", "F", "G", "H"]


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """Return a function: errors of each utterance by search -> name of the chosen search."""
    from recipes.steps import ctc

    def write_hypotheses(folder, wrong):
        texts = {f"u{n}": " ".join(["X"] * w + WORDS[w:]) for n, w in enumerate(wrong)}
        path = tmp_path / folder / "dev" / "text"
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{name} {text}\n" for name, text in texts.items()))
        scores = score(dict.fromkeys(texts, " ".join(WORDS)), texts)
        return scores, texts

    def choose(lexicon_errors, ngram_errors, rescored_errors=None):
        folders = {"words": "decode/ctc/words", "words+3gram": "decode/ctc/words+3gram"}
        folders["words+3gram+lstm"] = "decode/ctc_lstm_lm"
        errors_by_search = {
            "words": lexicon_errors,
            "words+3gram": ngram_errors,
            "words+3gram+lstm": rescored_errors,
        }
        rows = []
        for name, wrong in errors_by_search.items():
            if wrong is not None:
                scores, texts = write_hypotheses(folders[name], wrong)
                named = {"system": "ctc", "split": "dev", "lm": name, "rtf": 1.0, "command": ""}
                rows.append(Result.of(scores, scores, **named))
        cuts = [SimpleNamespace(id=name) for name in texts]
        monkeypatch.setattr(ctc, "cuts", lambda run, split: cuts)
        monkeypatch.setattr(ctc, "text_of", lambda cut: " ".join(WORDS))
        monkeypatch.setattr(ctc, "splits", lambda run: SimpleNamespace(tune=("dev",)))
        config = SimpleNamespace(lm=SimpleNamespace(order=3))
        run = SimpleNamespace(config=config, setting=setting_of(config), need=tmp_path.joinpath)
        names = [
            name
            for name in errors_by_search
            if name != "words" and errors_by_search[name] is not None
        ]
        return ctc.best_search(run, names, rows)

    return choose


def test_an_insignificant_gain_without_the_language_model_keeps_it(chosen):
    assert chosen([1, 0, 2, 1, 0, 1], [1, 1, 1, 1, 1, 2]) == "words+3gram"


def test_a_harmful_language_model_is_dropped(chosen):
    assert chosen([0, 1, 0, 1, 0, 0], [2, 3, 2, 4, 2, 3]) == "words"


@pytest.mark.parametrize(
    ("rescored", "best"),
    [([1, 0, 1], "words+3gram+lstm"), ([1, 2, 0], "words+3gram"), ([3, 3, 3], "words+3gram")],
)
def test_the_best_search_with_a_language_model_wins_and_the_simplest_of_equals(
    chosen, rescored, best
):
    assert chosen([1, 1, 1], [1, 1, 1], rescored) == best
