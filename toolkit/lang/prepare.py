"""The language stage: texts, vocabulary, pronunciations, G2P and out-of-vocabulary report."""

import dataclasses
import glob
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from toolkit.errors import ToolkitError
from toolkit.lang.config import LangConfig
from toolkit.lang.dictionary import EXTRA_QUESTIONS, Dictionary, read_dictionary
from toolkit.lang.g2p import G2p, G2pError, Guess, spellable
from toolkit.lang.lang import Lang, LangError
from toolkit.lang.lexicon import Lexicon, grapheme_lexicon, with_positions, without_variant_number
from toolkit.lang.probabilities import Entry
from toolkit.lang.tables import UNKNOWN
from toolkit.lang.text_policy import TextCounts, TextPolicy
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.lines import TextLines, read_lines, split_words

logger = logging.getLogger(__name__)

LARGE_TABLE = 1e9
"""A tree whose table takes more bytes than this gets a warning."""
Transcripts = Mapping[str, str]
"""Text by utterance id."""


def prepare_lang(
    config: LangConfig,
    texts_by_split: Mapping[str, Transcripts],
    lm_words: Mapping[str, float] | None,
    out: Path,
    train: str = "train",
    dictionary: Dictionary | None = None,
) -> dict[str, float]:
    """Write a `Lang` folder, with `g2p.tsv`, `oov.tsv`, `report.json`, and `g2p.npz` if trained.

    The vocabulary consists of the words of the training transcripts, those of `config.words` and
    the most frequent words of `lm_words`. Pronunciations that the lexicon lacks are guessed and
    listed in `g2p.tsv`; words that cannot be guessed (SPN with score 0 there) become <UNK>.
    `oov.tsv` lists each split's out-of-vocabulary words, including numbers in digits, with their
    utterances.

    Args:
      config: see `LangConfig`.
      texts_by_split: transcripts, normalised or not, by split.
      lm_words: normalised words of the language model with weights to rank them (see
        `toolkit.lang.lm.lm_word_counts`); None: no words.
      out: output folder.
      train: name of the training split.
      dictionary: words with pronunciations, see `source_dictionary`; by default it is read.

    Returns:
      Numbers by name: `words`, `pronunciations`, `phones` and `guessed`; `not_guessed` if any;
      if words of `lm_words` are outside the vocabulary, their number `left_out` and their share of
      the weights `left_out_share`; and each split's out-of-vocabulary rate (`oov_percent_SPLIT`).

    Raises:
      LangError: there is no training transcript, or more than `config.max_unknown` of its words are
        unknown.
    """
    # 1. The words: those that transcripts need, listed ones, and those of the language model.
    if config.lexicon != "graphemes" and dictionary is None:
        dictionary = source_dictionary(config)
    policy = text_policy(config, dictionary.lexicon if dictionary else ())
    counts = TextCounts()
    words_by_split = {
        split: {utterance: policy.words(text, counts) for utterance, text in texts.items()}
        for split, texts in texts_by_split.items()
    }
    needed = {word for words in words_by_split.get(train, {}).values() for word in words}
    needed -= {UNKNOWN}
    if not needed:
        raise LangError(f"the split {train!r} has no transcript with words")
    lm_words = lm_words or {}
    listed = read_words(config.words, policy) if config.words_file else set()
    if dictionary is None:
        dictionary = source_dictionary(config, needed | listed | lm_words.keys())
    for note in dictionary.notes:
        logger.info("%s: %s", config.lexicon_file, note)
    source = dictionary.lexicon
    if config.words == "lexicon":
        listed = set(words_stable_under(source, policy))
    vocabulary = needed | listed | set(_ranked(config, lm_words, source))
    # 2. Their pronunciations, from the dictionary or guessed.
    lexicon = source.restrict(vocabulary)
    guesses = _guess(source, sorted(vocabulary - source.keys()), out)
    for word, guess in guesses.items():
        if guess:
            lexicon.add(word, guess.phones)
    if not lexicon:
        raise LangError(
            "no word of the training transcripts has a pronunciation: use a lexicon of their "
            "language"
        )
    # 3. The folder.
    lang = Lang.of(lexicon.with_positions() if config.position_dependent else lexicon)
    probabilities = dictionary.probabilities
    if probabilities is not None:
        probabilities = probabilities.renamed(
            lambda entry: _vocabulary_entry(entry, vocabulary, config.position_dependent)
        )
    lang = dataclasses.replace(
        lang,
        normaliser=config.normaliser,
        tags=config.tags,
        split_clitics=config.split_clitics,
        probabilities=probabilities,
    )
    lang.save(out)
    if dictionary.extra_questions is not None:
        lines = (f"{line}\n" for _, line in read_lines(dictionary.extra_questions, TextError))
        write_atomically(out / EXTRA_QUESTIONS, "".join(lines))
    with open_atomically(out / "g2p.tsv") as file:
        file.write("word\tpronunciation\tscore\n")
        for word, guess in guesses.items():
            columns = f"{' '.join(guess.phones)}\t{guess.score:.3f}" if guess else "SPN\t0"
            file.write(f"{word}\t{columns}\n")
    # 4. The report of words outside the vocabulary.
    counted = {
        split: {
            utterance: policy.tokens(text) + _without_letters(text, policy)
            for utterance, text in texts.items()
        }
        for split, texts in texts_by_split.items()
    }
    oov = _report_oov(counted, lang, out / "oov.tsv")
    left_out = [word for word in lm_words if word not in lang.lexicon]
    left_out_share = sum(map(lm_words.__getitem__, left_out)) / (sum(lm_words.values()) or 1)
    report = {
        "words": len(lang.vocabulary),
        "pronunciations": sum(1 for _ in lexicon.pairs()),
        "phones": len(lang.real_phones),
        "guessed": sum(guess is not None for guess in guesses.values()),
        "not_guessed": sum(guess is None for guess in guesses.values()),
        "left_out": len(left_out),
        "left_out_share": left_out_share,
        "removed_characters": dict(sorted(counts.removed.items())),
        "unknown_tokens": dict(sorted(counts.unknown.items())),
        "tags": dict(sorted(counts.tags.items())),
        "oov": oov,
    }
    write_atomically(out / "report.json", json.dumps(report, indent=1) + "\n")
    unknown = oov[train]["rate"]
    if unknown > config.max_unknown:
        lost = {word for words in counted[train].values() for word in words} - lang.lexicon.keys()
        first = ", ".join(sorted(lost)[:5])
        raise LangError(
            f"{unknown:.1%} of the training words have no pronunciation (limit "
            f"{config.max_unknown:.0%}), and none could be guessed from the {len(source)} words of "
            f"the lexicon: {first}; see {out / 'oov.tsv'}. Add these words to the lexicon, write "
            "numbers as words, use letters as phones (`lang.lexicon=graphemes`), or raise "
            "`lang.max_unknown`"
        )
    _warn_of_large_tables(len(lang.real_phones))
    headline = {key: report[key] for key in ("words", "pronunciations", "phones", "guessed")}
    if report["not_guessed"]:
        headline |= {"not_guessed": report["not_guessed"]}
    if left_out:
        headline |= {"left_out": len(left_out), "left_out_share": left_out_share}
    return headline | {
        f"oov_percent_{split}": round(100 * numbers["rate"], 2) for split, numbers in oov.items()
    }


