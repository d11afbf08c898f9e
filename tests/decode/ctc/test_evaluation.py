"""The search that evaluates a training."""

import numpy as np
import pytest
import torch

from toolkit.decode.config import EvaluationConfig
from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.ctc.evaluation import SearchFiles, make_recognition
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import estimate
from toolkit.lang.units import Characters
from toolkit.models.config import CtcConfig
from toolkit.models.ctc import CtcModel
from toolkit.score.wer import error_rates
from toolkit.train.ctc.evaluation import HeldOutEvaluation, sentences
from toolkit.train.ctc.objective import CtcLoss
from toolkit.train.ctc.readers import CtcBatch

UNITS = Characters()


@pytest.fixture
def files(tmp_path):
    (tmp_path / "words.txt").write_text("A\nCAT\nSAT\n")
    model = estimate([["A", "CAT", "SAT"]], {"A", "CAT", "SAT"}, 2)[0]
    write_arpa(model, tmp_path / "lm.arpa")
    return SearchFiles(tmp_path / "words.txt", tmp_path / "lm.arpa")


def spell(text):
    """Posteriors in which a text is nearly certain, one letter a little less."""
    rows = []
    for label in UNITS.encode(text):
        rows += [label, UNITS.blank]
    scores = torch.full((len(rows), UNITS.size), -6.0)
    scores[range(len(rows)), rows] = 0.0
    return scores


@pytest.mark.parametrize(
    ("search", "expected"), [("prefixes", "A CRT"), ("words", "A CAT"), ("words+lm", "A CAT")]
)
def test_the_configured_search_is_used(files, search, expected):
    recognition = make_recognition(UNITS, 32, 1, EvaluationConfig(search), files)
    posteriors = spell("a crt")
    assert recognition.search.decode(posteriors)[0].text == expected
    greedy_text = recognition.greedy_search.decode(posteriors)[0].text  # with one prefix
    assert set(greedy_text.split()) <= (
        {"A", "CRT"} if search == "prefixes" else {"A", "CAT", "SAT"}
    )


def test_a_dictionary_is_needed_for_words():
    with pytest.raises(CtcDecodeError, match="needs a dictionary"):
        make_recognition(UNITS, 32, 1, EvaluationConfig("words"))


@pytest.mark.parametrize("wrong", [{"search": "x"}, {"utterances": 0}, {"lm_weight": -1.0}])
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EvaluationConfig(**wrong)
    name = EvaluationConfig("words+lm", utterances=25).name(256)
    assert name == "words+lm, width 256, 25 utterances"


def batches(sizes):
    """Utterances of 40 frames in batches of these sizes."""
    rng, number = np.random.default_rng(0), 0
    for size in sizes:
        labels = torch.tensor([UNITS.encode("cat")] * size)
        yield CtcBatch(
            [f"u{number + n}" for n in range(size)],
            torch.from_numpy(rng.standard_normal((size, 40, 3)).astype(np.float32)),
            torch.full((size,), 40),
            labels,
            torch.full((size,), labels.shape[1]),
            40 * size,
        )
        number += size


def test_recognised_utterances_do_not_depend_on_batches(files):
    config = EvaluationConfig("words", utterances=5)
    torch.manual_seed(0)
    model = CtcModel(CtcConfig(3, UNITS.size, (4,), (3,), (2,), lstm_layers=1, hidden=4))
    scored_texts = []

    def rates(references, hypotheses):
        scored_texts.append((tuple(references), tuple(hypotheses.values())))
        return error_rates(references, hypotheses)

    for sizes in ((12,), (5, 7), (1, 4, 7)):
        recognition = make_recognition(UNITS, 8, 1, config, files)
        recognition = type(recognition)(**{**vars(recognition), "score": rates})
        data = list(batches((12,)))
        whole = data[0]
        cut, begin = [], 0
        for size in sizes:
            part = slice(begin, begin + size)
            cut.append(
                CtcBatch(
                    whole.ids[part],
                    whole.inputs[part],
                    whole.input_lengths[part],
                    whole.labels[part],
                    whole.label_lengths[part],
                    40 * size,
                )
            )
            begin += size
        HeldOutEvaluation(cut, recognition, CtcLoss(UNITS.blank))(model)
    assert len(scored_texts[0][0]) == 5
    assert scored_texts[0] == scored_texts[1] == scored_texts[2]
    recognition = make_recognition(UNITS, 8, 1, EvaluationConfig("words"), files)
    references, hypotheses = sentences(model, whole, recognition)
    assert len(references) == len(hypotheses) == 12
