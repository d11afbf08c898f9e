"""The public names of `toolkit.kaldi`."""

import subprocess
import sys

import pytest

from toolkit import kaldi


@pytest.mark.parametrize("name", kaldi.__all__)
def test_each_public_name_is_callable(name):
    assert callable(getattr(kaldi, name))


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        kaldi.nothing  # noqa: B018


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, toolkit.kaldi; print({'torch', 'lhotse', 'numba'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
