"""The bundle ends with the words that the recipe's rescoring has found."""

from dataclasses import replace

import pytest
import torch

from tests.decode.conftest import make_bundle
from toolkit.decode.bundle import NeuralFiles
from toolkit.decode.recogniser import NetworkRecogniser
from toolkit.decode.rescore import NeuralRescoringConfig, RescoringWeights, rescore_system
from toolkit.decode.search import DecodeConfig, Decoder
from toolkit.fsa.config import Beam
from toolkit.lang.arpa import write_binary
from toolkit.lang.shortlist import Shortlist
from toolkit.models.neural_lm import NeuralLm
from toolkit.models.word_lstm import WordLstm, WordLstmConfig

COUNT = 30
UTTERANCES = 8


class Heard:
    """The scores that a bundle's network gives to made-up features."""

    frame_shift = 0.03

    def __init__(self, recogniser, store, model):
        self.store, self.model = store, model

    def log_likelihoods(self, utterance):
        return self.model.log_likelihoods(features(utterance))


def features(utterance):
    generator = torch.Generator().manual_seed(int(utterance.removeprefix("u")))
    return torch.randn(90, 8, generator=generator) * 3 + 17


@pytest.fixture
def neural_lm(tmp_path):
    """An LSTM with opinions of its own."""
    torch.manual_seed(1)
    shortlist = Shortlist.of({"YES": 2, "NO": 1}, ["YES", "NO"], None)
    model = WordLstm(WordLstmConfig(vocabulary=5, hidden=4))
    with torch.no_grad():
        model.output.weight *= 20
        model.output.bias.normal_()
    lm = NeuralLm(model.eval(), shortlist)
    lm.save(tmp_path / "lstm_lm")
    return lm


@pytest.mark.parametrize("passes", [1, 2])
def test_the_bundle_writes_what_the_recipe_wrote(recogniser, neural_lm, tmp_path, passes):
    larger = None
    if passes == 2:
        larger = tmp_path / "larger.safetensors"
        write_binary(recogniser.model(recogniser.text, 3), larger)
    config = DecodeConfig(0.5, scales=(0.4, 0.6), penalties=(0.5,), beam=Beam(12.0, 6.0))
    tuned, out = tmp_path / "tuned.json", tmp_path / "rescored"
    tuned.write_text('{"acoustic_scale": 0.4, "word_penalty": 0.5}')
    plain = NetworkRecogniser(make_bundle(recogniser, tmp_path / "plain"))
    texts = {f"u{n}": "YES NO" for n in range(UTTERANCES)}
    scorer = Heard(recogniser, recogniser.scorer(texts).store, plain.model)
    decoder = Decoder(recogniser.graph, recogniser.words, config, larger)
    rescore_system(
        "made-up",
        "lm",
        {"dev": scorer},
        ["dev"],
        decoder,
        tuned,
        neural_lm,
        NeuralRescoringConfig(COUNT, weights=(0.75,)),
        out,
        jobs=1,
        command="./run.py",
    )
    expected = dict(line.split(" ", 1) for line in (out / "dev/text").read_text().splitlines())
    assert len(set(expected.values())) >= 4

    files = NeuralFiles(tmp_path / "lstm_lm", out / "weights.json", tuned, COUNT)
    bundle = make_bundle(
        recogniser,
        tmp_path / "bundle",
        config=config,
        tuned=tuned,
        rescorer=larger,
        rescorer_tuned=larger and tuned,
        neural=files,
    )
    scale = RescoringWeights.load(out / "weights.json").acoustic_scale
    assert scale == NetworkRecogniser(bundle).search.scale
    found = {name: NetworkRecogniser(bundle).recognise_features(features(name)) for name in texts}
    assert {name: one.text for name, one in found.items()} == expected
    detailed = NetworkRecogniser(bundle).recognise_features(features("u0"), details=True)
    assert detailed.text == expected["u0"]
    assert [word.token for word in detailed.words] == expected["u0"].split()
    assert all(0 < word.confidence < 1 for word in detailed.words)
    starts = [word.start_s for word in detailed.words]
    assert starts == sorted(starts)
    assert starts[-1] < detailed.words[-1].end_s <= 0.91

    fast = {name: NetworkRecogniser(bundle, fast=True) for name in texts}
    first = {name: one.recognise_features(features(name)).text for name, one in fast.items()}
    settings = replace(config, acoustic_scale=0.4)
    alone = NetworkRecogniser(
        make_bundle(recogniser, tmp_path / "alone", config=settings, tuned=tuned)
    )
    assert first == {name: alone.recognise_features(features(name)).text for name in texts}
    assert first != expected
