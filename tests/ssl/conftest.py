import pytest

from tests.ssl.recogniser import System
from tests.ssl.synthetic import write_synthetic
from toolkit.features.normalise import Cmvn, estimate_normaliser


@pytest.fixture(scope="session")
def make_synthetic(tmp_path_factory):
    """Write synthetic utterances into a new folder: make_synthetic(count, ...)."""
    return lambda count, **options: write_synthetic(
        tmp_path_factory.mktemp("synthetic"), count, **options
    )


@pytest.fixture(scope="session")
def normaliser(make_synthetic) -> Cmvn:
    return estimate_normaliser(make_synthetic(12, seed=99).store)


@pytest.fixture(scope="session")
def system(speech, tmp_path_factory) -> System:
    return System(speech, tmp_path_factory.mktemp("system"))


@pytest.fixture(scope="session")
def unlabelled(draw):
    """More speech of the same kind; one utterance is too short for a word."""
    return draw(utterances=6, seed=5, truncated=("anna-03",))
