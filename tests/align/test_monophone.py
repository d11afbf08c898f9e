"""Monophone training on frames drawn from known Gaussians: three letters, each one phone."""

import json

import pytest
import torch

pytest.importorskip("k2")

from toolkit.align.graphs import TranscriptCompiler
from toolkit.align.monophone import (
    MonophoneConfig,
    UnalignableError,
    train_monophone,
)
from toolkit.hmm.gmm import Gmm
from toolkit.hmm.topology import Topology
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon

LANG = Lang.of(Lexicon({"A": [("AA",)], "B": [("BB",)], "AB": [("AA", "BB"), ("BB",)]}))
TOPOLOGY = Topology(tuple(LANG.real_phones), states=1, silence_states=1)
MEANS = {"SIL": (0.0, 0.0), "AA": (4.0, 0.0), "BB": (0.0, 4.0)}
CONFIG = MonophoneConfig(
    iterations=8, realign=(1, 2, 3, 5), gaussians=10, grow_until=6, max_utterances=100
)


class DrawnFrames:
    """Every phone of a transcript lasts 5 to 9 frames around its mean, silence at both ends."""

    def __init__(self, transcripts):
        self.arrays = {}
        for number, (utterance, words) in enumerate(sorted(transcripts.items())):
            generator = torch.Generator().manual_seed(number)
            phones = ["SIL", *(p for w in words for p in LANG.lexicon[w][0]), "SIL"]
            lengths = torch.randint(5, 10, (len(phones),), generator=generator).tolist()
            means = torch.tensor([MEANS[p] for p in phones]).repeat_interleave(
                torch.tensor(lengths), dim=0
            )
            self.arrays[utterance] = means + torch.randn(means.shape, generator=generator)

    def load(self, utterance):
        return self.arrays[utterance]


@pytest.fixture
def transcripts():
    generator = torch.Generator().manual_seed(9)
    words = ["A", "B", "AB"]
    return {
        f"u{n:02d}": [words[i] for i in torch.randint(0, 3, (4,), generator=generator).tolist()]
        for n in range(30)
    }


def train(transcripts, out, config=CONFIG, **options):
    compiler = TranscriptCompiler(LANG, TOPOLOGY)
    return train_monophone(DrawnFrames(transcripts), transcripts, compiler, config, out, **options)


def test_the_means_are_found_from_a_flat_start(transcripts, tmp_path):
    headline = train(transcripts, tmp_path)
    gmm = Gmm.load(tmp_path / "gmm.safetensors")
    for name, mean in MEANS.items():
        pdf = TOPOLOGY.pdf(LANG.phones[name], 0)
        mine = gmm.owner == pdf
        found = (gmm.weights[mine, None] * gmm.means[mine]).sum(0)
        torch.testing.assert_close(found, torch.tensor(mean), atol=0.4, rtol=0)
    history = json.loads((tmp_path / "history.json").read_text())
    likelihoods = [step["log_likelihood_per_frame"] for step in history]
    assert likelihoods[-1] > likelihoods[0] + 0.5
    assert headline["aligned_share"] == 1.0
    assert Topology.load(tmp_path / "topology.json") == TOPOLOGY
    assert not list(tmp_path.glob("*ali*"))


def test_an_interrupted_training_continues_to_the_same_bytes(transcripts, tmp_path):
    train(transcripts, tmp_path / "whole")

    def stop(done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(transcripts, tmp_path / "broken", progress=stop)
    seen = []
    train(transcripts, tmp_path / "broken", progress=lambda done, total: seen.append(done))
    assert seen == [5, 6, 7, 8]
    for name in ("gmm.safetensors", "history.json"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_utterances_that_cannot_be_aligned_are_counted_not_fatal(transcripts, tmp_path):
    transcripts["u99"] = ["A"] * 4
    frames = DrawnFrames(transcripts)
    frames.arrays["u99"] = torch.zeros(3, 2)  # three frames for four phones
    compiler = TranscriptCompiler(LANG, TOPOLOGY)
    headline = train_monophone(frames, transcripts, compiler, CONFIG, tmp_path)
    assert headline["aligned_share"] == round(30 / 31, 4)


def test_too_many_failures_are_an_error_that_names_them(transcripts, tmp_path):
    frames = DrawnFrames(transcripts)
    frames.arrays = {u: x[:2] for u, x in frames.arrays.items()}
    compiler = TranscriptCompiler(LANG, TOPOLOGY)
    with pytest.raises(UnalignableError, match=r"30 of 30 .* first u00"):
        train_monophone(frames, transcripts, compiler, CONFIG, tmp_path)


def test_the_shortest_utterances_are_chosen(transcripts, tmp_path):
    transcripts["u50"] = ["A"] * 30
    config = MonophoneConfig(
        iterations=2, realign=(1,), gaussians=4, grow_until=1, max_utterances=30
    )
    loaded = []
    frames = DrawnFrames(transcripts)
    frames.load = lambda u: loaded.append(u) or frames.arrays[u]
    train_monophone(frames, transcripts, TranscriptCompiler(LANG, TOPOLOGY), config, tmp_path)
    assert "u50" not in loaded
    assert len(set(loaded)) == 30
