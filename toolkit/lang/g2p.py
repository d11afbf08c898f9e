"""Guesses pronunciations of unseen words with a joint n-gram model of letters and phones.

The model of Bisani and Ney (2008) is trained in the two steps of Phonetisaurus: align spellings and
phones into graphones by expectation-maximisation, then estimate n-gram models of graphones
(`toolkit.lang.ngram.estimate_ids`). One model reads words forwards, another reads them backwards.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.lang.lexicon import Lexicon, Pronunciation, grapheme_pronunciation
from toolkit.lang.ngram import BackoffModel, Level, check_levels, estimate_ids
from toolkit.lang.tables import END, START
from toolkit.storage.files import open_atomically
from toolkit.storage.reading import read_archive, reading

Pair = tuple[str, tuple[str, ...]]
"""A spelling and its phones."""

Graphone = tuple[str, tuple[str, ...]]
"""Letters and their phones: 1 letter with 0 to 2 phones, or 2 letters with 1 phone."""

_SHAPES = ((1, 0), (1, 1), (1, 2), (2, 1))  # letters, phones
_SHARES = (1.0, 1.0, 0.1, 0.1)
"""Factors by which every pass multiplies the weights of each shape. Without these factors large
graphones would win over silent letters, because a word needs fewer large graphones."""
_FLAT = 1e-3  # initial weight of a graphone, before the factor of its shape

_MARKS = 2**24  # largest number of possible graphones to mark in a table with a byte for each


class Aligner:
    """A unigram model of graphones that aligns letters with phones.

    Every possible graphone has a number. Each of the four shapes has a block of numbers, in which
    the letters and phones are digits. Only graphones that occur have an id and a weight, because an
    alphabet of thousands of letters has billions of others. The recursions run over the letters,
    for all words of one length at once.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.letters = tuple(sorted({letter for word, _ in pairs for letter in word}))
        self.phones = tuple(sorted({phone for _, phones in pairs for phone in phones}))
        self._letter_ids = {letter: i for i, letter in enumerate(self.letters)}
        self._phone_ids = {phone: i for i, phone in enumerate(self.phones)}
        a, p = len(self.letters), len(self.phones)
        # Blocks of a^letters * p^phones numbers, one for each shape.
        self._offsets = np.cumsum([0, *(a**n * p**m for n, m in _SHAPES)])
        # The numbers of the graphones that occur, ascending; an id is an index of this array.
        self._known = self._used(pairs)
        self._shares = np.array(_SHARES)[self._shape(self._known)]
        self.weights = _FLAT * self._shares

    def train(self, pairs: Sequence[Pair], iterations: int) -> None:
        """Fit the weights to some pairs by EM; pairs that cannot be aligned are ignored."""
        batches = [(self._ids(numbers), lengths) for _, numbers, lengths in self._batches(pairs)]
        for _ in range(iterations):
            counts = np.zeros_like(self.weights)
            for ids, lengths in batches:
                self._add_counts(ids, lengths, counts)
            # M step: relative frequencies, times the factors of the shapes.
            self.weights = self._shares * counts / max(counts.sum(), 1e-300)

    def align(self, pairs: Sequence[Pair]) -> list[list[int]]:
        """Return the best graphone ids of each pair; [] if a pair cannot be aligned."""
        result: list[list[int]] = [[] for _ in pairs]
        for rows, numbers, lengths in self._batches(pairs):
            for row, path in zip(rows, self._best(self._ids(numbers), lengths), strict=True):
                result[row] = path
        return result

    def graphone(self, index: int) -> Graphone:
        """Return the graphone with id `index`."""
        index = int(self._known[index])
        # Undo the mixed-radix number: phones are the low digits, letters the high ones.
        shape = int(self._shape(index))
        index -= int(self._offsets[shape])
        num_letters, num_phones = _SHAPES[shape]
        phones = []
        for _ in range(num_phones):
            index, digit = divmod(index, len(self.phones))
            phones.append(self.phones[digit])
        letters = []
        for _ in range(num_letters):
            index, digit = divmod(index, len(self.letters))
            letters.append(self.letters[digit])
        return "".join(reversed(letters)), tuple(reversed(phones))

    def _batches(
        self, pairs: Sequence[Pair]
    ) -> Iterator[tuple[list[int], list[np.ndarray], np.ndarray]]:
        """Yield (rows, numbers, phone counts) of batches of N pairs, N up to 4096.

        `rows` are indices of the pairs, whose spellings have the same length. `numbers` has an
        array [N, J + 1, 4] for each letter i, J being the largest phone count: [n, j, shape] is the
        number of the graphone of this shape that ends with letter i and the j-th phone; -1: the
        shape does not fit there.
        """
        by_length: dict[int, list[int]] = {}
        for row, (spelling, sounds) in enumerate(pairs):
            if spelling and sounds:
                by_length.setdefault(len(spelling), []).append(row)
        for length in sorted(by_length):
            rows = by_length[length]
            for first in range(0, len(rows), 4096):
                chunk = rows[first : first + 4096]
                letters = np.array([[self._letter_ids[c] for c in pairs[r][0]] for r in chunk])
                lengths = np.array([len(pairs[r][1]) for r in chunk])
                phones = np.full((len(chunk), int(lengths.max())), -1)
                for n, r in enumerate(chunk):
                    phones[n, : lengths[n]] = [self._phone_ids[p] for p in pairs[r][1]]
                yield chunk, self._numbers(letters, phones), lengths

    def _used(self, pairs: Sequence[Pair]) -> np.ndarray:
        """Return the numbers of the graphones that pairs can contain, ascending."""
        graphone_numbers = (at[at >= 0] for _, numbers, _ in self._batches(pairs) for at in numbers)
        if self._offsets[-1] > _MARKS:
            return np.unique(
                np.concatenate([np.zeros(0, np.int64), *map(np.unique, graphone_numbers)])
            )
        marks = np.zeros(self._offsets[-1], bool)  # saves 3 s compared with sorting, for cmudict
        for numbers in graphone_numbers:
            marks[numbers] = True
        return np.flatnonzero(marks)

    def _shape(self, numbers: np.ndarray | int) -> np.ndarray:
        """Return the shapes of graphones as indices in `_SHAPES`."""
        return np.searchsorted(self._offsets, numbers, side="right") - 1

    def _ids(self, numbers: list[np.ndarray]) -> list[np.ndarray]:
        """Convert graphone numbers to ids; -1 stays -1."""
        return [np.where(at >= 0, np.searchsorted(self._known, at), -1) for at in numbers]

    def _numbers(self, letters: np.ndarray, phones: np.ndarray) -> list[np.ndarray]:
        """Return the numbers of the graphones of words; see `_batches`.

        Args:
          letters: [N, I] letter ids of words of I letters.
          phones: [N, J] phone ids, -1 after the end.
        """
        a, p = len(self.letters), len(self.phones)
        none = np.full((len(letters), 1), -1)
        last_phone = np.concatenate([none, phones], axis=1)  # [N, J + 1], the j-th phone
        first_phone = np.concatenate([none, last_phone[:, :-1]], axis=1)
        # [N, J + 1] the number of the last two phones, digits in base p.
        phone_pair = np.where(
            (first_phone >= 0) & (last_phone >= 0), first_phone * p + last_phone, -1
        )
        result = []
        for i in range(letters.shape[1]):
            letter = letters[:, i, None]
            ids = np.full((*last_phone.shape, 4), -1)
            ids[..., 0] = self._offsets[0] + letter
            ids[..., 1] = np.where(last_phone >= 0, self._offsets[1] + letter * p + last_phone, -1)
            ids[..., 2] = np.where(
                phone_pair >= 0, self._offsets[2] + letter * p * p + phone_pair, -1
            )
            if i > 0:
                pair = letters[:, i - 1, None] * a + letter
                ids[..., 3] = np.where(
                    last_phone >= 0, self._offsets[3] + pair * p + last_phone, -1
                )
            result.append(ids)
        return result

    def _arcs(self, ids: np.ndarray) -> np.ndarray:
        """Return the weights of graphones; 0 for id -1."""
        return np.where(ids >= 0, self.weights[ids], 0.0)

    def _add_counts(self, ids: list[np.ndarray], lengths: np.ndarray, counts: np.ndarray) -> None:
        """Add a batch's posterior counts (forward-backward) to `counts`."""
        # arcs[i] [N, J + 1, 4]: weight of the graphone of each shape that ends at letter i, phone j
        arcs = [self._arcs(i) for i in ids]
        num, width = arcs[0].shape[:2]
        rows = np.arange(num)
        forward = [np.zeros((num, width))]
        forward[0][:, 0] = 1.0
        # forward[i][n, j]: total weight of the graphone sequences of the first i letters, j phones
        for i, arc in enumerate(arcs):
            forward.append((_sources(forward, i) * arc).sum(axis=-1))
        total = forward[-1][rows, lengths]
        # backward[i][n, j]: total weight from there to the end; the last array is not used
        backward = [np.zeros((num, width)) for _ in range(len(arcs) + 2)]
        # Scaled by the total weight, so that forward * arc * backward is a posterior.
        with np.errstate(divide="ignore"):
            backward[-2][rows, lengths] = np.where(total > 0, 1 / total, 0.0)
        for i in range(len(arcs) - 1, -1, -1):
            # [N, J + 1, 4] posterior of each graphone: expected counts of the E step.
            posterior = _sources(forward, i) * arcs[i] * backward[i + 1][..., None]
            fits = ids[i] >= 0
            counts += np.bincount(ids[i][fits], posterior[fits], minlength=len(counts))
            # Each shape goes back by its letters and phones: (1, 0), (1, 1), (1, 2), (2, 1).
            flow = arcs[i] * backward[i + 1][..., None]
            backward[i] += flow[..., 0]
            backward[i][:, :-1] += flow[:, 1:, 1]
            backward[i][:, :-2] += flow[:, 2:, 2]
            if i > 0:
                backward[i - 1][:, :-1] += flow[:, 1:, 3]

    def _best(self, ids: list[np.ndarray], lengths: np.ndarray) -> list[list[int]]:
        """Return each word's best path of graphone ids (Viterbi); [] without a path."""
        num, width = ids[0].shape[:2]
        score = [np.zeros((num, width))]
        score[0][:, 0] = 1.0
        choice = []
        for i, positions in enumerate(ids):
            # Max over the shapes that end here; scores are products of weights.
            candidates = _sources(score, i) * self._arcs(positions)
            choice.append(candidates.argmax(axis=-1))
            score.append(candidates.max(axis=-1))
        paths = []
        for n in range(num):
            i, j = len(ids), int(lengths[n])
            path: list[int] = []
            if score[i][n, j] > 0:
                # Trace back: each shape goes back by its letters and phones.
                while i > 0:
                    shape = int(choice[i - 1][n, j])
                    path.append(int(ids[i - 1][n, j, shape]))
                    i, j = i - _SHAPES[shape][0], j - _SHAPES[shape][1]
            paths.append(path[::-1])
        return paths


