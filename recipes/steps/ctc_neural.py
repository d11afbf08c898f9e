"""The LSTM language model of the CTC recipe: training, and rescoring with it."""

from recipes.steps.ctc import (
    RESCORED,
    lm_policy,
    rescored_search,
    split_data,
    tuned_search,
    write_times,
)
from recipes.steps.data import splits
from recipes.steps.neural_lm import train_for_words
from toolkit.decode.rescore import rescore_ctc
from toolkit.models.neural_lm import NeuralLm
from toolkit.stages.run import Run
from toolkit.storage.words import split_words


def train_lstm_lm(run: Run) -> dict[str, float]:
    """Train on the language model's text and the transcripts, for the words of the dictionary."""
    words = split_words(run.need("words.txt").read_text(encoding="utf-8"))
    return train_for_words(run, words, lm_policy(run))


def rescore(run: Run) -> dict[str, float]:
    """Rescore the n-best lists of the search with dictionary and n-grams."""
    out, (decoder, lm) = run.make(RESCORED), tuned_search(run)
    data = {s: split_data(run, s, run.need(f"posteriors/{s}")) for s in splits(run).decoded}
    found = rescore_ctc(
        data,
        splits(run).tune,
        decoder,
        lm,
        NeuralLm.load(run.need("lstm_lm"), run.device),
        run.config.lstm_rescoring,
        out,
        run.jobs,
        {"system": "ctc", "lm": rescored_search(run), "command": run.command},
        run.progress,
    )
    write_times(run, data, sorted(out.glob("*/text")))
    return found
