"""Training of the LSTM language model: resumption, and what n-grams cannot learn."""

import math
import random
from dataclasses import replace

import pytest
import torch

from toolkit.lang.ngram import estimate, perplexity
from toolkit.models.config import WordLstmConfig
from toolkit.models.neural_lm import NeuralLm
from toolkit.train import language_model
from toolkit.train.config import NeuralLmConfig
from toolkit.train.errors import TrainingError
from toolkit.train.language_model import train_neural_lm

FILLERS = ["LA", "LI", "LO"]
ENDS = {"ONE": "UN", "TWO": "DEUX"}
VOCABULARY = [*FILLERS, *ENDS, *ENDS.values()]


def planted(count, seed):
    """Sentences whose last word depends on the first, with three words between."""
    draw = random.Random(seed)
    for _ in range(count):
        first = draw.choice(list(ENDS))
        yield [first, *draw.choices(FILLERS, k=3), ENDS[first]]


CONFIG = NeuralLmConfig(
    epochs=2,
    words_per_batch=60,
    samples=5,
    held_out=5,
    threads=1,
    checkpoint_seconds=0,
    model=WordLstmConfig(hidden=8, layers=2, dropout=0.2),
)


def train(out, config=CONFIG, count=90, **options):
    return train_neural_lm(lambda: planted(count, 1), VOCABULARY, config, out, **options)


def test_it_learns_dependencies_beyond_a_trigram(tmp_path):
    config = replace(
        CONFIG,
        epochs=6,
        words_per_batch=40,
        samples=100,
        initial_rate=3e-2,
        final_rate=1e-2,
        checkpoint_seconds=1e9,
        model=WordLstmConfig(hidden=20, layers=1, dropout=0.0),
    )
    headline = train(tmp_path, config, 400)
    lm, test = NeuralLm.load(tmp_path), list(planted(100, 2))
    scores = lm.score(test)
    words = sum(map(len, scores))
    neural = math.exp(-sum(s.sum() for s in scores) / words)
    trigram = perplexity(estimate(planted(400, 1), VOCABULARY, 3, (1,))[0], test).ppl
    assert neural < 0.9 * trigram
    assert headline["perplexity"] == pytest.approx(neural, rel=0.2)
    # the last word: sure for the network, one of two for the trigram
    assert sum(s[-2] for s in scores) / len(test) > math.log(0.9)
    either = lm.score([["ONE", "LA", "LI", "LA", end] for end in ENDS.values()])
    assert either[0].sum() > either[1].sum() + 2


@pytest.mark.parametrize("steps", [1, 5, 10])
def test_a_killed_training_ends_with_the_same_bits(tmp_path, interrupt_after, steps):
    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", progress=interrupt_after(steps))
    assert not (tmp_path / "killed/model.safetensors").exists()
    resumed = train(tmp_path / "killed")
    assert resumed["perplexity"] == whole["perplexity"]
    weights = [tmp_path / name / "model.safetensors" for name in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not list(tmp_path.glob("*/checkpoints/*"))


def test_the_best_epoch_is_kept(tmp_path, monkeypatch):
    """The second epoch spoils the model, so the model of the first is written."""
    one_epoch = train(tmp_path / "one", replace(CONFIG, epochs=1, final_rate=None))
    fit = language_model.fit

    def spoiling(*arguments, **options):
        return fit(*arguments, **options, schedule=lambda e, s, n: [3e-3, 3.0][e])

    monkeypatch.setattr(language_model, "fit", spoiling)
    two = train(tmp_path / "two")
    assert two["perplexity"] == one_epoch["perplexity"]
    lm, expected = (NeuralLm.load(tmp_path / name) for name in ("two", "one"))
    for name, value in expected.model.state_dict().items():
        assert torch.equal(lm.model.state_dict()[name], value)


def test_a_finished_training_is_not_repeated_and_another_is_not_continued(
    tmp_path, interrupt_after
):
    first, reports = train(tmp_path), interrupt_after()
    assert train(tmp_path, progress=reports) == first
    assert reports.reports == 0
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "other", progress=interrupt_after(3))
    with pytest.raises(TrainingError, match="initial_rate"):
        train(tmp_path / "other", replace(CONFIG, initial_rate=1e-4))


@pytest.mark.parametrize(
    "change", [{"words_per_batch": 0}, {"samples": 0}, {"held_out": 1}, {"vocabulary_size": 0}]
)
def test_impossible_settings_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        NeuralLmConfig(**change)
