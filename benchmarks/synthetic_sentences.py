"""Synthetic sentences at the low frame rate: language, decoding graph and frame scores."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.synthetic_speech import SyntheticSpeech, random_tree
from toolkit.decode.graph import make_decoding_graph
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang
from toolkit.lang.ngram.arpa import write_arpa
from toolkit.lang.ngram.kneser_ney import estimate

FRAMES_PER_SECOND = 100 / 3
# Number of likely followers of a word, the k-th with a probability in proportion to 1 / k, and the
# probability of any word instead.
FOLLOWERS, ANY = 50, 0.2
# Mean in frames of the exponential duration of a phone after its onset; only whole frames count, so
# that a phone lasts 80 ms on average.
SUSTAINED = 2.2
# Probability of a pause after a word.
PAUSE = 0.1
# Number of dimensions, standard deviation of the phones' means, and that of the pdfs' means around
# them.
DIMENSIONS, PHONE_SPREAD, PDF_SPREAD = 20, 0.5, 0.3


@dataclass(frozen=True)
class Sentence:
    """A sentence with its pdfs and scores."""

    words: tuple[str, ...]
    """The transcript."""
    pdfs: Tensor
    """[T] int64, the pdf of every frame of 30 ms."""
    scores: Tensor
    """[T, P] log-likelihoods, in place of a network's."""


@dataclass(frozen=True)
class SyntheticSentences:
    """A synthetic bigram language and its low-rate acoustic model."""

    lang: Lang
    """The lexicon and phones of `SyntheticSpeech`."""
    senones: Senones
    """A tree of random questions, two states per phone (C3)."""
    means: Tensor
    """[P, D] mean of the frames of each pdf."""

    @classmethod
    def make(cls, words: int = 2000, leaves: int = 3) -> "SyntheticSentences":
        """Make the language; the same arguments give the same language.

        Args:
          words: number of words in the lexicon.
          leaves: pdfs per state of a speech phone; 3 make 238 in all.
        """
        speech = SyntheticSpeech.make(words, leaves=1, gaussians=1, dimension=1)
        topology = speech.senones.topology.at_low_rate()
        senones = Senones(topology, random_tree(topology, leaves, random.Random(0)))
        generator = torch.Generator().manual_seed(0)
        phones = torch.randn(len(topology.phones) + 1, DIMENSIONS, generator=generator)
        own = torch.randn(senones.num_pdfs, DIMENSIONS, generator=generator)
        means = PHONE_SPREAD * phones[senones.phone_of_pdf] + PDF_SPREAD * own
        return cls(speech.lang, senones, means)

    def words(self, rng: random.Random) -> Iterator[str]:
        """Draw words of the language, without end."""
        vocabulary = self.lang.vocabulary
        chances = [1 / (k + 1) for k in range(FOLLOWERS)]
        last = 0
        while True:
            if rng.random() < ANY:
                last = rng.randrange(len(vocabulary))
            else:
                [k] = rng.choices(range(FOLLOWERS), chances)
                last = (31 * last + 977 * k * k + 7) % len(vocabulary)
            yield vocabulary[last]

    def sentence(self, seed: int, seconds: float) -> Sentence:
        """Draw a sentence of slightly more than `seconds`, with silence at both ends."""
        rng = random.Random(seed)
        states, words = self._pause(rng), []
        for word in self.words(rng):
            words.append(word)
            for phone in rng.choice(self.lang.pronunciation_ids(word)):
                states += self._phone(phone, 1 + int(rng.expovariate(1 / SUSTAINED)))
            if len(states) > FRAMES_PER_SECOND * seconds:
                break
            if rng.random() < PAUSE:
                states += self._pause(rng)
        pdfs = self.senones.pdfs(torch.tensor(states + self._pause(rng)))
        return Sentence(tuple(words), pdfs, self._scores(pdfs, seed))

    def _pause(self, rng: random.Random) -> list[int]:
        return self._phone(self.senones.topology.silence, rng.randint(3, 12))

    def _phone(self, phone: int, frames: int) -> list[int]:
        """Return state ids of a phone: its onset of one frame, then its second state."""
        onset = self.senones.topology.state_id(phone, 0)
        return [onset] + [onset + 1] * (frames - 1)

    def _scores(self, pdfs: Tensor, seed: int) -> Tensor:
        """Return log-likelihoods of frames drawn around the means of pdfs [T]."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(len(pdfs), self.means.shape[1], generator=generator)
        return -0.5 * torch.cdist(self.means[pdfs] + noise, self.means) ** 2

    def graph(self, folder: Path, sentences: int = 4_000) -> Path:
        """Write the decoding graph, with a trigram model of `sentences` sentences of 12 words."""
        rng = random.Random(1)
        text = [list(islice(self.words(rng), 12)) for _ in range(sentences)]
        model, _ = estimate(text, self.lang.vocabulary)
        write_arpa(model, folder / "lm.arpa")
        self.lang.save(folder / "lang")
        graph = folder / "graph.safetensors"
        make_decoding_graph(folder / "lang", folder / "lm.arpa", self.senones, graph)
        return graph
