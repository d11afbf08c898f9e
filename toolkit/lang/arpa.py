"""Reads and writes n-gram models: ARPA (as Kaldi, SRILM and KenLM write it) and safetensors."""

import gzip
import json
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from toolkit.errors import ToolkitError
from toolkit.lang.ngram import LOG_ZERO, BackoffModel, Level, check_levels
from toolkit.lang.tables import END, START, UNKNOWN
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.lines import WHITE_SPACE, read_lines, split_words
from toolkit.storage.reading import quoted, read_tensors, reading, validated


class ArpaError(ToolkitError):
    """Raised for a faulty ARPA file; the message names file and line."""


_COUNT = re.compile(r"ngram\s+(\d{1,3})\s*=\s*(\d{1,18})")
_SECTION = re.compile(r"\\(\d{1,3})-grams:")


def write_arpa(model: BackoffModel, path: Path) -> None:
    """Write an ARPA file with n-grams sorted by word ids and 7 decimals; gzip it for `.gz`."""
    with open_atomically(path, "wb") as file:
        if str(path).endswith(".gz"):
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                packed.writelines(_arpa_lines(model))
        else:
            file.writelines(_arpa_lines(model))


def _arpa_lines(model: BackoffModel) -> Iterator[bytes]:
    """Yield the lines of an ARPA file."""
    yield b"\\data\\\n"
    for n, level in enumerate(model.levels, 1):
        yield f"ngram {n}={len(level.word)}\n".encode()
    words = model.vocabulary
    text = [""]  # the n-grams of the level below
    for n, level in enumerate(model.levels, 1):
        yield f"\n\\{n}-grams:\n".encode()
        last = [words[i] for i in level.word.tolist()]
        if n == 1:
            text = last
        else:
            # A context is a row of the level below, whose text is already known.
            contexts = level.context.tolist()
            text = [f"{text[c]} {w}" for c, w in zip(contexts, last, strict=True)]
        entries = zip(text, level.logprob.tolist(), level.backoff.tolist(), strict=True)
        for ngram, logprob, backoff in entries:
            # A missing back-off weight means 0 in log10.
            weight = f"\t{backoff:.7f}" if backoff else ""
            yield f"{logprob:.7f}\t{ngram}{weight}\n".encode()
    yield b"\n\\end\\\n"


def read_arpa(path: Path) -> BackoffModel:
    """Read an ARPA file, gzipped or not.

    The reader accepts comments before `\\data\\`, tabs or spaces, missing back-off weights, n-grams
    in any order and -inf. KenLM's <unk> is read as <UNK>.

    Raises:
      ArpaError: a malformed line, a wrong count, a repeated n-gram, an n-gram whose context or
        word is not listed, no <s> or </s>, or a truncated file; the message names file and line.
    """
    return _Reader(path).read()


