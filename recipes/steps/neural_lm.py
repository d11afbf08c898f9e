"""The LSTM language model of the hybrid recipes: training, and rescoring with it."""

from collections.abc import Iterator
from pathlib import Path

from recipes.steps.data import lm_config, texts
from recipes.steps.decoding import decoding_options
from recipes.steps.network import network_decoder, network_scorers
from toolkit.decode.rescoring.system import rescore_system
from toolkit.lang.lang import Lang
from toolkit.lang.letters import normaliser
from toolkit.lang.text import read_sentences
from toolkit.models.neural_lm import NeuralLm
from toolkit.stages.run import Run
from toolkit.train.language.training import train_neural_lm


def train_lstm_lm(run: Run) -> dict[str, float]:
    """Train on the language model's text and the transcripts of the training data."""
    lang, text = Lang.load(run.need("lang")), lm_config(run, run.config.lm).text
    transcripts = [words for _, words in sorted(texts(run)["train"].items())]

    def sentences() -> Iterator[list[str]]:
        rules = normaliser(lang.normaliser)
        if text is not None:
            yield from read_sentences(text, rules)
        yield from filter(None, map(rules.words, transcripts))

    out, config = run.make("lstm_lm"), run.config.lstm_lm
    return train_neural_lm(sentences, lang.vocabulary, config, out, run.device, run.progress)


def rescore_network(run: Run, system: str, features: Path) -> dict[str, float]:
    """Rescore n-best lists of a network's last pass with the LSTM language model."""
    out = run.make(f"decode/{system}_lstm_lm")
    return rescore_system(
        system,
        f"{run.config.rescoring.order}gram+lstm",
        network_scorers(run, system, features),
        decoder=network_decoder(run),
        tuned=run.need(f"decode/{system}/tuned.json"),
        model=NeuralLm.load(run.need("lstm_lm"), run.device),
        config=run.config.lstm_rescoring,
        **decoding_options(run, out),
    )
