"""docs/own-model.md: the Conformer of the page trains with lattice-free MMI."""

import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.lfmmi.conftest import CONFIG
from toolkit.models import store
from toolkit.models.scorer import log_posteriors
from toolkit.models.store import load_model, make_model

PAGE = Path(__file__).resolve().parents[3] / "docs/own-model.md"
FILE, TABLE, PROFILE = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S
)[-3:]


@pytest.fixture
def conformer(monkeypatch):
    """The page's module, registered in the table of networks during a test."""
    module = types.ModuleType("toolkit.models.conformer")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(FILE, vars(module))
    monkeypatch.setattr(store, "KINDS", dict(store.KINDS))
    exec(TABLE, {"KINDS": store.KINDS})
    return module


def test_it_learns(conformer, planted, tmp_path):
    model = conformer.ConformerConfig(hidden=16, layers=1, heads=2, kernel=3)
    config = replace(CONFIG, model=model, epochs=4, initial_rate=5e-3, final_rate=1e-3)
    headline = planted().train(tmp_path, config)
    untrained = planted().train(
        tmp_path / "untrained", replace(config, initial_rate=1e-9, final_rate=1e-9)
    )
    assert headline["objective"] > untrained["objective"]
    assert type(load_model(tmp_path)) is conformer.ConformerModel


def test_padding_changes_nothing(conformer):
    torch.manual_seed(0)
    config = conformer.ConformerConfig(input_dim=6, output_dim=5, hidden=16, layers=2, kernel=5)
    model = make_model(config).eval()
    rows = [torch.randn(length, 6) for length in (40, 7, 23, 2)]
    for row, posteriors in zip(rows, log_posteriors(model, rows), strict=True):
        torch.testing.assert_close(
            posteriors, log_posteriors(model, [row])[0], rtol=1e-4, atol=1e-5
        )


def test_the_profile_of_the_page_fits_the_recipe(conformer):
    names: dict = {}
    exec(PROFILE, names)
    assert names["conformer"]().lfmmi.model.hidden == 144
