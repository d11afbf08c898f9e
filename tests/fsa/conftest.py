"""A language of two phones and three words, small enough to enumerate all its sentences."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from toolkit.engines import SEARCHES

SIL, A, B = 1, 2, 3


class RandomTree:
    """Ties contexts at random, separately for each state of each phone."""

    def __init__(self, topology, variants):
        size = len(topology.phones) + 1
        generator = torch.Generator().manual_seed(variants)
        shape = (topology.num_state_ids, size, size)
        variant = torch.randint(variants, shape, generator=generator)
        self.num_pdfs = variants * topology.num_state_ids
        self._table = variant + variants * torch.arange(topology.num_state_ids)[:, None, None]

    def table(self):
        return self._table.int()


class Toy:
    """Words and HMMs of a toy language, and by enumeration the paths its graphs must accept."""

    lexicon = {1: [(A, B)], 2: [(A,), (B, B)], 3: [(B,)]}  # noqa: RUF012 - word id -> phones
    names = {1: "AB", 2: "A", 3: "B"}  # noqa: RUF012

    def senones(self, form="plain", variants=1):
        """Two phones of two states and silence of one, or of Kaldi's five; or all with onsets.

        A state has up to `variants` pdfs: with one, context makes no difference.
        """
        from toolkit.hmm.senones import Senones
        from toolkit.hmm.topology import Topology

        phones, silence = ("SIL", "A", "B"), ("SIL",)
        topology = Topology(phones, silence, states=2, silence_states=5 if form == "kaldi" else 1)
        topology = topology.at_low_rate() if form == "onset" else topology
        return Senones(topology, RandomTree(topology, variants))

    def state_sequences(self, topology, phone, frames):
        """All state sequences of one phone that lasts `frames` frames."""
        states = topology.num_states(phone)
        if topology.onset:
            paths = [[0] + [1] * (frames - 1)]
        elif states == 5:  # of silence: the first, then those between in any order, then the last
            paths = [
                [0] * first + list(middle) + [4] * (frames - first - len(middle))
                for first in range(1, frames - 1)
                for length in range(1, frames - first)
                for middle in itertools.product((1, 2, 3), repeat=length)
            ]
        else:
            rising = itertools.combinations_with_replacement(range(states), frames)
            paths = [path for path in rising if set(path) == set(range(states))]
        return [[topology.state_id(phone, state) for state in path] for path in paths]

    def pdf_paths(self, hmms, phones, frames, begun=None):
        """The pdfs of every path of a phone sequence that lasts `frames` frames.

        Or, with `begun`, of the beginnings that enter that many of the phones.
        """
        pdf_sequences, topology = set(), hmms.topology
        count = begun or len(phones)
        for cuts in itertools.combinations(range(1, frames), count - 1):
            parts = []
            for i, (first, last) in enumerate(itertools.pairwise((0, *cuts, frames))):
                # Frames that the last of the begun phones still lacks.
                missing_frames = range(5 if begun and i == count - 1 else 1)
                paths = {
                    tuple(path[: last - first])
                    for n in missing_frames
                    for path in self.state_sequences(topology, phones[i], last - first + n)
                }
                left_phone = phones[i - 1] if i else SIL
                right_phone = phones[i + 1] if i + 1 < len(phones) else SIL
                table = hmms.table[:, left_phone, right_phone].tolist()
                parts.append({tuple(table[s] for s in path) for path in paths})
            pdf_sequences |= {tuple(itertools.chain(*path)) for path in itertools.product(*parts)}
        return pdf_sequences

    def with_silences(self, words_phones):
        """Phone sequences of words, silence optional at every boundary."""
        for pauses in itertools.product([False, True], repeat=len(words_phones) + 1):
            phones = [SIL] if pauses[0] else []
            for word, pause in zip(words_phones, pauses[1:], strict=True):
                phones += list(word) + ([SIL] if pause else [])
            yield tuple(phones)

    def sentence_paths(self, hmms, words, frames, whole=True):
        """The pdfs of every path through a sentence, any pronunciations and silences.

        With `whole` false, the pdfs of every beginning of such a path.
        """
        pdf_sequences = set()
        for phones in itertools.product(*(self.lexicon[w] for w in words)):
            for sequence in self.with_silences(phones):
                for begun in [None] if whole else range(1, len(sequence) + 1):
                    if 0 < (begun or len(sequence)) <= frames:
                        pdf_sequences |= self.pdf_paths(hmms, sequence, frames, begun)
        return pdf_sequences

    def transcript(self, hmms, words, open_end=False):
        """The graph of a transcript, which reads pdf + 1."""
        from toolkit.fsa.expand import expand_phones_to_pdfs
        from toolkit.fsa.lexicon import transcript_graph

        phones = transcript_graph(words, [self.lexicon[w] for w in words], SIL)
        return expand_phones_to_pdfs(phones, hmms, open_end)

    def training_graph(self, hmms, words, open_end=False):
        from toolkit.align.force_align import TrainingGraph

        return TrainingGraph.of(self.transcript(hmms, words, open_end))

    def decoding_graph(self, hmms, grammar):
        from toolkit.fsa.decoding_graph import compile_decoding_graph
        from toolkit.fsa.lexicon import lexicon_transducer

        # phones 4.. are #0 (G's back-off), #1 (a tells from ab, and b from bb), #2 (after silence)
        entries = [(1, [A, B]), (2, [A, 5]), (2, [B, B]), (3, [B, 5])]
        lexicon = lexicon_transducer(entries, SIL, 4, 4, 6)
        return compile_decoding_graph(hmms, lexicon, grammar, 4, 4)


@pytest.fixture(scope="session")
def toy():
    return Toy()


class RandomGraph:
    """A decoding graph of a few states, its file, and all its paths."""

    labels = 4

    def __init__(self, folder, seed, states=6, arcs=18) -> None:
        from toolkit.fsa.fst import arc_sort, connect, dump_fst, fst_from_arcs, load_fst

        generator = torch.Generator().manual_seed(seed)

        def draw(high, size):
            return torch.randint(high, (size,), generator=generator).tolist()

        # A ring, so that every state is on a path, and arcs from anywhere to anywhere.
        ends = [(s, (s + 1) % states) for s in range(states)]
        ends += list(zip(draw(states, arcs), draw(states, arcs), strict=True))
        labels = [1 + label for label in draw(self.labels, len(ends))]
        words = [9 if word == 0 else 0 for word in draw(3, len(ends))]
        scores = (-3 * torch.rand(len(ends), generator=generator)).tolist()
        fst = fst_from_arcs(
            [(*e, x, w, s) for e, x, w, s in zip(ends, labels, words, scores, strict=True)],
            finals=[states - 1, states // 2],
        )
        fst = arc_sort(connect(fst))
        # Arcs that write 9 write 8 after it.
        words = np.tile(np.array([9, 8], np.int32), len(fst.words))
        fst = replace(fst, splits=2 * fst.splits, words=words, lm_scores=fst.scores / 2)
        self.path = folder / f"graph{seed}.safetensors"
        self.path.write_bytes(dump_fst(fst))
        self.fst = load_fst(self.path)

    def paths(self, frames):
        """All paths of `frames` frames as tuples of arcs, the final arc included."""
        target, label = self.fst.target.tolist(), self.fst.labels.tolist()
        leaving = {}
        for number, source in enumerate(self.fst.source.tolist()):
            leaving.setdefault(source, []).append(number)
        paths = [()]
        for frame in range(frames + 1):
            paths = [
                (*path, arc)
                for path in paths
                for arc in leaving.get(target[path[-1]] if path else 0, [])
                if (label[arc] == -1) == (frame == frames)
            ]
        return paths

    def score(self, path, scores):
        """The graph score of a path plus its acoustic scores [T, P]."""
        labels, graph_scores = self.fst.labels.tolist(), self.fst.scores.tolist()
        return sum(graph_scores[arc] for arc in path) + sum(
            float(scores[t, labels[arc] - 1]) for t, arc in enumerate(path[:-1])
        )


@pytest.fixture
def random_graph(tmp_path):
    """random_graph(seed, ...) -> RandomGraph"""
    return lambda seed, **size: RandomGraph(tmp_path, seed, **size)


@pytest.fixture(params=SEARCHES)
def engine(request):
    """Run the test with each installed search engine."""
    from toolkit.fsa.search import searching_with

    if request.param != "native":
        pytest.importorskip(request.param)
    with searching_with(request.param):
        yield


@pytest.fixture(scope="session")
def language():
    """A language of 80 words."""
    from benchmarks.synthetic import SyntheticSentences

    return SyntheticSentences.make(words=80)


@pytest.fixture(scope="session")
def graph(language, tmp_path_factory):
    """The decoding graph of the language."""
    from toolkit.fsa.fst import load_fst

    return load_fst(language.graph(tmp_path_factory.mktemp("graph"), sentences=200))
