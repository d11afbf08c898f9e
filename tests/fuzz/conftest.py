import pytest

from tests.fuzz.trial import Trial


@pytest.fixture(scope="module")
def trial(request, tmp_path_factory):
    """A reader of `READERS` of the test's module, with valid files of its own."""
    return Trial(request.module.READERS[request.param], tmp_path_factory.mktemp(request.param))


def pytest_generate_tests(metafunc):
    if "trial" in metafunc.fixturenames:
        # `make torture` takes all readers of a module.
        names = getattr(metafunc.module, "SHORT", metafunc.module.READERS)
        metafunc.parametrize("trial", sorted(names), indirect=True)
