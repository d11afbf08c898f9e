"""A recogniser of two words with made-up scores."""

import pytest
import torch


class Store:
    """Utterances and their transcripts as a feature store of two shards."""

    def __init__(self, texts):
        self.texts = texts
        ids = list(texts)
        self.shards = [ids[:2], ids[2:]]
        self.ids = ids

    def cut(self, utterance):
        from lhotse.testing.dummies import dummy_recording

        from toolkit.corpus.manifest import make_cut

        return make_cut(utterance, dummy_recording(0), self.texts[utterance], "speaker")


class Scorer:
    """Nearly certain of each state of the transcript; "mumble" has no frame.

    An utterance whose id begins with "doubt" sounds a little like the other word.
    """

    frame_shift = 0.01

    def __init__(self, texts, recogniser):
        self.store = Store(texts)
        self.recogniser = recogniser

    def log_likelihoods(self, utterance, pdfs=None):
        lang, topology = self.recogniser.lang, self.recogniser.topology
        phones = [1]
        for word in self.store.texts[utterance].split():
            phones += [*lang.pronunciation_ids(word)[0], 1]
        states = [
            topology.state_id(p, s)
            for p in phones
            for s in range(topology.num_states(p))
            for _ in "ab"
        ]
        if utterance == "mumble":
            states = []
        scores = torch.full((len(states), self.recogniser.senones.num_pdfs), -10.0)
        scores[range(len(states)), states] = 0.0
        if utterance.startswith("doubt"):
            scores /= 20
        return scores if pdfs is None else scores[:, pdfs]


class Recogniser:
    """YES and NO, two states per phone, one pdf per state; a bigram's graph."""

    def __init__(self, folder):
        from toolkit.decode.graph import make_decoding_graph
        from toolkit.hmm.senones import Senones
        from toolkit.hmm.topology import Topology
        from toolkit.lang.arpa import write_arpa
        from toolkit.lang.lang import Lang
        from toolkit.lang.lexicon import Lexicon

        self.folder = folder
        self.lang = Lang.of(Lexicon({"YES": [("Y", "EH", "S")], "NO": [("N", "OW")]}))
        self.topology = Topology(tuple(self.lang.real_phones), states=2, silence_states=1)
        self.senones = Senones.monophone(self.topology)
        self.lang.save(folder / "lang")
        self.words = folder / "lang/words.txt"
        self.text = [["YES"], ["NO"], ["YES", "NO"], ["NO", "NO"]]
        write_arpa(self.model(self.text, 2), folder / "lm.arpa")
        self.graph = folder / "graph.safetensors"
        sizes = make_decoding_graph(folder / "lang", folder / "lm.arpa", self.senones, self.graph)
        assert sizes["arcs"] > 20

    def model(self, text, order):
        from toolkit.lang.ngram import estimate

        return estimate(text, self.lang.vocabulary, order, (1,))[0]

    def scorer(self, texts):
        return Scorer(texts, self)


@pytest.fixture
def recogniser(tmp_path):
    for engine in ("k2", "kaldilm"):
        pytest.importorskip(engine)
    return Recogniser(tmp_path)
