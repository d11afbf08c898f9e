"""Steps of the hybrid recipes before acoustic training: data check, lexicon, language models."""

import logging

from recipes.steps.data import (
    check_audio,
    lm_config,
    lm_sources,
    need_user_files,
    splits,
    texts,
)
from toolkit.corpus.manifest import iter_cuts, text_of
from toolkit.kaldi.dict_lang import read_lexicon
from toolkit.lang.config import LangConfig
from toolkit.lang.lang import Lang
from toolkit.lang.lm import prepare_lm, word_weights
from toolkit.lang.policy import AS_GIVEN
from toolkit.lang.prepare import prepare_lang, source_dictionary, text_policy
from toolkit.stages.run import Run
from toolkit.storage.words import split_words

logger = logging.getLogger(__name__)


def lexicon_config(run: Run) -> LangConfig:
    """Return the settings of the lexicon that words are looked up in, without the vocabulary's."""
    config = LangConfig(
        lexicon=run.setting("lang.lexicon"),
        normaliser=run.setting("lang.normaliser"),
        stress=run.setting("lang.stress"),
        strip_stress=run.setting("lang.strip_stress"),
    )
    need_user_files(run, config.lexicon_file)
    return config


def lang_config(run: Run) -> LangConfig:
    """Return the settings of lexicon and vocabulary."""
    need_user_files(run, run.config.lang.lexicon_file)
    return run.config.lang


def check_splits(run: Run) -> dict[str, float]:
    """Check all splits; utterances that cannot be used are excluded."""
    manifests = [run.need(f"data/{split}.jsonl") for split in splits(run).all]
    words = {w for path in manifests for cut in iter_cuts(path) for w in split_words(text_of(cut))}
    config = lexicon_config(run)
    lexicon = source_dictionary(config, words, read_lexicon).lexicon.shortest()
    return check_audio(run, lexicon, config.normaliser == AS_GIVEN)


def prepare_language(run: Run) -> dict[str, float]:
    """Prepare lexicon and phones, for the words of transcripts, of LM text and of `lang.words`."""
    lang = lang_config(run)
    need_user_files(run, lang.words_file)
    dictionary = None if lang.lexicon == "graphemes" else source_dictionary(lang, read=read_lexicon)
    policy = text_policy(lang, dictionary.lexicon if dictionary else ())
    text = word_weights(lm_sources(run), policy)
    found = prepare_lang(lang, texts(run), text, run.make("lang"), dictionary=dictionary)
    if "left_out" in found:
        logger.info(
            "outside the vocabulary: %s different words of the text, which make %.1f %% of it",
            f"{found['left_out']:,}",
            100 * found["left_out_share"],
        )
    return found


def train_language_models(run: Run) -> dict[str, float]:
    """Estimate the small language model of the graphs and the larger one that rescores.

    Weights of text and transcripts are chosen on the tuning splits.
    """
    lang = Lang.load(run.need("lang"))
    larger, small = lm_config(run, run.config.rescoring), lm_config(run, run.config.lm)
    own = {"tune": splits(run).tune, "policy": lang.policy}
    prepare_lm(larger, texts(run), lang.vocabulary, run.make("rescoring"), **own)
    return prepare_lm(small, texts(run), lang.vocabulary, run.make("lm"), **own)
