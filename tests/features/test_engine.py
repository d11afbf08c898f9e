import sys

import pytest

from toolkit.features import engine as module
from toolkit.features.engine import EngineError, engine_version, frontend_engine
from toolkit.features.frontend import Frontend, FrontendConfig


@pytest.fixture(autouse=True)
def rule(monkeypatch):
    """No variable is set, and nothing is remembered of the imports tried before or in the test."""
    monkeypatch.delenv(module.VARIABLE, raising=False)
    module._kaldifeat_problem.cache_clear()
    yield
    module._kaldifeat_problem.cache_clear()


def test_kaldifeat_computes_where_it_can_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldifeat", sys)
    assert frontend_engine() == "kaldifeat"


def test_torch_computes_elsewhere(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldifeat", None)
    assert frontend_engine() == "torch"
    assert Frontend(FrontendConfig()).engine == "torch"


def test_the_variable_forces_an_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldifeat", sys)
    monkeypatch.setenv(module.VARIABLE, "torch")
    assert frontend_engine() == "torch"
    monkeypatch.setenv(module.VARIABLE, "")
    assert frontend_engine() == "kaldifeat"


def test_an_engine_that_is_unknown_or_missing_is_told(monkeypatch):
    monkeypatch.setenv(module.VARIABLE, "kaldi")
    with pytest.raises(EngineError, match=r"TOOLKIT_FRONTEND is 'kaldi', not one of kaldifeat"):
        frontend_engine()
    monkeypatch.setitem(sys.modules, "kaldifeat", None)
    monkeypatch.setenv(module.VARIABLE, "kaldifeat")
    with pytest.raises(EngineError, match="cannot be imported"):
        Frontend(FrontendConfig())


def test_versions_name_the_engine():
    torch = pytest.importorskip("torch")
    assert engine_version("torch").split("+")[0] == f"torch {torch.__version__.split('+')[0]}"
