"""Scores of a network on a GPU, and the words, lattices, alignments and targets from them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.decode.conftest import Recogniser
from tests.ssl.synthetic import write_synthetic
from toolkit.align.config import AlignConfig, CorpusAlignConfig
from toolkit.align.corpus import align_corpus
from toolkit.align.store import AlignmentStore
from toolkit.corpus.manifest import text_of
from toolkit.decode.config import DecodeConfig, LatticeConfig
from toolkit.decode.ctc.system import Posteriors, write_posteriors
from toolkit.decode.denominators import make_lattices
from toolkit.decode.search import DecoderFiles, decode_store
from toolkit.features.normalise import estimate_normaliser
from toolkit.fsa.config import Beam
from toolkit.fsa.lattice import Weights
from toolkit.fsa.lattice_store import GraphCodec, LatticeStore
from toolkit.models.config import BlstmConfig, CtcConfig, LstmConfig
from toolkit.models.ctc import CtcModel
from toolkit.models.scorer import NeuralScorer, save_priors
from toolkit.models.store import load_model, make_model, save_model
from toolkit.pipeline.steps.targets import TargetsConfig, compute_targets

UTTERANCES = 50  # more than a batch


@pytest.fixture(params=[LstmConfig, BlstmConfig])
def system(request, tmp_path):
    """A recogniser, and a random network with confident outputs over synthetic features."""
    recogniser = Recogniser(tmp_path)
    pdfs = recogniser.senones.num_pdfs
    model = make_model(request.param(input_dim=15, output_dim=pdfs, hidden=24, layers=2))
    with torch.no_grad():
        model.output.weight *= 10
    save_model(tmp_path / "model", model)
    save_priors(tmp_path / "model", torch.ones(pdfs))
    store = write_synthetic(tmp_path / "fbank", UTTERANCES).store
    estimate_normaliser(store).save(tmp_path / "normaliser.json")
    paths = tmp_path / "model", tmp_path / "normaliser.json", tmp_path / "fbank"
    return recogniser, NeuralScorer(*paths)


def on(scorer, device):
    return replace(scorer, device=str(device))


def test_scores_equal_the_cpu(system, device):
    _, scorer = system
    names = scorer.store.ids[:5]
    batch_scores = on(scorer, device).batch_log_likelihoods(names)
    for name, scores in zip(names, batch_scores, strict=True):
        expected = scorer.log_likelihoods(name)
        assert scores.device.type == "cpu"
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-3)
        assert on(scorer, device).scores_of(name, torch.tensor([2, 0])).shape[1] == 2


def test_words_equal_the_cpu_for_any_number_of_threads(system, device, tmp_path):
    recogniser, scorer = system
    config = DecodeConfig(acoustic_scale=0.5, beam=Beam(30.0, 8.0))
    decoder, weights = DecoderFiles(recogniser.graph, recogniser.words, config), [[Weights(0.5)]]
    hypotheses = {}
    for name, where, jobs in (("cpu", "cpu", 1), ("one", device, 1), ("four", device, 4)):
        (tmp_path / name).mkdir()
        (decoded,) = decode_store(on(scorer, where), decoder, weights, tmp_path / name, jobs)
        hypotheses[name] = [(result.utterance, result.hypotheses) for result in decoded]
        assert all(result.decode_seconds > 0 for result in decoded)
    assert hypotheses["one"] == hypotheses["four"] == hypotheses["cpu"]
    assert [name for name, _ in hypotheses["cpu"]] == scorer.store.ids
    assert len({words for _, words in hypotheses["cpu"]}) > 3


def test_lattices_nearly_equal_the_cpu(system, device, tmp_path):
    recogniser, scorer = system
    results = {}
    for name, where, jobs in (("on_cpu", "cpu", 1), ("on_device", device, 3)):
        out = tmp_path / name
        out.mkdir()
        headline = make_lattices(on(scorer, where), recogniser.graph, LatticeConfig(), out, jobs)
        store = LatticeStore(out, GraphCodec(recogniser.graph))
        results[name] = headline, store.ids, sum(store.load(u).num_arcs for u in store.ids)
        assert headline["RTF"] > 0
    (cpu_headline, cpu_ids, cpu_arcs), (device_headline, device_ids, device_arcs) = results.values()
    assert (device_headline["utterances"], device_ids) == (cpu_headline["utterances"], cpu_ids)
    assert cpu_headline["utterances"] > UTTERANCES / 2
    assert device_arcs == pytest.approx(cpu_arcs, rel=0.01)


def test_alignments_equal_the_cpu(system, device, tmp_path, monkeypatch):
    recogniser, scorer = system
    monkeypatch.setattr("toolkit.align.corpus.text_of", lambda cut: text_of(cut) or "YES NO")
    config = CorpusAlignConfig(AlignConfig(beam=200.0), max_failed=0.5)
    stores = []
    for name, where, jobs in (("on_cpu", "cpu", 1), ("on_device", device, 3)):
        (tmp_path / name).mkdir()
        common = recogniser.senones, recogniser.folder / "lang", config, tmp_path / name, jobs
        align_corpus(on(scorer, where), *common)
        stores.append(AlignmentStore(tmp_path / name))
    assert stores[0].ids == stores[1].ids
    pairs = [[store.load(name) for store in stores] for name in stores[0].ids]
    same = sum(int((a == b).sum()) for a, b in pairs)
    assert same > 0.99 * sum(len(a) for a, _ in pairs)


def test_teacher_targets_equal_the_cpu(system, device):
    _, scorer = system
    inputs = [(str(n), torch.randn(n, 15)) for n in (7, 0, 30, 12)]
    config, model = TargetsConfig(teacher=None, k=4, batch_frames=40), load_model(scorer.model)
    expected = dict(compute_targets(model, inputs, config))
    targets = dict(compute_targets(model.to(device), inputs, config))
    assert list(targets) == [name for name, _ in inputs]
    for name, best in expected.items():
        assert len(targets[name]) == int(name)
        np.testing.assert_array_equal(targets[name].ids, best.ids)
        for kind in ("logits", "log_tail"):
            values = getattr(targets[name], kind), getattr(best, kind)
            np.testing.assert_allclose(*values, rtol=2e-3, atol=1e-3)  # float16


@pytest.mark.parametrize("bidirectional", [False, True])
def test_ctc_posteriors_equal_the_cpu(bidirectional, device, tmp_path):
    sizes = {"input_dim": 5, "output_dim": 7, "channels": (8,), "lstm_layers": 2, "hidden": 16}
    save_model(tmp_path / "model", CtcModel(CtcConfig(**sizes, bidirectional=bidirectional)))
    store = write_synthetic(tmp_path / "fbank", 20).store
    estimate_normaliser(store).save(tmp_path / "normaliser.json")
    common = tmp_path / "model", tmp_path / "normaliser.json", tmp_path / "fbank"
    posteriors = []
    for name, where in (("on_cpu", "cpu"), ("on_device", device)):
        write_posteriors(*common, tmp_path / name, where)
        posteriors.append(Posteriors(tmp_path / name))
    assert list(posteriors[0]) == list(posteriors[1])
    for name in posteriors[0]:
        torch.testing.assert_close(posteriors[1][name], posteriors[0][name], rtol=0, atol=1e-3)
