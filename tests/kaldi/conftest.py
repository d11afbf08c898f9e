"""Fixtures of other test folders that the tests of Kaldi formats use."""

from tests.decode.conftest import recogniser
from tests.features.conftest import make_cut, small_store
from tests.fsa.conftest import random_graph, toy

__all__ = ["make_cut", "random_graph", "recogniser", "small_store", "toy"]
