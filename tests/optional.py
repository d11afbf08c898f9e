"""Optional packages that tests compare with."""

import importlib
from types import ModuleType

import pytest


def load_torchaudio(name: str) -> ModuleType:
    """Return a module of torchaudio; skip the test if it is missing or does not fit this torch.

    torchaudio's library is linked against one build of torch; beside another it fails with an
    OSError, which `pytest.importorskip` lets pass.
    """
    try:
        return importlib.import_module(f"torchaudio.{name}")
    except (ImportError, OSError) as error:
        pytest.skip(f"torchaudio.{name} cannot be loaded: {error}")
