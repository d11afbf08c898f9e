"""A phone n-gram without smoothing or back-off arcs: the language of LF-MMI's denominator."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from toolkit.fsa.fst import EPSILON, FINAL, Fst

History = tuple[int, ...]
Counts = dict[History, Counter[int]]


@dataclass(frozen=True)
class PhoneNgramConfig:
    """The order of the phone n-gram and its number of states."""

    order: int = 4
    """Longest n-grams; those one shorter are all kept (Kaldi: 4, and all 3-grams)."""
    extra_states: int = 2000
    """Histories of `order` - 1 phones that are kept as states of their own: those that predict
    most better than their shorter ones (Kaldi: 2,000)."""

    def __post_init__(self) -> None:
        if self.order < 2:
            raise ValueError(f"order is {self.order}, needs to be at least 2")
        if self.extra_states < 0:
            raise ValueError(f"extra_states is {self.extra_states}, needs to be 0 or more")


def phone_ngram(sentences: Iterable[Sequence[int]], config: PhoneNgramConfig) -> Fst:
    """Estimate a phone n-gram and write it as an acceptor, a state for each history.

    As Kaldi's chain-est-phone-lm: relative frequencies, so that a phone that never followed a
    history cannot follow it, which keeps the graph sparse; and histories that are dropped leave
    their counts to their suffixes. Kaldi drops one history after the other, always the one that
    costs least; here all are compared with their suffixes' counts once.

    Args:
      sentences: the phones of each utterance.
      config: order and size.

    Returns:
      A deterministic acceptor of phones with weighted arcs to the final state.

    Raises:
      ValueError: no sentence has a phone.
    """
    counts: Counts = defaultdict(Counter)
    for sentence in sentences:
        history: History = ()
        for phone in (*sentence, FINAL) if len(sentence) else ():
            counts[history][int(phone)] += 1
            history = (*history, int(phone))[1 - config.order :]
    if not counts:
        raise ValueError("no phones to estimate an n-gram from")
    return _acceptor(_merged(counts, config), config.order)


def _merged(counts: Counts, config: PhoneNgramConfig) -> Counts:
    """Give the counts of the longest histories to their suffixes, except for the best ones."""
    longest = [history for history in counts if len(history) == config.order - 1]
    by_suffix: Counts = defaultdict(Counter)
    for history in longest:
        by_suffix[history[1:]].update(counts[history])
    for suffix, shared in by_suffix.items():
        shared.update(counts.get(suffix, {}))  # from the begins of sentences
    ranked = sorted(longest, key=lambda h: (-_gain(counts[h], by_suffix[h[1:]]), h))
    kept = {h: c for h, c in counts.items() if len(h) < config.order - 1}
    kept |= {history: counts[history] for history in ranked[: config.extra_states]}
    for history in longest:
        if history not in kept:
            kept.setdefault(history[1:], Counter()).update(counts[history])
    return kept


def _gain(own: Counter[int], shared: Counter[int]) -> float:
    """The log-likelihood that phones gain by their own distribution instead of a shared one."""
    totals = own.total(), shared.total()
    return sum(n * log(n * totals[1] / (totals[0] * shared[phone])) for phone, n in own.items())


def _acceptor(counts: Counts, order: int) -> Fst:
    """The states that can be reached, breadth first, and their arcs."""
    number: dict[History, int] = {(): 0}
    waiting = deque([()])
    rows: list[tuple[int, int, int]] = []
    scores: list[float] = []
    while waiting:
        history = waiting.popleft()
        total = counts[history].total()
        for phone, count in sorted(counts[history].items()):
            target = FINAL
            if phone != FINAL:
                following = (*history, phone)[1 - order :]
                while following not in counts:
                    following = following[1:]
                if following not in number:
                    number[following] = len(number)
                    waiting.append(following)
                target = number[following]
            rows.append((number[history], target, phone))
            scores.append(log(count / total))
    table = np.array(rows, np.int32)
    table[table[:, 2] == FINAL, 1] = len(number)
    return Fst(
        source=table[:, 0].copy(),
        target=table[:, 1].copy(),
        labels=table[:, 2].copy(),
        scores=np.array(scores, np.float32),
        splits=np.full(len(table) + 1, EPSILON, np.int32),
        words=np.zeros(0, np.int32),
    )