def _sources(scores: list[np.ndarray], i: int) -> np.ndarray:
    """Return the scores at the starts of graphones ending at letter `i`: [N, J + 1, 4].

    Args:
      scores: of N words, scores[i][n, j] after i letters and j phones; 0 where there is no path.
      i: index of the letter, from 0.
    """
    # The last axis is the graphone's shape in `_SHAPES`: (letters, phones).
    last = scores[i]
    result = np.zeros((*last.shape, 4))
    result[..., 0] = last
    result[:, 1:, 1] = last[:, :-1]
    result[:, 2:, 2] = last[:, :-2]
    if i > 0:
        result[:, 1:, 3] = scores[i - 1][:, :-1]
    return result


ORDER = 8
"""Graphones per n-gram."""
ITERATIONS = 10
"""Passes of expectation-maximisation."""
ALIGNED_PAIRS = 40000
"""Largest number of lexicon entries for expectation-maximisation; the n-gram model uses all."""
BEAM = 24
"""Hypotheses kept per word and letter."""
CANDIDATES = 24
"""Number of graphones to try for one or two letters: the most frequent ones."""
CONSIDERED = 10
"""Number of likeliest pronunciations from which the one nearest to all of them is chosen."""
_BACKWARD = "backward_"
BATCH = 128
"""Words decoded at once."""


