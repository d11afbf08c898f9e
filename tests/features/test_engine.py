import sys

import pytest

from toolkit.engines import FRONTEND_VARIABLE, EngineError, engines, frontend_engine
from toolkit.features import engine as module
from toolkit.features.engine import engine_version, usable_engine
from toolkit.features.frontend import Frontend, FrontendConfig


@pytest.fixture(autouse=True)
def rule(monkeypatch):
    """No variable is set, and nothing is remembered of the imports tried before or in the test."""
    monkeypatch.delenv(FRONTEND_VARIABLE, raising=False)
    module.kaldifeat_import_error.cache_clear()
    yield
    module.kaldifeat_import_error.cache_clear()


def test_kaldifeat_computes_where_it_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldifeat", sys)
    assert usable_engine() == frontend_engine() == engines()["front end"] == "kaldifeat"


def test_torch_computes_elsewhere(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldifeat", None)
    assert usable_engine() == frontend_engine() == engines()["front end"] == "torch"
    assert Frontend(FrontendConfig()).engine == "torch"


def test_the_variable_forces_an_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldifeat", sys)
    monkeypatch.setenv(FRONTEND_VARIABLE, "torch")
    assert usable_engine() == "torch"
    monkeypatch.setenv(FRONTEND_VARIABLE, "")
    assert usable_engine() == "kaldifeat"


def test_an_engine_that_is_unknown_or_missing_is_told(monkeypatch):
    monkeypatch.setenv(FRONTEND_VARIABLE, "kaldi")
    with pytest.raises(EngineError, match=r"TOOLKIT_FRONTEND is 'kaldi', not one of kaldifeat"):
        usable_engine()
    monkeypatch.setitem(sys.modules, "kaldifeat", None)
    monkeypatch.setenv(FRONTEND_VARIABLE, "kaldifeat")
    with pytest.raises(EngineError, match="is 'kaldifeat', which is not installed"):
        Frontend(FrontendConfig())


def test_one_that_is_installed_and_broken_is_told(monkeypatch):
    """Never another engine in its place without a word: the features would differ."""
    monkeypatch.setattr(module, "frontend_engine", lambda: "kaldifeat")
    monkeypatch.setitem(sys.modules, "kaldifeat", None)
    with pytest.raises(EngineError, match="kaldifeat cannot be imported"):
        Frontend(FrontendConfig())


def test_versions_name_the_engine():
    torch = pytest.importorskip("torch")
    assert engine_version("torch").split("+")[0] == f"torch {torch.__version__.split('+')[0]}"
