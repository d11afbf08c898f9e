"""A neural language model on disk, and its scores of sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.lang.shortlist import Shortlist
from toolkit.lang.tables import END, START
from toolkit.models.lstm import LstmState, WordLstm
from toolkit.models.store import ModelError, load_model, save_model
from toolkit.processes.devices import full_float32

SHORTLIST = "shortlist.json"
SENTENCES_AT_ONCE = 1000
ROWS_OF_LOGITS = 512  # of V float32


@dataclass(frozen=True)
class NeuralLm:
    """A network and the words that it knows."""

    model: WordLstm
    """In evaluation mode."""
    shortlist: Shortlist
    """Its words."""

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> "NeuralLm":
        """Read what `save` wrote.

        Raises:
          ModelError, ShortlistError: a file is missing or damaged, or they do not fit.
        """
        model, shortlist = load_model(folder), Shortlist.load(Path(folder) / SHORTLIST)
        if not isinstance(model, WordLstm):
            raise ModelError(f"{folder} holds no language model: train it again")
        if model.config.vocabulary != len(shortlist.words):
            raise ModelError(
                f"{folder}: the network has {model.config.vocabulary} words, {SHORTLIST} "
                f"{len(shortlist.words)}: they come from different models; train again"
            )
        return cls(model.to(device), shortlist)

    def save(self, folder: Path) -> None:
        """Write the network and `shortlist.json` into a folder."""
        self.shortlist.save(Path(folder) / SHORTLIST)
        save_model(folder, self.model)

    def score(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Compute ln p(word | preceding words) of each word and of the sentence's end.

        Prefixes that several sentences share, as the hypotheses of an utterance do, are read once.

        Args:
          sentences: words.

        Returns:
          For each sentence float64 [words + 1].

        Raises:
          ModelError: they are not finite.
        """
        log_probs = []
        for start in range(0, len(sentences), SENTENCES_AT_ONCE):
            chunk = sentences[start : start + SENTENCES_AT_ONCE]
            for words, scores in zip(chunk, self._score(chunk), strict=True):
                if not np.isfinite(scores).all():
                    raise ModelError(
                        "the neural language model's log-probabilities are no numbers: its weights"
                        " are damaged; train it again or restore it"
                    )
                # A word outside the shortlist has its share of p(<UNK>); the end has log share 0.
                log_probs.append(scores + np.array([*self.shortlist.log_shares(words), 0.0]))
        return log_probs

    @torch.inference_mode()
    def _score(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Score all sentences word by word; a prefix that several share is read once."""
        self.model.eval()
        device = next(self.model.parameters()).device
        first, last = self.shortlist.ids([START, END])
        ids = [[first, *self.shortlist.ids(words), last] for words in sentences]
        scores_of_sentences = [np.zeros(len(row) - 1) for row in ids]
        node = np.zeros(len(ids), dtype=np.int64)  # of each sentence: its beginning so far
        state: LstmState | None = None
        with full_float32(device):
            for place in range(max(map(len, scores_of_sentences), default=0)):
                rows = [n for n, row in enumerate(scores_of_sentences) if place < len(row)]
                # The word to read and the word to score of each sentence that is not finished
                words = np.array([ids[n][place : place + 2] for n in rows])
                # A longer prefix is a shorter one and a word: equal pairs are one row of the batch.
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
        """Compute ln p(words[i] | beginning[i]), [N], from hidden values [M, H] of beginnings."""
        log_likelihoods = torch.zeros(len(words), dtype=torch.float64, device=words.device)
        for start in range(0, len(hidden), ROWS_OF_LOGITS):
            logits = self.model.output(hidden[start : start + ROWS_OF_LOGITS]).log_softmax(dim=1)
            rows = torch.nonzero((beginning >= start) & (beginning < start + len(logits)))[:, 0]
            log_likelihoods[rows] = logits[beginning[rows] - start, words[rows]].double()
        return log_likelihoods
