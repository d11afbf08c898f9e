"""Tests that compare a GPU with the CPU: `make test-gpu`. Skipped without a GPU.

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
    gpu_folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(gpu_folder):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: make test-gpu"))


@pytest.fixture
def device():
    return torch.device(DEVICE)


@pytest.fixture
def gpu(device):
    """The device, for tests that need a GPU."""
    if device.type == "cpu":
        pytest.skip("needs a GPU")
    return device


@pytest.fixture(autouse=True)
def _all_bits(device):
    """Switch off TF32, which rounds the factors of float32 products to 10 bits."""
    torch.manual_seed(0)
    with full_float32(device):
        yield


@pytest.fixture(scope="session")
def sentences(tmp_path_factory):
    return make_sentences(tmp_path_factory.mktemp("sentences"))


def make_sentences(folder):
    """A synthetic language and [(lattice, sentence)] of four sentences of 2 s."""
    from benchmarks.synthetic import SyntheticSentences
    from toolkit.decode.config import LatticeConfig
    from toolkit.decode.denominators import search
    from toolkit.fsa.fst import load_fst
    from toolkit.fsa.lattice_store import GraphCodec, GraphInfo, LatticeStore, write_lattices

    language = SyntheticSentences.make(words=40, leaves=2)
    path = language.graph(folder, sentences=200)
    graph, config = load_fst(path), LatticeConfig(acoustic_scale=0.4)
    spoken = {str(seed): language.sentence(seed, 2.0) for seed in range(4)}
    lattices = {
        name: search(0.4 * sentence.scores, graph, config)[0] for name, sentence in spoken.items()
    }
    codec = GraphCodec(path)
    write_lattices(codec.path(folder, 0), lattices, codec, GraphInfo())
    store = LatticeStore(folder, codec)
    return language, [(store.load(name), sentence) for name, sentence in spoken.items()]
