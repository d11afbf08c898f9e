"""The language model stage: estimates or copies an ARPA model, and reports perplexity per split."""

import json
import logging
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from toolkit.lang.arpa import ArpaError, read_arpa, write_arpa, write_binary
from toolkit.lang.config import NgramConfig
from toolkit.lang.ngram import (
    BackoffModel,
    NgramError,
    estimate,
    interpolate,
    mixture_weights,
    perplexity,
    prune_by_entropy,
)
from toolkit.lang.prepare import Transcripts, count_words, read_sentences
from toolkit.lang.tables import END, START, UNKNOWN
from toolkit.lang.text_policy import LmText, TextCounts, TextPolicy
from toolkit.storage.files import open_atomically, write_atomically

logger = logging.getLogger(__name__)

COVERED = 0.9
"""A given ARPA model with less than this share of the vocabulary gets a warning."""


def lm_word_counts(
    config: NgramConfig, policy: TextPolicy | None = None
) -> dict[str, float] | None:
    """Return the words that the language model adds to the vocabulary, with weights.

    Args:
      config: see `NgramConfig`.
      policy: how the text becomes words.

    Returns:
      Counts in `config.text`, or probabilities in `config.arpa`; None if the training transcripts
      are the only text.
    """
    if config.arpa is not None:
        model = read_arpa(config.arpa)
        # ARPA files hold log10 probabilities.
        probabilities = 10.0 ** model.levels[0].logprob
        weights = dict(zip(model.vocabulary, probabilities.tolist(), strict=True))
        return {word: p for word, p in weights.items() if word not in (START, END, UNKNOWN)}
    if config.text is not None:
        counts = count_words(read_sentences(config.text, LmText(policy or TextPolicy())))
        return {word: count for word, count in counts.items() if word != UNKNOWN}
    return None


def prepare_lm(
    config: NgramConfig,
    texts_by_split: Mapping[str, Transcripts],
    vocabulary: Collection[str],
    out: Path,
    train: str = "train",
    tune: Sequence[str] = (),
    policy: TextPolicy | None = None,
) -> dict[str, float]:
    """Write `lm.arpa`, `lm.safetensors` (fast to read), `perplexity.tsv` and `report.json`.

    Words outside `vocabulary` count as <UNK>; n-grams of a given ARPA file with such words are
    dropped.

    Args:
      config: see `NgramConfig`.
      texts_by_split: transcripts by split, normalised or not.
      vocabulary: the recogniser's words.
      out: output folder.
      train: the training split. Its transcripts are the text if `config` names none, and a part of
        the mixture if `config` asks for a mixture.
      tune: splits on whose transcripts the mixture weights are estimated; without such splits the
        weights are equal.
      policy: how all texts become words.

    Returns:
      Numbers by name: `1-grams`, `2-grams`, ...; `transcripts_weight` for a mixture; and each
      split's perplexity over known words (`ppl_SPLIT`) and OOV rate (`oov_percent_SPLIT`).
    """
    policy = (policy or TextPolicy()).with_lexicon(frozenset(vocabulary))
    counts = TextCounts()
    discounting: dict[str, list[str]] = {}
    weights: dict[str, float] = {}
    # 1. The model: the given one, or one or two that are estimated, mixed and pruned.
    if config.arpa is not None:
        # Prune before restricting: the pruned n-grams do not depend on the vocabulary.
        unrestricted = prune_by_entropy(read_arpa(config.arpa), config.prune)
        model = unrestricted.restrict(vocabulary)
        check_coverage(config.arpa, unrestricted.vocabulary, vocabulary)
    else:
        models = []
        for name in _sources(config, texts_by_split.get(train, {}), policy):
            if name == "text":
                sentences = read_sentences(config.text, LmText(policy, counts))
            else:
                sentences = _sentences(texts_by_split.get(train, {}), policy, counts)
            model, discounting[name] = _estimate(config, sentences, vocabulary)
            models.append(model)
        if len(models) > 1:
            held_out = (_sentences(texts_by_split[split], policy) for split in tune)
            # EM on the tuning splits' transcripts.
            mixture = mixture_weights(models, chain.from_iterable(held_out))
            weights = dict(zip(discounting, mixture, strict=True))
            model = interpolate(models, mixture)
        model = prune_by_entropy(model, config.prune)
    if phrases := list(counts.lines()):
        logger.info("language model text: %s", "; ".join(phrases))
    # 2. The files.
    write_arpa(model, out / "lm.arpa")
    write_binary(model, out / "lm.safetensors")
    headline: dict[str, float] = {
        f"{n}-grams": len(level.word) for n, level in enumerate(model.levels, 1)
    }
    if weights:
        headline["transcripts_weight"] = weights["transcripts"]
    report = {
        "ngrams": [len(level.word) for level in model.levels],
        "weights": weights,
        "discounts": discounting,
        "removed_characters": dict(sorted(counts.removed.items())),
        "unknown_tokens": sum(counts.unknown.values()),
        "tags": dict(sorted(counts.tags.items())),
        "missing_words": len(set(vocabulary) - set(model.vocabulary)),
    }
    write_atomically(out / "report.json", json.dumps(report, indent=1) + "\n")
    return headline | _write_perplexity(model, texts_by_split, policy, out / "perplexity.tsv")


