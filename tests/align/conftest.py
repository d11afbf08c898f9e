"""A synthetic language, synthetic alignments, and GMM systems trained on drawn speech."""

import random
from types import SimpleNamespace

import pytest
import torch


class Synthesiser:
    """Synthesises alignments of random words: seed -> durations, noise and words."""

    def __init__(self, context: bool) -> None:
        from toolkit.align.force_align import TranscriptGraphs
        from toolkit.hmm.senones import Senones
        from toolkit.hmm.topology import Topology
        from toolkit.hmm.tree import Leaf, Root, Split, Tree
        from toolkit.lang.lang import Lang
        from toolkit.lang.lexicon import Lexicon

        rng = random.Random(0)
        phones = list("ABCDEFGH")
        self.names = [f"W{i}" for i in range(30)]
        self.lang = Lang.of(
            Lexicon({w: [tuple(rng.choices(phones, k=rng.randint(2, 5)))] for w in self.names})
        )
        topology = Topology(tuple(self.lang.real_phones))
        if context:
            yes, roots, pdf = frozenset({1, 3, 4, 5}), [], 0
            for phone in topology.phone_ids():
                for state in range(topology.num_states(phone)):
                    leaves = [Leaf(pdf, 0)]
                    if phone > 2:  # silence and noise do not depend on context
                        leaves.append(Leaf(pdf + 1, 0))
                    node = leaves[0]
                    if len(leaves) == 2:
                        ask = "left" if state < 2 else "right"
                        node = Split(ask, yes, 0.0, 0, leaves[0], leaves[1])
                    roots.append(Root((phone,), state, node))
                    pdf += len(leaves)
            self.senones = Senones(topology, Tree(topology.phones, tuple(roots)))
        else:
            self.senones = Senones.monophone(topology)
        self.compiler = TranscriptGraphs(self.lang, self.senones)

    def __call__(self, count, seed=0, pauses=None, chance=0.2, noise=3.0) -> SimpleNamespace:
        """Words in a row, the frame in which each begins, and scores [T, P].

        `pauses` gives frames of silence before words by their number.
        """
        rng = random.Random(seed)
        topology = self.senones.topology
        silence = [topology.state_id(1, s) for s in range(5)]
        words, starts, path = [], [], []
        pauses = pauses or {}
        for i in range(count + 1):
            length = pauses.get(i, rng.randint(5, 40) if rng.random() < chance else 0)
            path += [
                silence[min(k, 1 + k % 3)] if k < length - 1 else silence[4] for k in range(length)
            ]
            if i < count:
                words.append(rng.choice(self.names))
                starts.append(len(path))
                for phone in self.lang.pronunciation_ids(words[-1])[0]:
                    for state in range(3):
                        path += [topology.state_id(phone, state)] * rng.randint(1, 4)
        pdfs = self.senones.pdfs(torch.tensor(path))
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(len(path), self.senones.num_pdfs, generator=generator) * noise
        scores[range(len(path)), pdfs] += 8.0
        return SimpleNamespace(words=words, starts=starts, scores=scores)


@pytest.fixture(scope="session", params=["monophones", "triphones"])
def synthesise(request):
    return Synthesiser(request.param == "triphones")


@pytest.fixture(scope="session")
def synthesise_monophones():
    return Synthesiser(False)


class Training:
    """Trains the chain of GMM systems on drawn speech."""

    names = ("mono", "tri", "lda_mllt", "sat")
    trainers = {  # noqa: RUF012
        "mono": "train_monophone",
        "tri": "train_triphone",
        "lda_mllt": "train_lda_mllt",
        "sat": "train_sat",
    }

    def __init__(self, speech, root) -> None:
        from toolkit.align.config import (
            EmConfig,
            LdaMlltConfig,
            MonophoneConfig,
            SatConfig,
            TriphoneConfig,
        )
        from toolkit.hmm.config import TreeConfig

        self.speech, self.root = speech, root
        tree = TreeConfig(max_leaves=40, min_gain=50.0, min_frames=20)
        em = EmConfig(iterations=6, realign=(2, 4), gaussians=60, grow_until=4)
        mono = EmConfig(iterations=10, realign=(1, 2, 3, 5, 7), gaussians=40, grow_until=7)
        self.configs = {
            "mono": MonophoneConfig(mono),
            "tri": TriphoneConfig(tree, em),
            "lda_mllt": LdaMlltConfig(tree, em, splice=1, dimension=5, mllt=(2, 3)),
            "sat": SatConfig(tree, em, fmllr=(2, 3)),
        }

    def __call__(self, name, out, **changed):
        """Train one system, by default as the finished one of the chain was."""
        from toolkit.align import train_gmm

        settings = {
            "cepstra": self.speech.cepstra,
            "transcripts": self.speech.transcripts,
            "lang": self.speech.lang,
            "config": self.configs[name],
            "out": out,
        }
        if name != "mono":
            settings["previous"] = self.root / self.names[self.names.index(name) - 1]
        return getattr(train_gmm, self.trainers[name])(**settings | changed)

    def system(self, name, folder=None, cepstra=None):
        """One of the finished systems, its training speakers' transforms included."""
        from toolkit.features.gmm_features import load_transforms
        from toolkit.hmm.gmm_system import GmmSystem

        folder = folder or self.root / name
        transforms = load_transforms(folder / "fmllr.safetensors")
        system = GmmSystem.load(folder, cepstra or self.speech.cepstra)
        return system if cepstra else system.adapted(transforms)


@pytest.fixture(scope="session")
def training(speech, tmp_path_factory):
    """The chain of GMM systems, trained, with what each training said."""
    chain = Training(speech, tmp_path_factory.mktemp("trained"))
    chain.headlines = {name: chain(name, chain.root / name) for name in chain.names}
    return chain
