"""CTC decoders: greedy, prefix beam search, and beam search over dictionary words (A21)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

import numpy as np
from torch import Tensor

from toolkit.decode.config import SYMBOLS, PrefixConfig, WordsConfig
from toolkit.decode.ctc.dictionary import CtcDecodeError, Dictionary, Ngrams, Tree
from toolkit.decode.ctc.kernels import FORECAST, NGRAMS, NO_LM, ROOT, SEARCH, SearchState, search
from toolkit.lang.ngram import BackoffModel
from toolkit.lang.units import SPACE, Units

LogProbs = Tensor | np.ndarray
"""[T, C] log-probabilities of one utterance, blank included."""
Pair = tuple[float, float]
"""(language model weight, word bonus)."""


@dataclass(frozen=True)
class CtcHypothesis:
    """A recognised text and its score."""

    text: str
    """Words separated by single spaces."""
    score: float
    """Natural logarithm; each decoder documents its terms."""


class CtcDecoder(ABC):
    """Turns posteriors [T, C] into texts.

    Everything that affects the result is given on construction: the same posteriors give the same
    hypotheses in any order of utterances and with any number of jobs.
    """

    @abstractmethod
    def decode(self, log_probs: LogProbs) -> list[CtcHypothesis]:
        """Return the best hypotheses of one utterance.

        Args:
          log_probs: [T, C] natural log-probabilities, one column per unit. They need not be
            normalised; -inf rules a symbol out.

        Returns:
          At least one hypothesis, best first. If no complete text is possible, the only hypothesis
          has the score -inf and the finished words, if any.

        Raises:
          CtcDecodeError: the shape is not [T, C], or a value is NaN.
        """

    def decode_many(
        self, utterances: Sequence[LogProbs], jobs: int = 1
    ) -> Iterator[list[CtcHypothesis]]:
        """Yield the best hypotheses of many utterances in order.

        Uses threads: the compiled search releases the interpreter lock, and dictionary and
        language model are shared.

        Args:
          utterances: see `decode`.
          jobs: threads.
        """
        if jobs <= 1 or len(utterances) <= 1:
            yield from map(self.decode, utterances)
            return
        with ThreadPoolExecutor(min(jobs, len(utterances))) as pool:
            yield from pool.map(self.decode, utterances)


def as_array(log_probs: LogProbs, size: int) -> np.ndarray:
    """Return the log-probabilities as a contiguous float32 array [T, C].

    Raises:
      CtcDecodeError: C is not `size`, or a value is NaN.
    """
    if isinstance(log_probs, Tensor):
        log_probs = log_probs.detach().cpu().float().numpy()
    # Writable, because read-only arrays would make numba compile a second version.
    array = np.require(log_probs, np.float32, ["C", "W"])
    if array.ndim != 2 or array.shape[1] != size:
        raise CtcDecodeError(
            f"the posteriors have shape {list(array.shape)}, not [frames, {size}]. Check that "
            "the model and the units come from the same run"
        )
    if np.isnan(array).any():
        raise CtcDecodeError(
            f"the posteriors are NaN at frame {int(np.isnan(array).any(axis=1).argmax())}: the"
            " training of the network has diverged"
        )
    return array


class GreedyDecoder(CtcDecoder):
    """Returns the text of the single best path, with its log-probability as the score.

    Args:
      units: the output units, in the order of the posteriors' columns.
    """

    def __init__(self, units: Units) -> None:
        self._units = units

    def decode(self, log_probs: LogProbs) -> list[CtcHypothesis]:
        """Return the text of the best path as the only hypothesis; see `CtcDecoder.decode`."""
        array = as_array(log_probs, self._units.size)
        best = array.argmax(axis=1)  # [T]
        # The log-probability of that one path, summed in float64.
        score = float(array.max(axis=1, initial=float("-inf")).sum(dtype="float64"))
        text = self._units.decode(collapse(best.tolist(), self._units.blank))
        return [CtcHypothesis(" ".join(text.split()), score)]


def collapse(path: list[int], blank: int) -> list[int]:
    """Collapse a frame-wise path to labels: merge repeats, then remove blanks."""
    return [
        symbol
        for symbol, previous in zip(path, [-1, *path], strict=False)
        if symbol not in (previous, blank)
    ]


@dataclass(frozen=True)
class Options:
    """Options of the compiled search; see `SEARCH` for the fields."""

    blank: int
    space: int
    width: int
    margin: float
    symbols: int
    mode: int = NO_LM
    weight: float = 0.0
    bonus: float = 0.0
    complete: bool = False


class BeamSearch:
    """Prefix beam search with a dictionary and a language model; threads may share it.

    Args:
      tree: the prefix tree of the dictionary.
      ngrams: the language model; None in the mode `NO_LM`.
      options: settings of the search.
    """

    def __init__(self, tree: Tree, ngrams: Ngrams | None, options: Options) -> None:
        self._tree, self._options = tree, options
        self._ngrams = Ngrams.none() if ngrams is None else ngrams
        self._settings = np.zeros(1, SEARCH)
        for name, value in asdict(options).items():
            self._settings[name] = value
        self._settings["joined"], self._settings["between"] = tree.joined, len(tree.between)

    def run(self, log_probs: np.ndarray, count: int) -> list[tuple[list[int], float]]:
        """Return the `count` best label sequences with distinct texts, and their scores.

        The probabilities of sequences that differ only in spaces are summed. If no prefix of the
        last beam is a complete text, the result is the best prefix without its unfinished word,
        with the score -inf.

        Args:
          log_probs: [T, C] float32 without NaN.
          count: number of sequences; there may be fewer, and none if all paths are impossible.
        """
        state = self.begin(len(log_probs))
        self.advance(state, log_probs)
        return self.best(state, count)

    def begin(self, frames: int) -> SearchState:
        """Return the search state before the first frame, with room for `frames` frames."""
        begin = self._options.space, self._ngrams.start
        return SearchState.new(self._settings, self._tree.between, begin, frames)

    def advance(self, state: SearchState, log_probs: np.ndarray) -> None:
        """Search the next frames [t, C] of an utterance, float32 without NaN.

        The last beam does not depend on how the utterance is divided into blocks.
        """
        state.reserve(len(log_probs))
        search(
            log_probs, self._tree.nodes, self._ngrams.arrays, state.beams, state.trie, state.table,
            state.candidates, state.symbols(log_probs.shape[1]), state.settings,
        )  # fmt: skip

    def likeliest(self, state: SearchState) -> list[int]:
        """Return the labels of the best prefix so far, without its unfinished word."""
        beam = state.beam
        if not len(beam):
            return []
        prefixes = state.trie[beam["node"]]
        # The scores by which the beam is ranked: paths, finished words, and look-ahead.
        best = int((beam["total"] + prefixes["fixed"] + prefixes["ahead"]).argmax())
        return self._labels(state.trie, int(beam["node"][best]), -1)

    def best(self, state: SearchState, count: int) -> list[tuple[list[int], float]]:
        """Return the `count` best label sequences for the frames so far; see `run`."""
        beam, trie = state.beam, state.trie
        if not len(beam):
            return []
        nodes, prefixes = beam["node"], trie[beam["node"]]
        # Only prefixes that end with a word, or between words, are complete texts.
        word, scores = self._end(prefixes, beam["total"])
        whole = np.flatnonzero(scores > -math.inf)
        if not len(whole):
            return [(self.likeliest(state), -math.inf)]
        # Prefixes with the same words differ in their spaces: add their probabilities.
        text = self._reading(trie, nodes[whole])
        _, first, group = np.unique(text, return_index=True, return_inverse=True)
        sums = np.full(len(first), -math.inf)
        np.logaddexp.at(sums, group, scores[whole])
        best = np.argsort(-sums, kind="stable")[:count]
        return [
            (self._labels(trie, int(nodes[i]), int(word[i])), score)
            for i, score in zip(whole[first[best]], sums[best].tolist(), strict=True)
        ]

    def _end(self, prefixes: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each prefix, the word that ends there and its score as a complete text.

        The word is -1 if none ends there; the score is -inf if the prefix is not a complete text.
        """
        word = self._last_word(prefixes["place"])
        ends, between = word >= 0, prefixes["place"] == ROOT
        scores = total + np.where(ends, prefixes["ended"], prefixes["fixed"])
        if self._options.mode != NO_LM:
            # The n-gram probability of the end of the sentence.
            state = np.where(ends, prefixes["end_state"], prefixes["state"])
            scores += self._options.weight * self._ngrams.contexts["end"][state]
        return word, np.where(ends | between, scores, -math.inf)

    def _last_word(self, place: np.ndarray) -> np.ndarray:
        """Return the words that end in nodes of the tree; -1: none.

        With `complete`, a node in which no word ends gets the word below it if there is only one.
        """
        here = self._tree.nodes[place]
        # Whether a single word lies below the node; the root (depth 0) is no unfinished word.
        only = (here["depth"] > 0) & (here["high"] == here["low"] + 1) & self._options.complete
        return np.where((here["word"] < 0) & only, here["low"], here["word"])

    def _reading(self, trie: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Return a number for each prefix's text; equal texts have equal numbers.

        The number combines the node where the last word begins, and that word.
        """
        prefixes = trie[nodes]
        # A space at the end adds nothing: go back to the prefix before it.
        behind = (prefixes["symbol"] == self._options.space) & (nodes > 0)
        nodes = np.where(behind, prefixes["parent"], nodes)
        place = trie["place"][nodes]
        # Go back by as many symbols as the last word has, to the prefix where it begins.
        word, depth = self._last_word(place), self._tree.nodes["depth"][place]
        for k in range(depth.max(initial=0)):
            nodes = np.where(depth > k, trie["parent"][nodes], nodes)
        return nodes.astype(np.int64) * len(self._tree.begin) + word + 1

    def _labels(self, trie: np.ndarray, node: int, word: int) -> list[int]:
        """Return a prefix's labels; complete the unfinished word to `word`, or drop it for -1."""
        # From the last symbol back to the empty prefix, which is node 0.
        tree, path = self._tree, []
        while node > 0:
            path.append(node)
            node = int(trie["parent"][node])
        labels = trie["symbol"][path[::-1]].tolist()
        place = tree.nodes[int(trie["place"][path[0]])] if path else tree.nodes[ROOT]
        # An unfinished word: drop its symbols, or add the rest of the word.
        if place["word"] < 0:
            depth = int(place["depth"])
            if word < 0:
                return labels[: len(labels) - depth]
            labels += tree.letters[tree.begin[word] + depth : tree.begin[word + 1]].tolist()
        return labels


class PrefixDecoder(CtcDecoder):
    """Finds the most likely label sequences, summing the probabilities of all alignments.

    Label sequences that differ only in repeated spaces count as one. If sequences have the same
    text for another reason (with or without the separator of double letters), the best is kept.

    Args:
      units: the output units, in the order of the posteriors' columns.
      config: settings of the search.
    """

    def __init__(self, units: Units, config: PrefixConfig | None = None) -> None:
        config = config or PrefixConfig()
        self._units, self._nbest = units, config.nbest
        options = Options(units.blank, space_label(units), config.width, config.margin, SYMBOLS)
        tree = Dictionary.free(units).tree
        self._search = BeamSearch(tree, None, options)

    def decode(self, log_probs: LogProbs) -> list[CtcHypothesis]:
        """Return the best hypotheses of one utterance; see `CtcDecoder.decode`."""
        array = as_array(log_probs, self._units.size)
        # Twice as many, since several may have the same text.
        return read_hypotheses(self._search.run(array, 2 * self._nbest), self._units, self._nbest)


def space_label(units: Units) -> int:
    """Return the column of the space, or -1 if there is none."""
    return units.symbols.index(SPACE) if SPACE in units.symbols else -1


def read_hypotheses(
    scored_labels: list[tuple[list[int], float]], units: Units, count: int
) -> list[CtcHypothesis]:
    """Turn label sequences and scores into at most `count` hypotheses with distinct texts.

    There is at least one: an empty one with the score -inf when there are no label sequences.
    """
    texts: dict[str, float] = {}
    for labels, score in scored_labels:
        texts.setdefault(" ".join(units.decode(labels).split()), score)
    if not texts:
        return [CtcHypothesis("", -math.inf)]
    return [CtcHypothesis(*item) for item in list(texts.items())[:count]]


EXPECTED_FRAMES = 256
"""Frames for which an `OngoingSearch` has room at first."""
_MODES = {"words": NO_LM, "ngrams": NGRAMS, "forecast": FORECAST}


class OngoingSearch:
    """The search of an utterance that is still arriving; made by `WordsDecoder.begin`.

    Args:
      search: the compiled search.
      units: the output units.
      nbest: length of the n-best list.
    """

    def __init__(self, search: BeamSearch, units: Units, nbest: int) -> None:
        self._search, self._units, self._nbest = search, units, nbest
        self._state = search.begin(EXPECTED_FRAMES)

    @property
    def frames(self) -> int:
        """Number of frames searched so far."""
        return int(self._state.settings["frames"][0])

    def advance(self, log_probs: LogProbs) -> None:
        """Search the posteriors [t, C] of the next frames.

        Raises:
          CtcDecodeError: see `CtcDecoder.decode`.
        """
        self._search.advance(self._state, as_array(log_probs, self._units.size))

    def text(self) -> str:
        """Return the best hypothesis's finished words so far; they may still change."""
        return " ".join(self._units.decode(self._search.likeliest(self._state)).split())

    def hypotheses(self) -> list[CtcHypothesis]:
        """Return the hypotheses for the frames so far, as `WordsDecoder.decode` does."""
        return read_hypotheses(
            self._search.best(self._state, self._nbest), self._units, self._nbest
        )


class WordsDecoder(CtcDecoder):
    """Finds texts of dictionary words by beam search; see `WordsConfig` for their scores.

    Args:
      units: the output units, in the order of the posteriors' columns.
      words: the dictionary's words, or the `Dictionary` of another decoder.
      lm: the n-grams; not needed in the mode `words`. Dictionary words that it lacks share the
        probability of its <UNK>.
      config: settings of the search.

    Raises:
      CtcDecodeError: the mode needs a language model and none is given, or the units can write
        none of the words.
    """

    def __init__(
        self,
        units: Units,
        words: Collection[str] | Dictionary,
        lm: BackoffModel | Ngrams | None = None,
        config: WordsConfig | None = None,
    ) -> None:
        config = config or WordsConfig()
        self.config, self._units = config, units
        if not isinstance(words, Dictionary):
            words = Dictionary.of(words, units, config.between)
        self.dictionary = words
        if config.mode == "words":
            lm = None
        elif lm is None:
            raise CtcDecodeError(
                f"the mode {config.mode!r} needs a language model; without one, decode with"
                " `mode='words'`"
            )
        if isinstance(lm, BackoffModel):
            lm = Ngrams.of(lm, words.words)
        self._lm = lm
        options = Options(
            units.blank,
            space_label(units),
            config.width,
            config.margin,
            config.symbols,
            _MODES[config.mode],
            float(config.lm_weight),
            float(config.word_bonus),
            config.complete,
        )
        self._search = BeamSearch(words.tree, lm, options)

    def decode(self, log_probs: LogProbs) -> list[CtcHypothesis]:
        """Return the best hypotheses of one utterance; see `CtcDecoder.decode`."""
        array = as_array(log_probs, self._units.size)
        nbest = self.config.nbest
        return read_hypotheses(self._search.run(array, nbest), self._units, nbest)

    def begin(self) -> "OngoingSearch":
        """Begin to decode an utterance whose posteriors arrive block by block."""
        return OngoingSearch(self._search, self._units, self.config.nbest)

    def tuned(self, lm_weight: float, word_bonus: float) -> "WordsDecoder":
        """Return the same decoder with other weights."""
        return self.configured(replace(self.config, lm_weight=lm_weight, word_bonus=word_bonus))

    def texts(
        self, utterances: Sequence[LogProbs], pairs: Sequence[Pair], jobs: int = 1
    ) -> Iterator[list[str]]:
        """Yield every utterance's best text for each pair of LM weight and word bonus.

        Args:
          utterances: see `decode`.
          pairs: the pairs of LM weight and word bonus.
          jobs: threads.
        """
        for pair in pairs:
            decoded = self.tuned(*pair).decode_many(utterances, jobs)
            yield [hypotheses[0].text for hypotheses in decoded]

    def widened(self, width: int) -> "WordsDecoder":
        """Return the same decoder with another beam width."""
        return self.configured(replace(self.config, width=width))

    def with_beam(self, width: int, margin: float) -> "WordsDecoder":
        """Return the same decoder with another beam width and margin."""
        return self.configured(replace(self.config, width=width, margin=margin))

    def configured(self, config: WordsConfig) -> "WordsDecoder":
        """Return a decoder with another configuration that shares the word tree.

        The new configuration must have the same `between`, and a language model if and only if
        this one has.
        """
        return WordsDecoder(self._units, self.dictionary, self._lm, config)
