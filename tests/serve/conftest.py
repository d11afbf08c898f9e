"""Tests reach this machine without the proxy that the environment sets."""

import pytest


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
