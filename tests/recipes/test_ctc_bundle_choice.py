"""Which search the bundle of the CTC recipe holds."""

from types import SimpleNamespace

import pytest

from tests.dummies import setting_of
from toolkit.score.results import Result
from toolkit.score.wer import score

WORDS = ["A", "B", "C", "D", "E", "F", "G", "H"]


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """The name of the search that is chosen, by the numbers of wrong words in each utterance."""
    from recipes.steps import ctc

    def decoded(folder, wrong):
        texts = {f"u{n}": " ".join(["X"] * w + WORDS[w:]) for n, w in enumerate(wrong)}
        path = tmp_path / folder / "dev" / "text"
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{name} {text}\n" for name, text in texts.items()))
        found = score(dict.fromkeys(texts, " ".join(WORDS)), texts)
        return found, texts

    def choose(plain, ngrams, rescored=None):
        folders = {"words": "decode/ctc/words", "words+3gram": "decode/ctc/words+3gram"}
        folders["words+3gram+lstm"] = "decode/ctc_lstm_lm"
        given = {"words": plain, "words+3gram": ngrams, "words+3gram+lstm": rescored}
        rows = []
        for name, wrong in given.items():
            if wrong is not None:
                found, texts = decoded(folders[name], wrong)
                named = {"system": "ctc", "split": "dev", "lm": name, "rtf": 1.0, "command": ""}
                rows.append(Result.of(found, found, **named))
        cuts = [SimpleNamespace(id=name) for name in texts]
        monkeypatch.setattr(ctc, "cuts", lambda run, split: cuts)
        monkeypatch.setattr(ctc, "text_of", lambda cut: " ".join(WORDS))
        monkeypatch.setattr(ctc, "splits", lambda run: SimpleNamespace(tune=("dev",)))
        config = SimpleNamespace(lm=SimpleNamespace(order=3))
        run = SimpleNamespace(config=config, setting=setting_of(config), need=tmp_path.joinpath)
        names = [name for name in given if name != "words" and given[name] is not None]
        return ctc.best_search(run, names, rows)

    return choose


def test_a_few_errors_less_are_no_reason_to_leave_the_language_model_out(chosen):
    assert chosen([1, 0, 2, 1, 0, 1], [1, 1, 1, 1, 1, 2]) == "words+3gram"


def test_a_language_model_that_does_harm_is_left_out(chosen):
    assert chosen([0, 1, 0, 1, 0, 0], [2, 3, 2, 4, 2, 3]) == "words"


@pytest.mark.parametrize(
    ("rescored", "best"),
    [([1, 0, 1], "words+3gram+lstm"), ([1, 2, 0], "words+3gram"), ([3, 3, 3], "words+3gram")],
)
def test_of_the_searches_with_language_models_the_best_and_of_equals_the_simplest(
    chosen, rescored, best
):
    assert chosen([1, 1, 1], [1, 1, 1], rescored) == best