class G2pError(ToolkitError):
    """Raised for a lexicon without usable entries, or a damaged model file."""


@dataclass(frozen=True)
class Guess:
    """A guessed pronunciation; `score` (0 to 1) is its share of the hypotheses' probability."""

    phones: Pronunciation
    score: float


def spellable(word: str) -> bool:
    """Return whether a word has a letter, and otherwise only letters, marks and apostrophes."""
    return word.replace("'", "").isalpha() or bool(grapheme_pronunciation(word))


class G2p:
    """A trained grapheme-to-phoneme model."""

    def __init__(
        self,
        graphones: Sequence[Graphone],
        model: BackoffModel,
        backward: "G2p | None" = None,
    ) -> None:
        """Wrap an n-gram model over graphones, whose words are graphone indices "0", "1", ...

        Args:
          graphones: in descending order of frequency.
          model: n-gram model of graphone sequences.
          backward: a model of reversed words and pronunciations; `guess` averages its scores with
            this model's. None: only this model is used.
        """
        self.backward = backward
        self.graphones = tuple(graphones)
        self.model = model
        self.letters = frozenset(letter for spelling, _ in graphones for letter in spelling)
        by_spelling: dict[str, list[int]] = {}
        for index, (spelling, _) in enumerate(graphones):
            by_spelling.setdefault(spelling, []).append(index)
        self._candidates = {
            s: np.array(graphone_ids[:CANDIDATES]) for s, graphone_ids in by_spelling.items()
        }
        self._words = np.array([model.ids[str(i)] for i in range(len(graphones))])

    @classmethod
    def train(cls, lexicon: Lexicon, exclude: Collection[str] = ()) -> "G2p":
        """Train on the spellable words of `lexicon`, without those in `exclude`.

        Raises:
          G2pError: no entry can be aligned.
        """
        pairs: list[Pair] = [
            (word, phones)
            for word, phones in lexicon.pairs()
            if spellable(word) and word not in exclude
        ]
        reversed_pairs = [(word[::-1], phones[::-1]) for word, phones in pairs]
        return cls(*_trained(pairs), cls(*_trained(reversed_pairs)))

    def guess(self, words: Iterable[str]) -> dict[str, Guess]:
        """Return a pronunciation of each word; words with unknown letters are left out.

        The candidates are the `CONSIDERED` likeliest pronunciations of each direction; their scores
        are averaged over both. The candidate with the fewest expected wrong phones is chosen.
        """
        guesses_by_word = self.n_best(words, CONSIDERED)
        if self.backward is not None:
            reversed_words = (word[::-1] for word in guesses_by_word)
            by_reversed_word = self.backward.n_best(reversed_words, CONSIDERED)
            for word, guesses in guesses_by_word.items():
                backward_guesses = [
                    Guess(guess.phones[::-1], guess.score)
                    for guess in by_reversed_word.get(word[::-1], [])
                ]
                guesses_by_word[word] = _averaged(guesses, backward_guesses)
        return {word: _safest(guesses) for word, guesses in guesses_by_word.items()}

    def n_best(self, words: Iterable[str], count: int) -> dict[str, list[Guess]]:
        """Return up to `count` pronunciations of each word, likeliest first.

        The probability of a pronunciation is the sum over its graphone sequences. A word with an
        unknown letter, or without any graphone sequence, is left out.
        """
        spelled = [w for w in dict.fromkeys(words) if w and self.letters.issuperset(w)]
        result: dict[str, list[Guess]] = {}
        for first in range(0, len(spelled), BATCH):
            batch = spelled[first : first + BATCH]
            for word, hypotheses in zip(batch, self._search(batch), strict=True):
                guesses = merge_hypotheses(hypotheses)
                if guesses:
                    result[word] = guesses[:count]
        return {word: result[word] for word in spelled if word in result}

    def _search(self, words: list[str]) -> list[list[tuple[Pronunciation, float]]]:
        """Return each word's hypotheses (phones, log10 probability), found by beam search.

        All words advance together, letter by letter; a graphone of two letters skips a position.
        """
        # waiting[i]: hypotheses that have read i letters
        longest = max(map(len, words))
        waiting: list[list[_Hypotheses]] = [[] for _ in range(longest + 2)]
        waiting[0].append(
            _Hypotheses(
                word=np.arange(len(words)),
                state=self.model.start(len(words)),
                score=np.zeros(len(words)),
                parent=np.full(len(words), -1),
                graphone=np.full(len(words), -1),
            )
        )
        backpointers = _Backpointers()
        result: list[list[tuple[Pronunciation, float]]] = [[] for _ in words]
        for position in range(longest + 1):
            if not waiting[position]:
                continue
            # Prune each word's hypotheses, complete those of words that end here, expand the rest.
            active = _Hypotheses.join(waiting[position]).prune()
            entries = backpointers.add(active)
            ended = np.array([len(words[w]) == position for w in active.word.tolist()])
            self._finish(active, np.flatnonzero(ended), entries, backpointers, result)
            for span in (1, 2):
                spellings = [words[w][position : position + span] for w in active.word.tolist()]
                expanded = self._expand(active, entries, spellings, span)
                if expanded is not None:
                    waiting[position + span].append(expanded)
        return result

    def _expand(
        self, active: "_Hypotheses", entries: np.ndarray, spellings: list[str], span: int
    ) -> "_Hypotheses | None":
        """Extend hypotheses by the graphones of `spellings`; return None if none fits."""
        none = np.zeros(0, dtype=np.int64)
        options = [self._candidates.get(s, none) if len(s) == span else none for s in spellings]
        # Row of the hypothesis that each new one extends, [H'].
        source = np.repeat(np.arange(len(options)), [len(o) for o in options])
        if not len(source):
            return None
        graphone = np.concatenate(options)
        logprob, state = self.model.step(active.state[source], self._words[graphone])
        return _Hypotheses(
            word=active.word[source],
            state=state,
            score=active.score[source] + logprob,
            parent=entries[source],
            graphone=graphone,
        )

    def _finish(
        self,
        active: "_Hypotheses",
        ended: np.ndarray,
        entries: np.ndarray,
        backpointers: "_Backpointers",
        result: list[list[tuple[Pronunciation, float]]],
    ) -> None:
        """Complete the hypotheses in rows `ended`, and add them to their words' results."""
        end = np.full(len(ended), self.model.ids[END])
        logprob, _ = self.model.step(active.state[ended], end)
        total = active.score[ended] + logprob
        for row, score in zip(ended.tolist(), total.tolist(), strict=True):
            path = backpointers.path(int(entries[row]))
            phones = tuple(phone for index in path for phone in self.graphones[index][1])
            if phones:
                result[int(active.word[row])].append((phones, score))

    def save(self, path: Path) -> None:
        """Write the model as a compressed .npz file of plain arrays."""
        arrays = self._arrays("")
        if self.backward is not None:
            arrays |= self.backward._arrays(_BACKWARD)
        with open_atomically(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    def _arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays to save, with a prefix before their names."""
        letters, phones = zip(*self.graphones, strict=True)
        arrays = {
            "letters": np.array(letters, dtype=np.str_),
            "phones": np.array(
                [" ".join(pronunciation) for pronunciation in phones], dtype=np.str_
            ),
        }
        for n, level in enumerate(self.model.levels):
            arrays[f"context{n}"] = level.context.astype(np.int32)
            arrays[f"word{n}"] = level.word.astype(np.int32)
            arrays[f"logprob{n}"] = level.logprob.astype(np.float32)
            arrays[f"backoff{n}"] = level.backoff.astype(np.float32)
        return {f"{prefix}{name}": values for name, values in arrays.items()}

    @classmethod
    def load(cls, path: Path) -> "G2p":
        """Read a model that `save` wrote; weights have single precision.

        Raises:
          G2pError: the file is missing or damaged.
        """
        with reading(path, G2pError, "build the lexicon again", "not a G2P model"):
            arrays = read_archive(path)
            backward = {
                name.removeprefix(_BACKWARD): values
                for name, values in arrays.items()
                if name.startswith(_BACKWARD)
            }
            # A model may have the forward direction only.
            second = cls(*_parts(backward)) if backward else None
            return cls(*_parts(arrays), second)


def _parts(arrays: dict[str, np.ndarray]) -> tuple[list[Graphone], BackoffModel]:
    """Return graphones and n-gram model from the arrays of a file."""
    phones = [tuple(text.split()) for text in arrays["phones"].tolist()]
    graphones = list(zip(arrays["letters"].tolist(), phones, strict=True))
    levels = [
        Level(
            context=arrays[f"context{n}"].astype(np.int64),
            word=arrays[f"word{n}"].astype(np.int64),
            logprob=arrays[f"logprob{n}"].astype(np.float64),
            backoff=arrays[f"backoff{n}"].astype(np.float64),
        )
        for n in range(sum(name.startswith("context") for name in arrays))
    ]
    vocabulary = [*map(str, range(len(graphones))), START, END]
    check_levels(vocabulary, levels)
    return graphones, BackoffModel(vocabulary, levels)


def _trained(pairs: Sequence[Pair]) -> tuple[list[Graphone], BackoffModel]:
    """Return the graphones of pairs, most frequent first, and their n-gram model."""
    # 1. Fit the aligner's weights to every `step`-th pair, and align all pairs.
    aligner = Aligner(pairs)
    step = max(1, -(-len(pairs) // ALIGNED_PAIRS))
    aligner.train(pairs[::step], ITERATIONS)
    sequences = [path for path in aligner.align(pairs) if path]
    if not sequences:
        raise G2pError(
            "no pronunciations can be learnt from the lexicon: the number of entries for words "
            f"of letters is {len(pairs)}"
        )
    # 2. The n-gram model over graphones as words "0", "1", ... by frequency.
    counts = Counter(index for path in sequences for index in path)
    ranked = sorted(counts, key=lambda index: (-counts[index], index))
    number = {index: i for i, index in enumerate(ranked)}
    start, end = len(ranked), len(ranked) + 1
    tokens = [t for path in sequences for t in (start, *(number[index] for index in path), end)]
    vocabulary = [*map(str, range(len(ranked))), START, END]
    model, _ = estimate_ids(np.array(tokens), vocabulary, ORDER)
    return [aligner.graphone(index) for index in ranked], model


@dataclass(frozen=True)
class _Hypotheses:
    """H partial pronunciations, in arrays."""

    word: np.ndarray
    """[H] index of the word."""
    state: np.ndarray
    """[H, order - 1] n-gram state."""
    score: np.ndarray
    """[H] log10 probability."""
    parent: np.ndarray
    """[H] entry, in `_Backpointers`, of the hypothesis that each extends; -1: none."""
    graphone: np.ndarray
    """[H] last graphone; -1: none."""

    @staticmethod
    def join(parts: list["_Hypotheses"]) -> "_Hypotheses":
        """Concatenate hypotheses."""
        return _Hypotheses(
            word=np.concatenate([p.word for p in parts]),
            state=np.concatenate([p.state for p in parts]),
            score=np.concatenate([p.score for p in parts]),
            parent=np.concatenate([p.parent for p in parts]),
            graphone=np.concatenate([p.graphone for p in parts]),
        )

    def prune(self) -> "_Hypotheses":
        """Keep each word's `BEAM` best hypotheses, sorted by word and descending score."""
        order = np.lexsort((-self.score, self.word))
        # Rank of each hypothesis within its word; searchsorted finds the word's first hypothesis.
        word = self.word[order]
        rank = np.arange(len(word)) - np.searchsorted(word, word)
        survivors = order[rank < BEAM]
        return _Hypotheses(
            self.word[survivors],
            self.state[survivors],
            self.score[survivors],
            self.parent[survivors],
            self.graphone[survivors],
        )


class _Backpointers:
    """Back pointers of all hypotheses, to trace back complete ones."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._graphones: list[int] = []

    def add(self, hypotheses: _Hypotheses) -> np.ndarray:
        """Store H hypotheses; return the indices of their entries, [H]."""
        first = len(self._parents)
        self._parents.extend(hypotheses.parent.tolist())
        self._graphones.extend(hypotheses.graphone.tolist())
        return np.arange(first, len(self._parents))

    def path(self, entry: int) -> list[int]:
        """Return the graphones that lead to `entry`, first to last."""
        return list(self._backwards(entry))[::-1]

    def _backwards(self, entry: int) -> Iterator[int]:
        """Yield the graphones of a path from last to first."""
        while self._graphones[entry] >= 0:
            yield self._graphones[entry]
            entry = self._parents[entry]


def _averaged(guesses: Sequence[Guess], backward_guesses: Sequence[Guess]) -> list[Guess]:
    """Average the scores of two models' guesses; return the guesses, likeliest first."""
    if not backward_guesses:
        return list(guesses)
    shares: dict[Pronunciation, float] = {}
    for guess in (*guesses, *backward_guesses):
        shares[guess.phones] = shares.get(guess.phones, 0.0) + guess.score / 2
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return [Guess(phones, share) for phones, share in ranked]


def _safest(guesses: Sequence[Guess]) -> Guess:
    """Return the guess with the smallest score-weighted distance to the other guesses."""

    def risk(guess: Guess) -> float:
        """Return the weighted sum of a guess's distances to all guesses."""
        return sum(rival.score * _distance(guess.phones, rival.phones) for rival in guesses)

    return min(guesses, key=risk)


def _distance(a: Pronunciation, b: Pronunciation) -> int:
    """Return the edit distance between two phone sequences."""
    # row[j]: distance between the first i phones of a and the first j of b;
    # diagonal: distance between the first i - 1 phones of a and the first j - 1 of b.
    row = list(range(len(b) + 1))
    for i, phone in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, b_phone in enumerate(b, 1):
            distance = min(row[j] + 1, row[j - 1] + 1, diagonal + (phone != b_phone))
            diagonal, row[j] = row[j], distance
    return row[-1]


def merge_hypotheses(hypotheses: list[tuple[Pronunciation, float]]) -> list[Guess]:
    """Add up the scores of equal pronunciations; sort by share, then by phones."""
    if not hypotheses:
        return []
    # Relative to the best score, because 10 to the power of a score may underflow.
    best = max(score for _, score in hypotheses)
    shares: dict[Pronunciation, float] = {}
    for phones, score in hypotheses:
        shares[phones] = shares.get(phones, 0.0) + 10 ** (score - best)
    total = sum(shares.values())
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return [Guess(phones, share / total) for phones, share in ranked]
