"""Made-up sentences at the low frame rate: language, decoding graph and frame scores."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from toolkit.bench.instruments.planted_speech import PlantedSpeech, random_tree
from toolkit.decode.graph import make_decoding_graph
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang
from toolkit.lang.ngram.arpa import write_arpa
from toolkit.lang.ngram.kneser_ney import estimate

FRAMES_PER_SECOND = 100 / 3
# Words that may follow a word, the k-th with a chance of 1 / k, and the chance of any word.
FOLLOWERS, ANY = 50, 0.2
# A phone lasts longer than its onset by the whole frames of an exponential time of this mean: 80 ms
# in all on average.
SUSTAINED = 2.2
# The chance of a pause behind a word.
PAUSE = 0.1
# Standard deviations, in each of the dimensions, of phones' means and of pdfs' around those.
DIMENSIONS, PHONE_SPREAD, PDF_SPREAD = 20, 0.5, 0.3


@dataclass(frozen=True)
class Sentence:
    """Words and how they sound."""

    words: tuple[str, ...]
    """The transcript."""
    pdfs: Tensor
    """[T] int64, the pdf of every frame of 30 ms."""
    scores: Tensor
    """[T, P] log-likelihoods, as of a network."""


@dataclass(frozen=True)
class PlantedSentences:
    """A language whose words depend on the word before, and its low-rate acoustic model."""

    lang: Lang
    """See `PlantedSpeech`."""
    senones: Senones
    """Random questions, two states per phone (C3)."""
    means: Tensor
    """[P, D] what the frames of each pdf are drawn around."""

    @classmethod
    def make(cls, words: int = 2000, leaves: int = 3) -> "PlantedSentences":
        """The same language in every call.

        Args:
          words: in the lexicon.
          leaves: pdfs of each state of a speech phone; 3 make 238 in all.
        """
        speech = PlantedSpeech.make(words, leaves=1, gaussians=1, dimension=1)
        topology = speech.senones.topology.at_low_rate()
        senones = Senones(topology, random_tree(topology, leaves, random.Random(0)))
        generator = torch.Generator().manual_seed(0)
        phones = torch.randn(len(topology.phones) + 1, DIMENSIONS, generator=generator)
        own = torch.randn(senones.num_pdfs, DIMENSIONS, generator=generator)
        means = PHONE_SPREAD * phones[senones.phone_of_pdf] + PDF_SPREAD * own
        return cls(speech.lang, senones, means)

    def words(self, rng: random.Random) -> Iterator[str]:
        """Words that follow one another, without end."""
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
        """Words of a little over `seconds`, silence at both ends."""
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
        """An onset of one frame, and the rest."""
        onset = self.senones.topology.state_id(phone, 0)
        return [onset] + [onset + 1] * (frames - 1)

    def _scores(self, pdfs: Tensor, seed: int) -> Tensor:
        """Log-likelihoods of frames drawn around the means of pdfs [T]."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(len(pdfs), self.means.shape[1], generator=generator)
        return -0.5 * torch.cdist(self.means[pdfs] + noise, self.means) ** 2

    def graph(self, folder: Path, sentences: int = 4_000) -> Path:
        """Write the decoding graph with a trigram model of so many sentences of 12 words."""
        rng = random.Random(1)
        text = [list(islice(self.words(rng), 12)) for _ in range(sentences)]
        model, _ = estimate(text, self.lang.vocabulary)
        write_arpa(model, folder / "lm.arpa")
        self.lang.save(folder / "lang")
        graph = folder / "graph.safetensors"
        make_decoding_graph(folder / "lang", folder / "lm.arpa", self.senones, graph)
        return graph