def _warn_of_large_tables(phones: int) -> None:
    """Warn if a triphone tree's table (`toolkit.hmm.tree`) needs much memory."""
    # 4 bytes for each of 3 states of each phone, with each phone or none on either side
    size = 4 * 3 * phones * (phones + 1) ** 2
    if size > LARGE_TABLE:
        logger.warning(
            "with %d phones, a triphone tree takes %.1f GB of memory in every process. Set "
            "`lang.position_dependent=false` to reduce the number of phones to a quarter",
            phones,
            size / 1e9,
        )


def _vocabulary_entry(
    entry: Entry, vocabulary: Collection[str], position_dependent: bool
) -> Entry | None:
    """Convert a dictionary entry to the vocabulary's form; None if its word is not in it."""
    word, phones = entry
    if word not in vocabulary:
        return None
    return word, with_positions(phones) if position_dependent else phones


def source_dictionary(
    config: LangConfig,
    words: Collection[str] = (),
    read: Callable[[Path, bool, TextPolicy], Dictionary] = read_dictionary,
) -> Dictionary:
    """Read the dictionary named in the configuration.

    Args:
      config: see `LangConfig`.
      words: the words, for a lexicon of graphemes; other lexicons do not need them.
      read: reads `config.lexicon_file`; `toolkit.kaldi.dict_lang.read_lexicon` reads Kaldi's
        folders too.
    """
    if config.lexicon == "graphemes":
        return Dictionary(grapheme_lexicon(words))
    if config.lexicon_file is None:
        return Dictionary(Lexicon.from_cmudict(stress=config.stress))
    return read(config.lexicon_file, config.strip_stress, text_policy(config))


def text_policy(config: LangConfig, lexicon: Collection[str] = ()) -> TextPolicy:
    """Return a recipe's text policy, given the words with pronunciations."""
    return TextPolicy(config.normaliser, config.tags, lexicon, config.split_clitics)


def _ranked(config: LangConfig, lm_words: Mapping[str, float], source: Lexicon) -> list[str]:
    """Return the words that have, or can get, a pronunciation: the `vocabulary_size` best ones."""
    usable = [
        word for word in lm_words if word in source or (config.g2p_for_lm_words and spellable(word))
    ]
    return sorted(usable, key=lambda word: (-lm_words[word], word))[: config.vocabulary_size]


