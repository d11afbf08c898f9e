import pytest

from tests.ssl.synthetic import write_synthetic
from toolkit.features.normalise import Normaliser, estimate_normaliser


@pytest.fixture(scope="session")
def make_synthetic(tmp_path_factory):
    """Write synthetic utterances into a folder of their own: make_synthetic(count, ...)."""
    return lambda count, **options: write_synthetic(
        tmp_path_factory.mktemp("synthetic"), count, **options
    )


@pytest.fixture(scope="session")
def normaliser(make_synthetic) -> Normaliser:
    return estimate_normaliser(make_synthetic(12, seed=99).store)
