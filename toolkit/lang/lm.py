"""The language model stage: an ARPA file, estimated or given, and its perplexity per split."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from toolkit.lang.config import NgramConfig
from toolkit.lang.letters import normaliser
from toolkit.lang.ngram.arpa import read_arpa, write_arpa
from toolkit.lang.ngram.backoff import BackoffModel
from toolkit.lang.ngram.binary import write_binary
from toolkit.lang.ngram.kneser_ney import estimate
from toolkit.lang.ngram.lmplz import estimate_with_lmplz
from toolkit.lang.ngram.perplexity import perplexity
from toolkit.lang.prepare import Transcripts
from toolkit.lang.text import Normaliser, count_words, read_sentences
from toolkit.storage.files import open_atomically, write_atomically


def word_weights(config: NgramConfig, rules: str = Normaliser.id) -> dict[str, float] | None:
    """Weigh the words that the language model brings to the vocabulary.

    Args:
      config: see `NgramConfig`.
      rules: id of the normaliser of its text (see `toolkit.lang.letters`).

    Returns:
      Counts in `config.text`, or probabilities in `config.arpa`; None where the training
      transcripts are the only text.
    """
    if config.arpa is not None:
        model = read_arpa(config.arpa)
        probabilities = 10.0 ** model.levels[0].logprob
        return dict(zip(model.vocabulary, probabilities.tolist(), strict=True))
    if config.text is not None:
        return dict(count_words(read_sentences(config.text, normaliser(rules))))
    return None


def prepare_lm(
    config: NgramConfig,
    texts_by_split: Mapping[str, Transcripts],
    vocabulary: Collection[str],
    out: Path,
    train: str = "train",
    rules: str = Normaliser.id,
) -> dict[str, float]:
    """Write `lm.arpa`, `lm.safetensors` (quick to read), `perplexity.tsv` and `report.json`.

    Words outside `vocabulary` count as <UNK>; in a given ARPA file their n-grams are dropped.

    Args:
      config: see `NgramConfig`.
      texts_by_split: transcripts by split, normalised or not.
      vocabulary: the recogniser's words.
      out: the folder.
      train: the split whose transcripts are the text when `config` names none.
      rules: id of the normaliser of all texts (see `toolkit.lang.letters`).

    Returns:
      The n-grams by order, and each split's perplexity (known words) and OOV rate (0 to 1).
    """
    normalise = normaliser(rules)
    discounting: list[str] = []
    if config.arpa is not None:
        model = read_arpa(config.arpa).restrict(vocabulary)
    else:
        if config.text is not None:
            sentences = read_sentences(config.text, normalise)
        else:
            sentences = _sentences(texts_by_split.get(train, {}), normalise)
        if config.estimator == "lmplz":
            model = estimate_with_lmplz(sentences, vocabulary, config.order, config.min_counts)
        else:
            model, discounts = estimate(sentences, vocabulary, config.order, config.min_counts)
            discounting = [
                f"{d.rule} {d.values[0]:.4f} {d.values[1]:.4f} {d.values[2]:.4f}" for d in discounts
            ]
    write_arpa(model, out / "lm.arpa")
    write_binary(model, out / "lm.safetensors")
    headline: dict[str, float] = {
        f"{n}-grams": len(level.word) for n, level in enumerate(model.levels, 1)
    }
    report = {
        "ngrams": [len(level.word) for level in model.levels],
        "discounts": discounting,
        "removed_characters": dict(sorted(normalise.removed.items())),
        "missing_words": len(set(vocabulary) - set(model.vocabulary)),
    }
    write_atomically(out / "report.json", json.dumps(report, indent=1) + "\n")
    return headline | _write_perplexity(model, texts_by_split, rules, out / "perplexity.tsv")


def _sentences(texts: Transcripts, rules: Normaliser) -> Iterator[list[str]]:
    """Yield the words of every transcript that has any, by utterance id."""
    for _, text in sorted(texts.items()):
        words = rules.words(text)
        if words:
            yield words


def _write_perplexity(
    model: BackoffModel, texts_by_split: Mapping[str, Transcripts], rules: str, path: Path
) -> dict[str, float]:
    headline = {}
    with open_atomically(path) as file:
        file.write("split\tsentences\twords\toov\toov_rate\tppl\tppl_known\n")
        for split in sorted(texts_by_split):
            found = perplexity(model, _sentences(texts_by_split[split], normaliser(rules)))
            file.write(
                f"{split}\t{found.sentences}\t{found.words}\t{found.oov}\t{found.oov_rate:.4f}\t"
                f"{found.ppl:.2f}\t{found.ppl_known:.2f}\n"
            )
            headline[f"ppl_{split}"] = found.ppl_known
            headline[f"oov_{split}"] = found.oov_rate
    return headline
