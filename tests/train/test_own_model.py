"""docs/own-model.md: both kinds of training accept the networks of its code."""

import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from toolkit.decode.ctc.recogniser import WINDOW
from toolkit.features.low_frame_rate import centre, stack
from toolkit.models import store
from toolkit.models.ctc import ctc_log_probs
from toolkit.models.export import wrap_for_export
from toolkit.models.scorer import log_posteriors
from toolkit.models.store import ModelError, load_model, make_model, save_model
from toolkit.train.config import ChunkConfig, CrossEntropyConfig
from toolkit.train.cross_entropy import train_cross_entropy

ROOT = Path(__file__).resolve().parents[2]
FILE, TABLE, HYBRID, CTC, *_ = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs/own-model.md").read_text(encoding="utf-8"), re.M | re.S
)


@pytest.fixture
def conv(monkeypatch):
    """The page's module, registered in the table of networks during a test."""
    module = types.ModuleType("toolkit.models.conv")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(FILE, vars(module))
    monkeypatch.setattr(store, "KINDS", dict(store.KINDS))
    exec(TABLE, {"KINDS": store.KINDS})
    return module


def test_the_file_has_the_documented_length():
    lines = [line for line in FILE.splitlines() if line.strip()]
    assert len(lines) < 70


def test_it_learns_by_cross_entropy_and_is_scored_as_the_decoder_does(conv, make_stores, tmp_path):
    stores = make_stores([120 + 3 * i for i in range(60)], dimension=6, delay=0)
    config = CrossEntropyConfig(
        epochs=8,
        initial_rate=1e-2,
        final_rate=1e-3,
        valid_utterances=4,
        model=conv.ConvConfig(hidden=24, layers=2, kernel=3),
        chunks=ChunkConfig(frames=16, chunks_per_batch=8),
    )
    headline = train_cross_entropy(
        stores.features, stores.alignments, stores.normaliser, config, 5, tmp_path
    )
    assert headline["frame_accuracy"] > 0.95
    model = load_model(tmp_path)
    assert type(model) is conv.ConvModel
    assert (model.config.input_dim, model.config.output_dim) == (18, 5)
    for offset in range(3):
        name, raw = next(iter(stores.features.features.items()))
        posteriors = log_posteriors(model, [stack(raw, offset)])[0]
        targets = stores.alignments.load(name)[centre(len(raw), offset)]
        assert float((posteriors.argmax(1) == targets).float().mean()) > 0.95


def test_it_learns_to_spell_by_ctc(conv, ctc_toy, tmp_path):
    model = conv.ConvCtcConfig(hidden=24, layers=2, kernel=3, subsampling=2)
    config = replace(ctc_toy.config, epochs=15, model=model)
    headline = ctc_toy.train(tmp_path, config)
    assert headline["cer"] < 15
    loaded = load_model(tmp_path)
    assert type(loaded) is conv.ConvCtcModel
    assert ctc_toy.evaluation(loaded)["cer"] == pytest.approx(headline["cer"])


@pytest.mark.parametrize("name", ["ConvConfig", "ConvCtcConfig"])
def test_padding_changes_nothing(conv, name):
    torch.manual_seed(0)
    config = getattr(conv, name)(input_dim=6, output_dim=5, hidden=16, layers=3)
    model = make_model(config)
    score = log_posteriors if name == "ConvConfig" else ctc_log_probs
    rows = [torch.randn(length, 6) for length in (40, 7, 23, 2)]
    batch_scores = score(model, rows)
    for row, row_scores in zip(rows, batch_scores, strict=True):
        torch.testing.assert_close(row_scores, score(model, [row])[0])


def test_the_profiles_of_the_page_fit_the_recipes(conv):
    for code, name in ((HYBRID, "conv"), (CTC, "ctc_conv")):
        names: dict = {}
        exec(code, names)
        config = names[name]()
        part = config.ce if name == "conv" else config.train
        assert part.model.hidden == 128
    assert config.scope == "causal"
    both_ways = type("BothWays", (conv.ConvCtcConfig,), {"bidirectional": True})(hidden=128)
    assert replace(config, train=replace(config.train, model=both_ways)).scope == "whole"


def test_a_ctc_bundle_scores_with_it_and_windows_long_recordings(conv, tmp_path):
    from toolkit.decode.bundle import MODEL, NORMALISER
    from toolkit.decode.ctc.recogniser import CtcScorer
    from toolkit.features.normalise import Cmvn, GlobalStats
    from toolkit.lang.units import Characters

    torch.manual_seed(0)
    config = conv.ConvCtcConfig(input_dim=4, output_dim=30, hidden=8, layers=1)
    save_model(tmp_path / MODEL, make_model(config))
    Characters().save(tmp_path / "units")
    unit = GlobalStats(100, torch.zeros(4).double(), torch.full((4,), 100.0).double())
    Cmvn(torch.zeros(4).double(), unit, 200).save(tmp_path / NORMALISER)
    scorer = CtcScorer(tmp_path)
    assert not scorer.can_stream
    features = torch.randn(2 * WINDOW + 1000, 4)
    whole = ctc_log_probs(scorer.model, [scorer.normaliser.apply(features, None)])[0]
    torch.testing.assert_close(scorer.log_probs(features), whole)


def test_without_the_table_the_error_names_it(conv, monkeypatch, tmp_path):
    config = conv.ConvConfig(input_dim=3, output_dim=2)
    model = make_model(config)
    monkeypatch.setattr(store, "KINDS", {})
    for call in (lambda: make_model(config), lambda: save_model(tmp_path, model)):
        with pytest.raises(ModelError, match=r"is not in KINDS of toolkit/models/store\.py"):
            call()


def test_export_refuses_unknown_networks(conv):
    with pytest.raises(ModelError, match="ConvModel cannot be exported"):
        wrap_for_export(make_model(conv.ConvConfig(input_dim=3, output_dim=2)))


def test_chunks_without_the_context_that_a_network_asks_for_are_refused(conv):
    needy = type("Needy", (conv.ConvConfig,), {"context": 50})
    with pytest.raises(ValueError, match="the network's outputs depend on 50"):
        CrossEntropyConfig(model=needy())