def check_coverage(path: Path, modelled: Collection[str], vocabulary: Collection[str]) -> None:
    """Warn if a given model lacks over a tenth of the vocabulary.

    Args:
      path: path of the model.
      modelled: words of the model.
      vocabulary: words of the recogniser.

    Raises:
      ArpaError: the model has none of the words.
    """
    model_words = {*modelled}
    missing = sorted({*vocabulary} - model_words)
    # The most frequent cause of missing words is another letter case.
    folded = {word.casefold() for word in model_words}
    in_other_case = [word for word in missing if word.casefold() in folded]
    if len(missing) == len({*vocabulary}):
        case = "; the model has such words in another letter case" if in_other_case else ""
        raise ArpaError(
            f"{path}: none of its words, such as {max(modelled)!r}, is in the recogniser's"
            f" vocabulary, which contains words such as {max(vocabulary)!r}. Use the same spelling"
            f" in both{case}"
        )
    if 1 - len(missing) / len({*vocabulary}) < COVERED:
        logger.warning(
            "%s: the language model lacks %d of %d words of the vocabulary (%.0f %%), such as %s%s",
            path,
            len(missing),
            len({*vocabulary}),
            100 * len(missing) / len({*vocabulary}),
            ", ".join(missing[:5]),
            f"; it has {len(in_other_case)} of them in another letter case: convert the model"
            if in_other_case
            else "; these words are recognised as unknown words or not at all",
        )


def _sources(config: NgramConfig, transcripts: Transcripts, policy: TextPolicy) -> list[str]:
    """Return the names of the texts to estimate models from: "text", "transcripts" or both."""
    if config.text is None:
        return ["transcripts"]
    mixed = config.mix_transcripts and any(_sentences(transcripts, policy))
    return ["text", "transcripts"] if mixed else ["text"]


def _estimate(
    config: NgramConfig, sentences: Iterable[list[str]], vocabulary: Collection[str]
) -> tuple[BackoffModel, list[str]]:
    """Estimate a model; return it and a description of each order's discounts (none for lmplz)."""
    if config.estimator == "lmplz":
        return estimate_with_lmplz(sentences, vocabulary, config.order, config.min_counts), []
    model, discounts = estimate(sentences, vocabulary, config.order, config.min_counts)
    descriptions = [
        f"{d.rule} {d.values[0]:.4f} {d.values[1]:.4f} {d.values[2]:.4f}" for d in discounts
    ]
    return model, descriptions


def _sentences(
    texts: Transcripts, policy: TextPolicy, counts: TextCounts | None = None
) -> Iterator[list[str]]:
    """Yield the words of each non-empty transcript, sorted by utterance id."""
    for _, text in sorted(texts.items()):
        words = policy.words(text, counts)
        if words:
            yield words


def _write_perplexity(
    model: BackoffModel, texts_by_split: Mapping[str, Transcripts], policy: TextPolicy, path: Path
) -> dict[str, float]:
    """Write each split's perplexity; return `ppl_SPLIT` and `oov_percent_SPLIT` of each."""
    headline = {}
    with open_atomically(path) as file:
        file.write("split\tsentences\twords\toov\toov_rate\tppl\tppl_known\tppl_charged\n")
        for split in sorted(texts_by_split):
            result = perplexity(model, _sentences(texts_by_split[split], policy))
            file.write(
                f"{split}\t{result.sentences}\t{result.words}\t{result.oov}\t{result.oov_rate:.4f}\t"
                f"{result.ppl:.2f}\t{result.ppl_known:.2f}\t{result.ppl_charged:.2f}\n"
            )
            headline[f"ppl_{split}"] = result.ppl_known
            headline[f"oov_percent_{split}"] = round(100 * result.oov_rate, 2)
    return headline


def estimate_with_lmplz(
    sentences: Iterable[Sequence[str]],
    vocabulary: Collection[str],
    order: int,
    min_counts: Sequence[int],
) -> BackoffModel:
    """Estimate a model with KenLM's lmplz; arguments as for `ngram.estimate`.

    Unlike `estimate`, lmplz drops n-grams with <UNK> beyond the first order.

    Raises:
      NgramError: lmplz is not on the PATH, or fails; the message has the last lines of its output.
    """
    program = shutil.which("lmplz")
    if program is None:
        raise NgramError(
            "`estimator` is 'lmplz', but lmplz is not on the PATH; install KenLM's programs or set "
            "`estimator` to 'numpy'"
        )
    with tempfile.TemporaryDirectory(prefix="lmplz") as name:
        folder = Path(name)
        with open(folder / "text", "w", encoding="utf-8") as file:
            file.writelines(" ".join(words) + "\n" for words in sentences)
        (folder / "vocabulary").write_text(" ".join(sorted(vocabulary)) + "\n", encoding="utf-8")
        # One minimum for every order: the last one holds for all higher orders.
        padded = [min_counts[min(k, len(min_counts) - 1)] for k in range(order)]
        command = [program, "-o", str(order), "--discount_fallback"]
        command += ["--limit_vocab_file", str(folder / "vocabulary"), "-T", str(folder / "sort")]
        # lmplz drops n-grams that occur up to this number of times: one less than the minimum.
        command += ["--prune", *(str(least - 1) for least in padded)]
        command += ["--text", str(folder / "text"), "--arpa", str(folder / "arpa")]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            tail = "\n".join(process.stderr.strip().splitlines()[-5:])
            raise NgramError(f"KenLM's lmplz failed with exit status {process.returncode}:\n{tail}")
        return read_arpa(folder / "arpa")
