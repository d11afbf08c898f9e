"""The LSTM language model of the recipes: training; rescoring of hybrid systems with it."""

from collections.abc import Collection, Iterator, Sequence

from recipes.steps.data import lm_sources, need_user_files, transcripts_of
from recipes.steps.decoding import decoding_options
from recipes.steps.systems import (
    DecodedSystem,
    last_rows,
    nbest_folders,
    system_decoder,
    system_scorers,
    system_senones,
    tuning_errors,
)
from toolkit.decode.rescore import rescore_system
from toolkit.decode.system import write_word_times
from toolkit.errors import ToolkitError
from toolkit.fsa.lattice import Weights
from toolkit.lang.lang import Lang
from toolkit.lang.policy import LmText, TextPolicy
from toolkit.lang.text import read_sentences
from toolkit.models.neural_lm import NeuralLm
from toolkit.processes.workers import shared_workers
from toolkit.stages.run import Run
from toolkit.train.language_model import train_neural_lm


def train_lstm_lm(run: Run) -> dict[str, float]:
    """Train on the language model's text and the transcripts, for the words of `lang/`."""
    lang = Lang.load(run.need("lang"))
    return train_for_words(run, lang.vocabulary, lang.policy)


def train_for_words(run: Run, vocabulary: Collection[str], policy: TextPolicy) -> dict[str, float]:
    """Train on the language model's text and the transcripts of the training data.

    Args:
      run: the run of the stage.
      vocabulary: the recogniser's words.
      policy: how text and transcripts become words.
    """
    sources = lm_sources(run)
    text = sources.text
    if sources.arpa is not None:  # then the n-grams do not read the text
        need_user_files(run, text)
    policy = policy.with_lexicon(frozenset(vocabulary))
    transcripts = [words for _, words in sorted(transcripts_of(run, "train").items())]

    def sentences() -> Iterator[list[str]]:
        if text is not None:
            yield from read_sentences(text, LmText(policy))
        yield from filter(None, map(policy.words, transcripts))

    out, config = run.make("lstm_lm"), run.config.lstm_lm
    return train_neural_lm(sentences, vocabulary, config, out, run.device, run.progress)


def neural_name(system: DecodedSystem) -> str:
    """The folder, below decode/, of a system rescored with the LSTM language model."""
    return f"{system.name}_lstm_lm"


def neural_systems(run: Run, systems: Sequence[DecodedSystem]) -> list[DecodedSystem]:
    """Return the systems that are rescored, none without `neural`; see `Config.neural_systems`.

    Args:
      run: the run of the stage.
      systems: what the recipe has decoded, the simplest first.

    Raises:
      ToolkitError: the setting names a system that was not decoded.
    """
    if not run.config.neural:
        return []
    wanted = run.config.neural_systems
    if wanted:
        if unknown := set(wanted) - {system.name for system in systems}:
            raise ToolkitError(
                f"neural_systems: {', '.join(sorted(unknown))} was not decoded; there are "
                + ", ".join(system.name for system in systems)
            )
        return [system for system in systems if system.name in wanted]

    def errors(system: DecodedSystem) -> int:
        return tuning_errors(run, last_rows(run, system))

    return [min((system for system in systems if system.rescored), key=errors)]


@shared_workers()
def rescore_neural(run: Run, systems: Sequence[DecodedSystem]) -> dict[str, float]:
    """Rescore n-best lists of systems' last passes with the LSTM language model."""
    model, found = NeuralLm.load(run.need("lstm_lm"), run.device), {}
    config = run.config.lstm_rescoring
    for system in systems:
        long_enough = run.setting("nbest.count") >= config.count
        scorers, decoder = system_scorers(run, system), system_decoder(run, system)
        out = run.make(f"decode/{neural_name(system)}")
        tuned = run.need(f"decode/{system.name}/tuned.json")
        headline = rescore_system(
            system.name,
            f"{last_rows(run, system)[0].lm}+lstm",
            scorers,
            decoder=decoder,
            tuned=tuned,
            model=model,
            config=config,
            nbest=nbest_folders(run, system) if long_enough else None,
            out=out,
            **decoding_options(run),
        )
        decoder = decoder.at(Weights.load(tuned).acoustic_scale)
        senones = system_senones(run, system)
        write_word_times(scorers, decoder, run.need("lang"), senones, out, run.jobs)
        found |= {f"{system.name} {name}": value for name, value in headline.items()}
    return found