def _guess(source: Lexicon, words: list[str], out: Path) -> dict[str, Guess | None]:
    """Guess pronunciations of words, None where not possible; train a G2P model only if needed."""
    if not any(spellable(word) for word in words) or not any(map(spellable, source)):
        return dict.fromkeys(words)
    try:
        model = G2p.train(source)
    except G2pError as error:
        logger.warning("no pronunciation is guessed: %s", error)
        return dict.fromkeys(words)
    model.save(out / "g2p.npz")
    guesses = model.guess(words)
    return {word: guesses.get(word) for word in words}


def _without_letters(text: str, policy: TextPolicy) -> list[str]:
    """Return a transcript's words that the policy removes entirely, such as symbols."""
    bare = [word for word in split_words(text) if not any(map(str.isalnum, word))]
    if not bare:
        return []
    return [word for word in policy.transcript(" ".join(bare)).split() if not policy.tokens(word)]


def _report_oov(
    words_by_split: Mapping[str, Mapping[str, list[str]]], lang: Lang, path: Path
) -> dict[str, dict[str, float]]:
    """Write the words outside the vocabulary; return their figures by split.

    These are OOV `types` and `tokens`, all `words` (tokens), and the OOV `rate` (0 to 1).
    """
    summary = {}
    with open_atomically(path) as file:
        file.write("split\tword\tcount\tutterances\n")
        for split in sorted(words_by_split):
            utterances: dict[str, list[str]] = {}
            counts: Counter[str] = Counter()
            total = 0
            for utterance, words in sorted(words_by_split[split].items()):
                total += len(words)
                unknown = [word for word in words if word not in lang.lexicon]
                counts.update(unknown)
                for word in dict.fromkeys(unknown):
                    utterances.setdefault(word, []).append(utterance)
            for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
                file.write(f"{split}\t{word}\t{count}\t{' '.join(utterances[word])}\n")
            tokens = sum(counts.values())
            rate = tokens / total if total else 0.0
            summary[split] = {"types": len(counts), "tokens": tokens, "words": total, "rate": rate}
    return summary


class TextError(ToolkitError):
    """Raised for text that is missing or cannot be read."""


def text_files(source: Path) -> list[Path]:
    """Return the sorted files that `source` names.

    Args:
      source: a file, a folder (its *.txt and *.txt.gz, at any depth) or a glob pattern.

    Raises:
      TextError: there is no file.
    """
    source = Path(source)
    if source.is_file():
        return [source]
    if source.is_dir():
        paths = [p for p in source.rglob("*") if p.name.endswith((".txt", ".txt.gz"))]
        problem = "no .txt or .txt.gz file in the folder"
    else:
        paths = [Path(p) for p in glob.glob(str(source), recursive=True)]
        problem = "no such file or folder, and no file matches the pattern"
    files = sorted(p for p in paths if p.is_file())
    if not files:
        raise TextError(f"language model text: {problem} {source}")
    return files


class WordRules(Protocol):
    """Rules that turn text into words."""

    def words(self, text: str, /) -> list[str]:
        """Return the words of a text."""


def read_sentences(source: Path, rules: WordRules) -> Iterator[list[str]]:
    """Yield the words of each line of `source` that has any; see `text_files`.

    Raises:
      TextError: a file cannot be read, or too many lines are not UTF-8; a few are skipped with a
        warning.
    """
    lines = TextLines(TextError)
    for path in text_files(source):
        for _, line in lines.read(path):
            words = rules.words(line)
            if words:
                yield words
    lines.finish()


def check_sentences(source: Path) -> None:
    """Check that a text can be read, without normalising it; see `read_sentences`."""
    lines = TextLines(TextError)
    for path in text_files(source):
        for _ in lines.read(path):
            pass
    lines.finish()


def count_words(sentences: Iterable[Iterable[str]]) -> Counter[str]:
    """Count the words in sentences."""
    counts: Counter[str] = Counter()
    for words in sentences:
        counts.update(words)
    return counts


def read_words(path: Path, rules: WordRules) -> set[str]:
    """Read and normalise the words of a file, gzipped or not.

    A line is a word, perhaps followed by phones or a count, or a count and a word (as from
    `uniq -c`). Blank lines and those that start with `#` or `;;;` are skipped. If the rules split a
    word (TWENTY-ONE), its parts are added.

    Raises:
      LangError: the file has no words.
    """
    words: set[str] = set()
    lines = TextLines(LangError)
    for _, line in lines.read(path):
        fields = split_words(line)
        if not fields or line.startswith((";;;", "#")):
            continue
        counted = len(fields) == 2 and fields[0].isdecimal()
        word = fields[1] if counted else fields[0]
        words.update(rules.words(without_variant_number(word)))
    lines.finish()
    if not words:
        raise LangError(f"{path} has no words: write one word per line")
    return words


def words_stable_under(lexicon: Lexicon, rules: WordRules) -> Collection[str]:
    """Return the words of a lexicon that normalisation leaves unchanged."""
    return [word for word in lexicon if rules.words(word) == [word]]
