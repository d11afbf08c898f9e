"""A recogniser of two words with made-up scores."""

from pathlib import Path

import pytest
import torch


class Store:
    """Utterances and their transcripts as a feature store of two shards."""

    def __init__(self, texts):
        self.texts = texts
        ids = list(texts)
        self.path = Path("dev")
        self.shards = [ids[:2], ids[2:]]
        self.ids = ids
        self.failed_cuts = []

    def cut(self, utterance):
        from tests.dummies import dummy_recording
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

    def log_likelihoods(self, utterance):
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
        return scores

    def scores_of(self, utterance, pdfs):
        return self.log_likelihoods(utterance)[:, pdfs]


class Recogniser:
    """YES and NO, two states per phone, one pdf per state; a bigram's graph."""

    def __init__(self, folder):
        from toolkit.fsa.decoding_graph import make_decoding_graph
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
    return Recogniser(tmp_path)


def make_bundle(recogniser, out, kind="lstm", config=None, tuned=None, **search):
    """A bundle of the two words: an untrained network with confident outputs.

    `config`, `tuned` and `search` are those of a `TunedSearch`.
    """
    from toolkit.decode.bundle import NetworkFiles, TunedSearch, write_network_bundle
    from toolkit.decode.config import DecodeConfig
    from toolkit.features.config import FrontendConfig
    from toolkit.features.normalise import Cmvn, GlobalStats
    from toolkit.fsa.config import Beam
    from toolkit.models.config import BlstmConfig, LstmConfig, TdnnfConfig
    from toolkit.models.scorer import save_priors
    from toolkit.models.store import make_model, save_model

    torch.manual_seed(3)
    frontend = FrontendConfig(num_mel_bins=8)
    sizes = {"input_dim": 24, "output_dim": recogniser.senones.num_pdfs, "hidden": 12, "layers": 2}
    if kind == "tdnnf":
        del sizes["layers"]
        network = TdnnfConfig(**sizes, bottleneck=4, strides=(0, 3), final=4)
    else:
        network = LstmConfig(**sizes, lookahead=2) if kind == "lstm" else BlstmConfig(**sizes)
    model = make_model(network)
    with torch.no_grad():
        if kind == "tdnnf":  # as after a training: statistics, and a last layer that isn't zero
            torch.nn.init.xavier_uniform_(model.output.weight)
            for part in model.modules():
                if isinstance(part, torch.nn.BatchNorm1d):
                    part.momentum = 1.0
            model.train()(torch.randn(10, 50, 24))
            model.eval()
        model.output.weight *= 4 if kind == "tdnnf" else 40
        for name, weights in model.named_parameters():
            if "weight_ih" in name:
                weights *= 4 if "l0" in name else 2
    folder = recogniser.folder / kind
    save_model(folder, model)
    save_priors(folder, torch.ones(recogniser.senones.num_pdfs))
    spread = GlobalStats.of(torch.randn(500, 8) * 2)
    Cmvn(torch.full((8,), 17.0, dtype=torch.float64), spread).save(folder / "normaliser.json")
    (folder / "tuned.json").write_text('{"acoustic_scale": 0.45, "word_penalty": 0.1}')
    (folder / "calibration.json").write_text('{"offset": -1.0, "slope": 1.0}')
    recogniser.senones.save(folder / "senones")
    config = config or DecodeConfig(0.5, beam=Beam(12.0, 6.0))
    write_network_bundle(
        NetworkFiles(folder, folder / "normaliser.json", folder / "senones"),
        TunedSearch(recogniser.graph, config, tuned or folder / "tuned.json", **search),
        recogniser.folder / "lang",
        frontend,
        out,
        calibration=folder / "calibration.json",
    )
    return out


@pytest.fixture
def bundle(recogniser, tmp_path):
    """Make bundles with every optional part; `bundle(kind=...)` makes other kinds."""
    calls = []

    def make(**options):
        calls.append(options)
        return make_bundle(recogniser, tmp_path / f"bundle{len(calls)}", **options)

    return make


def make_babble(seed, seconds=1.0):
    """Noise whose colour and loudness change every tenth of a second: samples [S] of a seed."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for _ in range(round(10 * seconds)):
        noise = torch.randn(1600, generator=generator)
        width, level = torch.randint(1, 30, (2,), generator=generator).tolist()
        smooth = torch.nn.functional.avg_pool1d(noise[None], width, 1, width // 2)[0, :1600]
        parts.append(torch.nn.functional.pad(smooth, (0, 1600 - len(smooth))) * level / 60)
    return torch.cat(parts)


@pytest.fixture
def babble():
    return make_babble
