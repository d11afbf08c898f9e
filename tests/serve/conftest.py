"""Where programs are told to use a proxy, this machine is reached without it."""

import pytest


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
