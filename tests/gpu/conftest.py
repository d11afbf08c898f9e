"""Tests that compare a GPU with the CPU: `make test-gpu`. Skipped where there is none.

With `TOOLKIT_TEST_DEVICE=cpu:0` the same code runs on the CPU as if that were a device.
"""

import os
from pathlib import Path

import pytest
import torch

from toolkit.processes.devices import full_float32

DEVICE = os.environ.get("TOOLKIT_TEST_DEVICE", "cuda")


def pytest_collection_modifyitems(items):
    if torch.device(DEVICE).type == "cpu" or torch.cuda.is_available():
        return
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: make test-gpu"))


@pytest.fixture
def device():
    return torch.device(DEVICE)


@pytest.fixture
def gpu(device):
    """The device, for tests of what only a GPU has."""
    if device.type == "cpu":
        pytest.skip("needs a GPU")
    return device


@pytest.fixture(autouse=True)
def _all_bits(device):
    """cuDNN would otherwise round the factors of float32 products to 10 bits."""
    torch.manual_seed(0)
    with full_float32(device):
        yield


@pytest.fixture(scope="session")
def sentences(tmp_path_factory):
    return make_sentences(tmp_path_factory.mktemp("sentences"))


def make_sentences(folder):
    """A synthetic language, and sentences of 2 s with their lattices: [(lattice, sentence)]."""
    from benchmarks.synthetic import SyntheticSentences
    from toolkit.decode.config import LatticeConfig
    from toolkit.decode.denominators import search
    from toolkit.fsa.fst import load_fst
    from toolkit.fsa.lattice_store import GraphCodec, GraphInfo, LatticeStore, write_lattices

    language = SyntheticSentences.make(words=40, leaves=2)
    path = language.graph(folder, sentences=200)
    graph, config = load_fst(path), LatticeConfig(acoustic_scale=0.4)
    spoken = {str(seed): language.sentence(seed, 2.0) for seed in range(4)}
    made = {name: search(0.4 * one.scores, graph, config)[0] for name, one in spoken.items()}
    codec = GraphCodec(path)
    write_lattices(codec.path(folder, 0), made, codec, GraphInfo())
    store = LatticeStore(folder, codec)
    return language, [(store.load(name), one) for name, one in spoken.items()]
