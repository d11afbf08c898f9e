"""Synthetic phones that the features show, in an order that the phone n-gram knows."""

from dataclasses import dataclass

import pytest
import torch

from toolkit.align.store import LowRateAlignments
from toolkit.fsa.config import PhoneNgramConfig
from toolkit.fsa.denominator import Denominator, make_denominator, phone_ngram
from toolkit.fsa.numerator import NumeratorMaker, PhoneTimes
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.models.config import LstmConfig
from toolkit.train.batches import ShardGroups
from toolkit.train.config import LfmmiChunkConfig, LfmmiConfig
from toolkit.train.corpus import Corpus
from toolkit.train.lfmmi import AlignedPhones, LfmmiBatches, LfmmiChunkSampler, train_lfmmi

CONFIG = LfmmiConfig(
    epochs=2,
    initial_rate=2e-2,
    final_rate=5e-3,
    valid_utterances=4,
    model=LstmConfig(hidden=16, layers=1, lookahead=0),
    chunks=LfmmiChunkConfig(max_frames=12, left_context=2, batch_frames=96),
    ngram=PhoneNgramConfig(3),
)
PHONES = ("SIL", "A", "B", "C")
FOLLOWERS = {1: (2, 3), 2: (3, 4), 3: (4, 1), 4: (1, 2)}


@dataclass
class Planted:
    """Stores of utterances, and the graphs of their phones."""

    features: object
    states: object
    normaliser: object
    topology: Topology
    senones: Senones
    denominator: Denominator

    def batch(self):
        """Return the first batch of pieces."""
        aligned = LowRateAlignments(self.states, self.topology, self.senones)
        corpus = Corpus([(self.features, aligned)], self.normaliser, self.senones.num_pdfs)
        times = {n: PhoneTimes.of(x, self.topology) for n, x in self.states.targets.items()}
        maker = NumeratorMaker(self.senones, self.denominator, 5)
        sampler = LfmmiChunkSampler(CONFIG.chunks, 0, times, maker)
        return next(LfmmiBatches(ShardGroups(corpus, 9999, 0), sampler, seed=0).batches(0))

    def train(self, out, config=CONFIG, **options):
        return train_lfmmi(
            [self.features], [AlignedPhones(self.states, self.topology)], self.senones,
            self.denominator, self.normaliser, config, out, **options,
        )  # fmt: skip


@pytest.fixture
def planted(make_stores):
    """Make utterances of about 20 phones of 2 to 5 low-rate frames, with noise of this size."""

    def make(utterances=24, seed=0, noise=0.3):
        g = torch.Generator().manual_seed(seed)
        stores = make_stores([1] * utterances)  # for its kinds of stores
        topology = Topology(PHONES, ("SIL",), states=1, silence_states=1)
        features, states = {}, {}
        for name in stores.features.features:
            phones = [1]
            while len(phones) < 20:
                phones.append(FOLLOWERS[phones[-1]][int(torch.randint(2, (), generator=g))])
            spans = torch.randint(6, 16, (20,), generator=g)
            aligned = torch.tensor(phones).repeat_interleave(spans) - 1
            one_hot = torch.nn.functional.one_hot(aligned, 4).float()
            features[name] = one_hot + noise * torch.randn(one_hot.shape, generator=g)
            states[name] = aligned
        sentences = [PhoneTimes.of(x, topology).phones.tolist() for x in states.values()]
        senones = Senones.monophone(topology.at_low_rate())
        ngram = phone_ngram(sentences, CONFIG.ngram)
        return Planted(
            type(stores.features)(features),
            type(stores.alignments)(states),
            stores.normaliser,
            topology,
            senones,
            make_denominator(ngram, senones),
        )

    return make


@pytest.fixture
def config():
    return CONFIG