class _Reader:
    """Reads an ARPA file in one pass."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.lines = self._lines()
        self.vocabulary: list[str] = []
        self.ids: dict[str, int] = {}
        self.levels: list[Level] = []

    def _lines(self) -> Iterator[str]:
        """Yield the lines, and keep the current line number for messages."""
        for self.number, line in read_lines(self.path, ArpaError):  # noqa: B020
            yield line.strip(WHITE_SPACE)

    def _fault(self, message: str, number: int | None = None) -> ArpaError:
        """Make an error that names file and line."""
        return ArpaError(f"{self.path}:{number or self.number or 1}: {message}")

    def read(self) -> BackoffModel:
        """Read the whole file and return the model."""
        # 1. Comments, up to `\\data\\`.
        for line in self.lines:
            if line == "\\data\\":
                break
        else:
            raise self._fault("no line `\\data\\`: not an ARPA file")
        # 2. The number of n-grams of each order, up to the first section.
        counts: list[int] = []
        section = ""
        for line in self.lines:
            match = _COUNT.fullmatch(line)
            if match and int(match.group(1)) == len(counts) + 1:
                counts.append(int(match.group(2)))
            elif line.startswith("\\"):
                section = line
                break
            elif line:
                raise self._fault(f"expected `ngram {len(counts) + 1}=COUNT`, found {quoted(line)}")
        if not counts:
            raise self._fault("no `ngram 1=COUNT` after `\\data\\`")
        # 3. The sections in ascending order; each ends with the title line of the next.
        for n, count in enumerate(counts, 1):
            match = _SECTION.fullmatch(section)
            if not match or int(match.group(1)) != n:
                raise self._fault(f"expected `\\{n}-grams:`, found {quoted(section or 'the end')}")
            section = self._section(n, count)
        if section != "\\end\\":
            raise self._fault(f"expected `\\end\\`, found {quoted(section or 'the end')}")
        return BackoffModel(self.vocabulary, self.levels)

    def _section(self, n: int, count: int) -> str:
        """Read the n-grams of order `n`; return the line that ends the section."""
        logprobs, backoffs = array("d"), array("d")
        ids, numbers = array("q"), array("q")
        words: list[str] = []  # the words of the 1-grams, which are the vocabulary
        end = ""
        for line in self.lines:
            if not line:
                continue
            if line.startswith("\\") and (_SECTION.fullmatch(line) or line == "\\end\\"):
                end = line
                break
            fields = split_words(line)
            if not n + 1 <= len(fields) <= n + 2:
                raise self._fault(
                    f"expected a probability, {n} words and perhaps a back-off: {quoted(line)}"
                )
            try:
                logprob = float(fields[0])
                backoff = float(fields[n + 1]) if len(fields) == n + 2 else 0.0
            except ValueError:
                raise self._fault(f"not a number in {quoted(line)}") from None
            # Rounding can give log-probabilities slightly above 0. `not` refuses NaN as well.
            if not logprob <= 1e-5 or not backoff < 99:
                raise self._fault(f"log10 probability or back-off out of range in {quoted(line)}")
            # -inf becomes LOG_ZERO, so that sums stay finite.
            logprobs.append(max(logprob, LOG_ZERO))
            backoffs.append(max(backoff, LOG_ZERO))
            numbers.append(self.number)
            if n == 1:
                words.append(UNKNOWN if fields[1] == "<unk>" else fields[1])
                continue
            try:
                ids.extend([self.ids[word] for word in fields[1 : n + 1]])
            except KeyError as error:
                raise self._fault(f"the word {quoted(error.args[0])} is not a 1-gram") from None
        if len(logprobs) != count:
            raise self._fault(
                f"the header says `ngram {n}={count}`, but there are {len(logprobs)}; is the file "
                "truncated?"
            )
        if n == 1:
            self._set_vocabulary(words)
            ids.extend([self.ids[word] for word in words])
        ids_by_ngram = np.array(ids).reshape(-1, n)
        self._add_level(n, ids_by_ngram, numbers, np.array(logprobs), np.array(backoffs))
        return end

    def _set_vocabulary(self, words: list[str]) -> None:
        """Number the words of the 1-grams in sorted order, after checking them."""
        for symbol in (START, END):
            if symbol not in words:
                spelt = next((word for word in words if word.lower() == symbol), None)
                remedy = (
                    f"write {symbol} instead of {spelt}"
                    if spelt
                    else "estimate the model from sentences"
                )
                raise self._fault(f"the 1-grams lack {symbol}: {remedy}")
        if words.count(UNKNOWN) > 1:
            raise self._fault(
                f"the 1-grams have {UNKNOWN} twice, or {UNKNOWN} and <unk>, which are the same word"
                " here: rename or remove one of them in the model's text"
            )
        self.vocabulary = sorted(set(words))
        self.ids = {word: index for index, word in enumerate(self.vocabulary)}
        if UNKNOWN in self.ids:
            self.ids["<unk>"] = self.ids[UNKNOWN]

    def _add_level(
        self,
        n: int,
        ids: np.ndarray,
        numbers: Sequence[int],
        logprob: np.ndarray,
        backoff: np.ndarray,
    ) -> None:
        """Add the n-grams of order `n`: word ids [N, n], line numbers, log10 values [N]."""
        model = BackoffModel(self.vocabulary, self.levels)
        context = np.zeros(len(ids), dtype=np.int64)
        for k in range(n - 1):
            # Index of the context's first k + 1 words among the n-grams of that order.
            context = ids[:, 0] if k == 0 else model.find(k, context, ids[:, k])
            if (context < 0).any():
                row = int(np.flatnonzero(context < 0)[0])
                missing = " ".join(self.vocabulary[i] for i in ids[row, : k + 1])
                raise self._fault(f"context {quoted(missing)} is not a {k + 1}-gram", numbers[row])
        # One number for each (context, word), by which the n-grams of a level are sorted.
        keys = context * len(self.vocabulary) + ids[:, -1]
        order = np.argsort(keys, kind="stable")
        repeated = np.flatnonzero(np.diff(keys[order]) == 0)
        if len(repeated):
            row = int(order[repeated[0] + 1])
            ngram = " ".join(self.vocabulary[i] for i in ids[row])
            raise self._fault(f"the {n}-gram {quoted(ngram)} is listed twice", numbers[row])
        self.levels.append(Level(context[order], ids[order, -1], logprob[order], backoff[order]))


_LEVEL_FIELDS = ("context", "word", "logprob", "backoff")
_LEVEL_TYPES = {"context": np.int64, "word": np.int64, "logprob": np.float32, "backoff": np.float32}


def write_binary(model: BackoffModel, path: Path) -> None:
    """Write an n-gram model as safetensors."""
    tensors = {
        f"{order}.{field}": getattr(level, field).astype(_LEVEL_TYPES[field])
        for order, level in enumerate(model.levels, 1)
        for field in _LEVEL_FIELDS
    }
    metadata = {"vocabulary": json.dumps(model.vocabulary)}
    write_atomically(path, save(tensors, metadata=metadata))


def read_binary(path: Path) -> BackoffModel:
    """Read a model that `write_binary` wrote.

    Raises:
      ArpaError: the file is not such a model.
    """
    damage = "not a language model that write_binary made"
    with reading(path, ArpaError, "make it again from the ARPA file", damage):
        tensors, metadata = read_tensors(path, {}, "np")
        vocabulary = validated(json.loads(metadata["vocabulary"]), [str])
        orders = range(1, len(tensors) // len(_LEVEL_FIELDS) + 1)
        levels = [
            Level(**{field: tensors[f"{order}.{field}"] for field in _LEVEL_FIELDS})
            for order in orders
        ]
        check_levels(vocabulary, levels)
        return BackoffModel(vocabulary, levels)
