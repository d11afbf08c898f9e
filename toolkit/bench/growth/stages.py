"""The work of stages on made-up data of any size, without what it takes to make the data up.

Each entry of `STAGES` prepares its data in a folder and returns a function that does the work on
so many units of it. Utterances are copies of few, so that what grows with their number is the
stage's own.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch

from toolkit.align.em import accumulate_gmm, accumulate_tree, sum_statistics
from toolkit.bench.instruments.noise import write_noise
from toolkit.bench.instruments.noise_features import SHARD, NoiseFeatures
from toolkit.bench.instruments.synthetic_sentences import SyntheticSentences
from toolkit.bench.instruments.synthetic_speech import SyntheticSpeech
from toolkit.bench.score import synthetic_texts
from toolkit.decode.denominators import LatticeConfig, search
from toolkit.features.extract import ExtractConfig, extract
from toolkit.fsa.beam import Beam
from toolkit.fsa.fst import load_fst
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.lattice_store import (
    LatticeStore,
    graph_digest,
    graph_index,
    shard_path,
    write_shard,
)
from toolkit.fsa.search import search_lattice
from toolkit.score.wer import score
from toolkit.train.batches import ChunkSampler, CorpusBatches, ShardGroups
from toolkit.train.config import ChunkConfig
from toolkit.train.corpus import Corpus

Work = Callable[[int], object]
"""Does a stage's work on so many units."""
SPOKEN = 4
"""Different utterances; the others are copies."""
WORDS, SENTENCES, SECONDS = 200, 400, 5.0
TEXTS = 100
"""Utterances of a unit of scoring, which is quick."""
SCALE = 0.4


def extraction(folder: Path, largest: int) -> Work:
    """Log-mel features of FLAC files of 5 s, a speaker each, to shards of a minute."""
    cuts = []
    for number in range(largest):
        cut = write_noise(folder, number, SECONDS)
        [supervision] = cut.supervisions
        cuts.append(replace(cut, supervisions=[replace(supervision, speaker=f"s{number}")]))
    runs = iter(range(1_000_000))

    def work(units: int) -> object:
        config = ExtractConfig(hours_per_shard=1 / 60)
        return extract(cuts[:units], config, folder / f"run{next(runs)}")

    return work


class _Spoken:
    """Aligned utterances in partitions of `SPOKEN`, and the triphone system that they are of."""

    def __init__(self) -> None:
        speech = SyntheticSpeech.make(WORDS)
        spoken = {str(n): speech.utterance(n, SECONDS) for n in range(SPOKEN)}
        states = {name: utterance.states for name, utterance in spoken.items()}
        self.topology = speech.senones.topology
        self.partition = SimpleNamespace(load=lambda: states)
        self.features = SimpleNamespace(
            load=lambda name: spoken[name].features,
            counted=lambda name: torch.ones(len(spoken[name].features), dtype=torch.bool),
            dimension=speech.gmm.means.shape[1],
        )
        self.system = SimpleNamespace(
            gmm=speech.gmm, senones=speech.senones, features=self.features
        )


def gmm_em(folder: Path, largest: int) -> Work:
    """The E step of GMM training; a unit is a partition of `SPOKEN` utterances."""
    spoken = _Spoken()

    def work(units: int) -> object:
        return sum_statistics(accumulate_gmm(spoken.partition, spoken.system) for _ in range(units))

    return work


def tree_statistics(folder: Path, largest: int) -> Work:
    """The statistics from which a tree is grown; a unit is a partition of `SPOKEN` utterances."""
    spoken = _Spoken()

    def work(units: int) -> object:
        return sum_statistics(
            accumulate_tree(spoken.partition, spoken.features, spoken.topology)
            for _ in range(units)
        )

    return work


class _Targets:
    def __init__(self, ids: list[str], frames: int) -> None:
        self.ids, self._targets = ids, torch.zeros(frames, dtype=torch.int64)

    def load(self, name: str) -> torch.Tensor:
        return self._targets


def chunks(folder: Path, largest: int) -> Work:
    """An epoch of chunks for training; a unit is an utterance of 5 s.

    A window holds one shard instead of the eleven hours that bound the memory of training, which
    the sizes here do not reach.
    """
    frames = round(100 * SECONDS)
    config = ChunkConfig(window=SHARD * frames - 1)  # so that no size is kept as a whole

    def work(units: int) -> object:
        noise = NoiseFeatures(64, units, frames)
        corpus = Corpus([(noise, _Targets(noise.ids, frames))], noise, 10)
        groups = ShardGroups(corpus, config.window, seed=0)
        source = CorpusBatches(groups, ChunkSampler(config, lookahead=5), seed=0)
        return sum(batch.frames for batch in source.batches(0))

    return work


class _Language:
    """A decoding graph, and scores of sentences of 5 s."""

    def __init__(self, folder: Path) -> None:
        language = SyntheticSentences.make(WORDS)
        self.path = language.graph(folder, SENTENCES)
        self.graph = load_fst(self.path)
        self.scores = [SCALE * language.sentence(n, SECONDS).scores for n in range(SPOKEN)]


def lattices(folder: Path, largest: int) -> Work:
    """Denominator lattices in shards of `SPOKEN`, made, written and read; a unit is a shard."""
    language = _Language(folder)
    index, digest = graph_index(language.graph), graph_digest(language.path)
    runs = iter(range(1_000_000))
    config = LatticeConfig(acoustic_scale=SCALE)

    def work(units: int) -> object:
        out = folder / f"run{next(runs)}"
        out.mkdir()
        for number in range(units):
            found = [search(scores, language.graph, config)[0] for scores in language.scores]
            named = {f"{number}-{n}": lattice for n, lattice in enumerate(found) if lattice}
            write_shard(shard_path(out, number), named, index, digest)
        store = LatticeStore(out, language.path)
        return sum(store.load(name).num_states for name in store.ids)

    return work


def decode(folder: Path, largest: int) -> Work:
    """Search and best words of sentences of 5 s."""
    language = _Language(folder)

    def work(units: int) -> object:
        found = []
        for number in range(units):
            scores = language.scores[number % SPOKEN]
            lattice = search_lattice(scores, language.graph, Beam(12.0, 4.0, max_active=4000))
            best = lattice and ScoredLattice.of(lattice, scores, 1.0).best_words(Weights(1.0))
            found.append(best or [])
        return found

    return work


def scoring(folder: Path, largest: int) -> Work:
    """Word error rates with alignments; a unit is `TEXTS` utterances of 5 to 35 words."""
    refs, hyps = synthetic_texts(TEXTS * largest)
    names = sorted(refs)
    random.Random(0).shuffle(names)

    def work(units: int) -> object:
        some = names[: TEXTS * units]
        return score({n: refs[n] for n in some}, {n: hyps[n] for n in some})

    return work


STAGES = {
    "extract": extraction,
    "GMM EM": gmm_em,
    "tree statistics": tree_statistics,
    "chunks": chunks,
    "lattices": lattices,
    "decode": decode,
    "score": scoring,
}
"""By name: takes a folder and the most units that will be asked for."""
