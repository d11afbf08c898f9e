"""A neural language model: its vocabulary (the shortlist), its files and sentence scores."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.lang.tables import END, START, UNKNOWN
from toolkit.models.lstm import LstmState, WordLstm
from toolkit.models.store import ModelError, load_model, save_model
from toolkit.processes.devices import full_float32
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading

SPECIAL = (START, END, UNKNOWN)


class ShortlistError(ToolkitError):
    """Raised when a shortlist cannot be read."""


@dataclass(frozen=True)
class Shortlist:
    """Words with an id each; all other words share the probability of <UNK>.

    A word outside the shortlist has a fixed share of p(<UNK> | words before it). So the
    probabilities of all words of the recogniser sum to at most 1.
    """

    words: tuple[str, ...]
    """Words by id; the first are <s>, </s> and <UNK>."""
    shares: Mapping[str, float]
    """By word outside `words`: the word's share of the probability of <UNK>, above 0."""
    smallest_share: float
    """Share of every word that is neither in `words` nor in `shares`."""

    @classmethod
    def of(
        cls, counts: Mapping[str, int], vocabulary: Collection[str], size: int | None
    ) -> "Shortlist":
        """Choose the most frequent words of a text; words of equal counts are in sorted order.

        The shares of all other words are proportional to their counts plus one, so that words that
        are not in the text have a share, too.

        Args:
          counts: counts of all words of the text.
          vocabulary: the recogniser's words; others are never in the shortlist.
          size: largest number of words; None takes all that occur.
        """
        in_vocabulary = set(vocabulary) - set(SPECIAL)
        ranked = sorted(in_vocabulary & counts.keys(), key=lambda word: (-counts[word], word))[
            :size
        ]
        unlisted = in_vocabulary.difference(ranked)
        # Add-one smoothing over the unlisted words and one class for all unknown words.
        tokens = sum(counts.values()) - sum(counts[word] for word in ranked)
        total = tokens + len(unlisted) + 1
        shares = {word: (counts.get(word, 0) + 1) / total for word in sorted(unlisted)}
        return cls((*SPECIAL, *ranked), shares, 1 / total)

    @classmethod
    def load(cls, path: Path) -> "Shortlist":
        """Read a shortlist that `save` wrote.

        Raises:
          ShortlistError: the file is missing or damaged.
        """
        schema = {"words": [str], "shares": {str: float}, "smallest_share": float}
        with reading(path, ShortlistError, "train the language model again"):
            content = read_json(path, schema)
            if tuple(content["words"][:3]) != SPECIAL or len(set(content["words"])) < len(
                content["words"]
            ):
                raise ValueError(
                    "the words do not begin with <s>, </s>, <UNK>, or a word is repeated"
                )
            if not all(
                0 < s <= 1 for s in (*content["shares"].values(), content["smallest_share"])
            ):
                raise ValueError("its shares must be above 0 and at most 1")
        return cls(tuple(content["words"]), content["shares"], content["smallest_share"])

    def save(self, path: Path) -> None:
        """Write the shortlist as JSON."""
        content = {
            "words": self.words,
            "shares": self.shares,
            "smallest_share": self.smallest_share,
        }
        write_atomically(path, json.dumps(content, ensure_ascii=False, indent=0) + "\n")

    def ids(self, words: Iterable[str]) -> list[int]:
        """Return the id of every word, or that of <UNK> for words outside the shortlist."""
        unknown = SPECIAL.index(UNKNOWN)
        return [self._ids.get(word, unknown) for word in words]

    def log_shares(self, words: Iterable[str]) -> list[float]:
        """Return log P(word | its id) of each word.

        That is 0 for listed words, which have ids of their own; the others share the id of <UNK>.
        """
        return [
            0.0 if word in self._ids else math.log(self.shares.get(word, self.smallest_share))
            for word in words
        ]

    @cached_property
    def _ids(self) -> dict[str, int]:
        """The id of each listed word."""
        return {word: number for number, word in enumerate(self.words)}


SHORTLIST = "shortlist.json"
SENTENCES_AT_ONCE = 1000
ROWS_OF_LOGITS = 512  # computed at once, V float32 each


