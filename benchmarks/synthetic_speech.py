"""Synthetic speech: a lexicon, a triphone GMM, and frames drawn from it."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.hmm.gmm import Gmm
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree.nodes import Leaf, Node, Root, Split
from toolkit.hmm.tree.tree import Tree
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon

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
        half, question = count // 2, frozenset(rng.sample(phones, len(phones) // 2))
        yes, no = grow(first, half), grow(first + half, count - half)
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
