import os
import sys

import pytest

from toolkit.lang.ngram.arpa import write_arpa
from toolkit.lang.ngram.kneser_ney import NgramError, estimate
from toolkit.lang.ngram.lmplz import estimate_with_lmplz

FAKE = """#!{python}
import shutil, sys
arguments = sys.argv[1:]
open({log!r}, "w").write(" ".join(arguments))
text = open(arguments[arguments.index("--text") + 1]).read()
assert text == "A B\\nC\\n", text
shutil.copy({arpa!r}, arguments[arguments.index("--arpa") + 1])
sys.exit({status})
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put a program called lmplz on the PATH that writes a ready model."""

    def install(status):
        model = estimate([["A", "B"], ["C"]], {"A", "B"}, order=2)[0]
        write_arpa(model, tmp_path / "ready.arpa")
        program = tmp_path / "lmplz"
        arpa, log = str(tmp_path / "ready.arpa"), str(tmp_path / "log")
        program.write_text(FAKE.format(python=sys.executable, arpa=arpa, log=log, status=status))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return model

    return install


def test_model_and_arguments(fake, tmp_path):
    expected = fake(0)
    model = estimate_with_lmplz([["A", "B"], ["C"]], {"A", "B"}, 3, (1, 2))
    assert model.vocabulary == expected.vocabulary
    arguments = (tmp_path / "log").read_text()
    assert arguments.startswith("-o 3 --discount_fallback --limit_vocab_file")
    assert "--prune 0 1 1 " in arguments


def test_failure_is_passed_on(fake):
    fake(3)
    with pytest.raises(NgramError, match="status 3"):
        estimate_with_lmplz([["A", "B"], ["C"]], {"A", "B"}, 3, (1,))


def test_absence_names_the_way_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NgramError, match="set estimator to 'numpy'"):
        estimate_with_lmplz([["A"]], {"A"}, 3, (1,))