@dataclass(frozen=True)
class NeuralLm:
    """A neural language model and its shortlist."""

    model: WordLstm
    """The network, in evaluation mode."""
    shortlist: Shortlist
    """The words that the network tells apart, and the shares of other words."""

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> "NeuralLm":
        """Read a model that `save` wrote.

        Raises:
          ModelError, ShortlistError: a file is missing or damaged, or the two do not fit together.
        """
        model, shortlist = load_model(folder), Shortlist.load(Path(folder) / SHORTLIST)
        if not isinstance(model, WordLstm):
            raise ModelError(f"{folder} contains no language model: train the language model again")
        if model.config.vocabulary != len(shortlist.words):
            raise ModelError(
                f"{folder}: the network has {model.config.vocabulary} words, but {SHORTLIST} has "
                f"{len(shortlist.words)}. The two belong to different models: train again"
            )
        return cls(model.to(device), shortlist)

    def save(self, folder: Path) -> None:
        """Write the network and `shortlist.json` into a folder."""
        self.shortlist.save(Path(folder) / SHORTLIST)
        save_model(folder, self.model)

    def score(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Compute ln p(word | preceding words) for each word and for the end of sentence.

        Prefixes that several sentences share, as the hypotheses of an utterance do, are read once.

        Args:
          sentences: the words of each sentence.

        Returns:
          For each sentence float64 [words + 1].

        Raises:
          ModelError: the scores are not finite.
        """
        log_probs = []
        for start in range(0, len(sentences), SENTENCES_AT_ONCE):
            chunk = sentences[start : start + SENTENCES_AT_ONCE]
            for words, scores in zip(chunk, self._score(chunk), strict=True):
                if not np.isfinite(scores).all():
                    raise ModelError(
                        "the neural language model's log-probabilities are NaN: its weights are "
                        "damaged; train it again or restore it"
                    )
                # A word outside the shortlist has its share of p(<UNK>); the end has log share 0.
                log_probs.append(scores + np.array([*self.shortlist.log_shares(words), 0.0]))
        return log_probs

    @torch.inference_mode()
    def _score(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Score sentences word by word; a prefix that several share is read only once."""
        self.model.eval()
        device = next(self.model.parameters()).device
        first, last = self.shortlist.ids([START, END])
        ids = [[first, *self.shortlist.ids(words), last] for words in sentences]
        scores_of_sentences = [np.zeros(len(row) - 1) for row in ids]
        node = np.zeros(len(ids), dtype=np.int64)  # for each sentence, the row of its prefix so far
        state: LstmState | None = None
        with full_float32(device):
            for place in range(max(map(len, scores_of_sentences), default=0)):
                rows = [n for n, row in enumerate(scores_of_sentences) if place < len(row)]
                # For each unfinished sentence the word to read and the word to score
                words = np.array([ids[n][place : place + 2] for n in rows])
                # A prefix is a shorter prefix and a word: equal pairs share one row of the batch.
                pairs = np.stack([node[rows], words[:, 0]])
                beginnings, place_of_row = np.unique(pairs, axis=1, return_inverse=True)
                node[rows] = place_of_row.reshape(-1)
                beginnings = torch.from_numpy(beginnings).to(device)
                if state is not None:
                    state = tuple(part[:, beginnings[0]].contiguous() for part in state)
                hidden, state = self.model(beginnings[1][:, None], state)
                following = torch.from_numpy(words[:, 1]).to(device)
                beginning = torch.from_numpy(node[rows]).to(device)
                scores = self._log_likelihoods(hidden[:, 0], beginning, following).tolist()
                for n, score in zip(rows, scores, strict=True):
                    scores_of_sentences[n][place] = score
        return scores_of_sentences

    def _log_likelihoods(self, hidden: Tensor, beginning: Tensor, words: Tensor) -> Tensor:
        """Compute ln p(words[i] | prefix number beginning[i]): [N].

        `hidden` [M, H] holds the network's output after each of the M prefixes.
        """
        log_likelihoods = torch.zeros(len(words), dtype=torch.float64, device=words.device)
        for start in range(0, len(hidden), ROWS_OF_LOGITS):
            logits = self.model.output(hidden[start : start + ROWS_OF_LOGITS]).log_softmax(dim=1)
            rows = torch.nonzero((beginning >= start) & (beginning < start + len(logits)))[:, 0]
            log_likelihoods[rows] = logits[beginning[rows] - start, words[rows]].double()
        return log_likelihoods
