"""Binary language models hold what the ARPA model holds."""

import numpy as np
import pytest

from toolkit.lang.ngram.arpa import ArpaError
from toolkit.lang.ngram.binary import read_binary, write_binary
from toolkit.lang.ngram.kneser_ney import estimate


def test_what_is_read_scores_as_what_was_written(tmp_path):
    text = [["A", "B"], ["B", "A", "Ä"], ["A"], ["A", "B", "B", "A"]]
    model, _ = estimate(text, ["A", "B", "Ä"], 3, (1,))
    write_binary(model, tmp_path / "lm.safetensors")
    again = read_binary(tmp_path / "lm.safetensors")
    assert again.vocabulary == model.vocabulary
    assert again.order == 3
    for sentence in (*text, ["B", "B", "C"], []):
        assert again.logprob(sentence) == pytest.approx(model.logprob(sentence), abs=1e-5)
    for one, other in zip(again.levels, model.levels, strict=True):
        assert np.array_equal(one.context, other.context)
    write_binary(model, tmp_path / "twice.safetensors")
    first, second = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("lm", "twice"))
    assert first == second


def test_another_file_is_told(tmp_path):
    (tmp_path / "lm.safetensors").write_text("\\data\\\n")
    with pytest.raises(ArpaError, match="not a language model"):
        read_binary(tmp_path / "lm.safetensors")
