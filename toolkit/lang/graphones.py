"""Alignment of spellings with pronunciations into graphones, by expectation-maximisation."""

from collections.abc import Iterator, Sequence

import numpy as np

Pair = tuple[str, tuple[str, ...]]
"""A spelling and its phones."""

Graphone = tuple[str, tuple[str, ...]]
"""One or two letters and the phones they stand for: 1 letter and 0 to 2, or 2 letters and 1."""

_SHAPES = ((1, 0), (1, 1), (1, 2), (2, 1))  # letters, phones
_SHARES = (1.0, 1.0, 0.1, 0.1)
"""What every pass leaves of the weights of each shape: the larger ones, of which a word needs
fewer, would otherwise win where a silent letter says the same."""
_FLAT = 1e-3  # equal start weight of every graphone; small, so that fewer graphones do not win

_MARKS = 2**24  # graphones that are marked in a table, of a byte each


class Aligner:
    """A unigram model of the graphones that pairs can consist of.

    A graphone has a number: the four shapes' blocks follow each other, each counted by its letters
    and phones as digits. Those that occur have a weight each; of an alphabet of thousands of
    letters there are billions of others. A recursion runs over the letters and treats all words of
    one length at once.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.letters = tuple(sorted({letter for word, _ in pairs for letter in word}))
        self.phones = tuple(sorted({phone for _, phones in pairs for phone in phones}))
        self._letter_ids = {letter: i for i, letter in enumerate(self.letters)}
        self._phone_ids = {phone: i for i, phone in enumerate(self.phones)}
        a, p = len(self.letters), len(self.phones)
        self._offsets = np.cumsum([0, *(a**n * p**m for n, m in _SHAPES)])
        self._known = self._used(pairs)
        self._shares = np.array(_SHARES)[self._shape(self._known)]
        self.weights = _FLAT * self._shares

    def train(self, pairs: Sequence[Pair], iterations: int) -> None:
        """Fit the weights to some of the pairs; those that cannot be aligned are ignored."""
        batches = [(self._ids(numbers), lengths) for _, numbers, lengths in self._batches(pairs)]
        for _ in range(iterations):
            counts = np.zeros_like(self.weights)
            for ids, lengths in batches:
                self._add_counts(ids, lengths, counts)
            self.weights = self._shares * counts / max(counts.sum(), 1e-300)

    def align(self, pairs: Sequence[Pair]) -> list[list[int]]:
        """Return the best graphone ids of some of the pairs in order, an empty list without any."""
        result: list[list[int]] = [[] for _ in pairs]
        for rows, numbers, lengths in self._batches(pairs):
            for row, path in zip(rows, self._best(self._ids(numbers), lengths), strict=True):
                result[row] = path
        return result

    def graphone(self, index: int) -> Graphone:
        """Return the graphone with the id `index`."""
        index = int(self._known[index])
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
        """Yield (rows, graphones, phone counts) for words of equal length, at most 4096 each.

        The graphones are, for each letter position i, an array [N, J + 1, 4]: the number of that of
        each shape that ends at letter i and phone j, -1 where the shape does not fit.
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
        """Return the numbers of the graphones in pairs, ascending."""
        found = (at[at >= 0] for _, numbers, _ in self._batches(pairs) for at in numbers)
        if self._offsets[-1] > _MARKS:
            return np.unique(np.concatenate([np.zeros(0, np.int64), *map(np.unique, found)]))
        marks = np.zeros(self._offsets[-1], bool)  # for cmudict 3 s less than sorting
        for numbers in found:
            marks[numbers] = True
        return np.flatnonzero(marks)

    def _shape(self, numbers: np.ndarray | int) -> np.ndarray:
        """Return which of `_SHAPES` graphones have."""
        return np.searchsorted(self._offsets, numbers, side="right") - 1

    def _ids(self, numbers: list[np.ndarray]) -> list[np.ndarray]:
        """Return the places of graphones in `weights`, -1 where there is none."""
        return [np.where(at >= 0, np.searchsorted(self._known, at), -1) for at in numbers]

    def _numbers(self, letters: np.ndarray, phones: np.ndarray) -> list[np.ndarray]:
        a, p = len(self.letters), len(self.phones)
        none = np.full((len(letters), 1), -1)
        one = np.concatenate([none, phones], axis=1)  # [N, J + 1], the phone that ends at j
        before = np.concatenate([none, one[:, :-1]], axis=1)
        two = np.where((before >= 0) & (one >= 0), before * p + one, -1)
        result = []
        for i in range(letters.shape[1]):
            letter = letters[:, i, None]
            ids = np.full((*one.shape, 4), -1)
            ids[..., 0] = self._offsets[0] + letter
            ids[..., 1] = np.where(one >= 0, self._offsets[1] + letter * p + one, -1)
            ids[..., 2] = np.where(two >= 0, self._offsets[2] + letter * p * p + two, -1)
            if i > 0:
                pair = letters[:, i - 1, None] * a + letter
                ids[..., 3] = np.where(one >= 0, self._offsets[3] + pair * p + one, -1)
            result.append(ids)
        return result

    def _arcs(self, ids: np.ndarray) -> np.ndarray:
        return np.where(ids >= 0, self.weights[ids], 0.0)

    def _add_counts(self, ids: list[np.ndarray], lengths: np.ndarray, counts: np.ndarray) -> None:
        """Add the posterior counts of one batch (forward-backward) to `counts`."""
        arcs = [self._arcs(i) for i in ids]
        num, width = arcs[0].shape[:2]
        rows = np.arange(num)
        forward = [np.zeros((num, width))]
        forward[0][:, 0] = 1.0
        for i, arc in enumerate(arcs):
            forward.append((_sources(forward, i) * arc).sum(axis=-1))
        total = forward[-1][rows, lengths]
        backward = [np.zeros((num, width)) for _ in range(len(arcs) + 2)]
        with np.errstate(divide="ignore"):
            backward[-2][rows, lengths] = np.where(total > 0, 1 / total, 0.0)
        for i in range(len(arcs) - 1, -1, -1):
            posterior = _sources(forward, i) * arcs[i] * backward[i + 1][..., None]
            fits = ids[i] >= 0
            counts += np.bincount(ids[i][fits], posterior[fits], minlength=len(counts))
            flow = arcs[i] * backward[i + 1][..., None]
            backward[i] += flow[..., 0]
            backward[i][:, :-1] += flow[:, 1:, 1]
            backward[i][:, :-2] += flow[:, 2:, 2]
            if i > 0:
                backward[i - 1][:, :-1] += flow[:, 1:, 3]

    def _best(self, ids: list[np.ndarray], lengths: np.ndarray) -> list[list[int]]:
        """Return the best path of graphone ids of each word of a batch (Viterbi)."""
        num, width = ids[0].shape[:2]
        score = [np.zeros((num, width))]
        score[0][:, 0] = 1.0
        choice = []
        for i, positions in enumerate(ids):
            candidates = _sources(score, i) * self._arcs(positions)
            choice.append(candidates.argmax(axis=-1))
            score.append(candidates.max(axis=-1))
        paths = []
        for n in range(num):
            i, j = len(ids), int(lengths[n])
            path: list[int] = []
            if score[i][n, j] > 0:
                while i > 0:
                    shape = int(choice[i - 1][n, j])
                    path.append(int(ids[i - 1][n, j, shape]))
                    i, j = i - _SHAPES[shape][0], j - _SHAPES[shape][1]
            paths.append(path[::-1])
        return paths


def _sources(scores: list[np.ndarray], i: int) -> np.ndarray:
    """Gather the score where a graphone of each shape that ends at letter `i` began, [N, J, 4]."""
    last = scores[i]
    result = np.zeros((*last.shape, 4))
    result[..., 0] = last
    result[:, 1:, 1] = last[:, :-1]
    result[:, 2:, 2] = last[:, :-2]
    if i > 0:
        result[:, 1:, 3] = scores[i - 1][:, :-1]
    return result
