import pytest

from tests.ssl.planted import plant
from toolkit.features.normalise import Normaliser, estimate_normaliser


@pytest.fixture(scope="session")
def make_planted(tmp_path_factory):
    """Plant utterances in a folder of their own: make_planted(count, ...)."""
    return lambda count, **options: plant(tmp_path_factory.mktemp("planted"), count, **options)


@pytest.fixture(scope="session")
def normaliser(make_planted) -> Normaliser:
    return estimate_normaliser(make_planted(12, seed=99).store)
