"""ARPA files and their binary form."""

import gzip
import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.lang.arpa import ArpaError, read_arpa, read_binary, write_arpa, write_binary
from toolkit.lang.ngram import estimate
from toolkit.lang.tables import word_table

ODD = """a header that SRILM may write

\\data\\
ngram 1=4
ngram  2 = 2

\\1-grams:
-99\t<s>\t-0.3
-inf <unk>
-0.4\tB
-0.7\t</s>

\\2-grams:
-0.2\tB </s>
-0.1 <s> B

\\end\\
"""


@pytest.fixture
def model():
    corpus = [["A", "B", "A"], ["A", "C"], ["B", "A", "B", "Z"]]
    return estimate(corpus, {"A", "B", "C", "D"}, order=3)[0]


def read(tmp_path, text):
    (tmp_path / "lm.arpa").write_text(text)
    return read_arpa(tmp_path / "lm.arpa")


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz"])
def test_write_arpa_and_read_arpa_round_trip(tmp_path, model, name):
    write_arpa(model, tmp_path / name)
    loaded = read_arpa(tmp_path / name)
    assert loaded.vocabulary == model.vocabulary
    for level, loaded_level in zip(model.levels, loaded.levels, strict=True):
        np.testing.assert_array_equal(level.context, loaded_level.context)
        np.testing.assert_array_equal(level.word, loaded_level.word)
        np.testing.assert_allclose(level.logprob, loaded_level.logprob, atol=6e-8)
        np.testing.assert_allclose(level.backoff, loaded_level.backoff, atol=6e-8)
    for history in ([], ["<s>"], ["A", "B"], ["<s>", "A"], ["D", "D"]):
        assert loaded.distribution(history).sum() == pytest.approx(1, abs=1e-6)


def test_orders_have_no_limit(tmp_path):
    sentence = list("ABCDEFGHIJKL")
    model = estimate([sentence, sentence[::-1]], set(sentence), order=11)[0]
    write_arpa(model, tmp_path / "lm.arpa")
    loaded = read_arpa(tmp_path / "lm.arpa")
    assert loaded.order == 11
    for words in (sentence, sentence[3:9], sentence[5:] + sentence[:5], ["A", "C"]):
        assert loaded.logprob(words) == pytest.approx(model.logprob(words), abs=1e-5)


def test_arpa_file_format(tmp_path):
    model = estimate([["A", "B"], ["A", "C"]], {"A", "B", "C"}, order=2)[0]
    write_arpa(model, tmp_path / "lm.arpa")
    lines = (tmp_path / "lm.arpa").read_text().splitlines()
    assert lines[:4] == ["\\data\\", "ngram 1=6", "ngram 2=5", ""]
    assert "-0.7544873\tA\t-0.1760913" in lines  # log10 of 0.176 and of 2/3
    assert "-99.0000000\t<s>\t-0.4771213" in lines
    assert "-0.1394624\t<s> A" in lines
    assert lines[-1] == "\\end\\"
    grams = [line.split("\t")[1] for line in lines if "\t" in line]
    assert grams[:6] == sorted(grams[:6])
    assert grams[6:] == sorted(grams[6:], key=str.split)


def test_gzipped_files_do_not_depend_on_the_clock(tmp_path, model):
    write_arpa(model, tmp_path / "one.gz")
    write_arpa(model, tmp_path / "two.gz")
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()
    assert gzip.decompress((tmp_path / "one.gz").read_bytes()).startswith(b"\\data\\")


def test_read_arpa_accepts_the_variants_of_srilm(tmp_path):
    model = read(tmp_path, ODD)
    assert model.vocabulary == ("</s>", "<UNK>", "<s>", "B")
    assert model.logprob(["B"]) == pytest.approx(-0.3)
    assert model.logprob([]) == pytest.approx(-0.3 - 0.7)


@pytest.mark.parametrize("highest", [3, 4, 6])
def test_highest_orders_may_have_no_ngrams(tmp_path, highest):
    orders = range(3, highest + 1)
    header = "".join(f"\nngram {n}=0" for n in orders)
    sections = "".join(f"\\{n}-grams:\n\n" for n in orders)
    text = ODD.replace("ngram  2 = 2", "ngram 2=2" + header)
    model = read(tmp_path, text.replace("\\end\\", sections + "\\end\\"))
    assert model.order == 2
    assert model.logprob(["B"]) == pytest.approx(-0.3)


def test_ngrams_above_an_empty_order_are_an_error(tmp_path):
    text = ODD.replace("ngram  2 = 2", "ngram 2=2\nngram 3=0\nngram 4=1")
    sections = "\\3-grams:\n\n\\4-grams:\n-1 B B B B\n\n\\end\\"
    text = text.replace("-0.1 <s> B", "-0.1 B B").replace("\\end\\", sections)
    with pytest.raises(ArpaError, match=r"lm\.arpa:22: context 'B B B' is not a 3-gram"):
        read(tmp_path, text)


def test_only_white_space_of_ascii_ends_a_word(tmp_path):
    model = read(tmp_path, re.sub(r"\bB\b", "B\u00a0C", ODD))
    assert model.vocabulary == ("</s>", "<UNK>", "<s>", "B\u00a0C")


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("\\data\\", "data", 17, "not an ARPA file"),
        ("ngram 1=4", "ngram 1=x", 4, "expected `ngram 1=COUNT`"),
        ("ngram 1=4", "ngram 1=5", 13, "the header says `ngram 1=5`, but there are 4"),
        ("\\2-grams:", "\\3-grams:", 13, r"expected `\2-grams:`"),
        ("-0.4\tB", "x B", 10, "not a number"),
        ("-0.4\tB", "0.4 B", 10, "out of range"),
        ("-0.4\tB", "nan B", 10, "out of range"),
        ("-0.4\tB", "-0.4 B C -1", 10, "expected a probability, 1 words"),
        ("-0.4\tB", "-0.4 <s>", 10, "'<s>' is listed twice"),
        ("-0.7\t</s>", "-0.7 C", 13, "lack </s>: estimate the model from sentences"),
        ("-0.7\t</s>", "-0.7 </S>", 13, "lack </s>: write </s> instead of </S>"),
        ("-0.4\tB", "-0.4 <UNK>", 13, "have <UNK> twice, or <UNK> and <unk>"),
        ("-0.1 <s> B", "-0.1 <s> Q", 15, "'Q' is not a 1-gram"),
        ("-0.1 <s> B", "-0.1 B </s>", 15, "'B </s>' is listed twice"),
        ("\\end\\\n", "", 16, r"expected `\end\`"),
    ],
)
def test_errors_name_file_and_line(tmp_path, old, new, line, message):
    assert old in ODD
    with pytest.raises(ArpaError, match=rf"lm\.arpa:{line}: .*{re.escape(message)}") as caught:
        read(tmp_path, ODD.replace(old, new))
    assert "\n" not in str(caught.value)


def test_a_missing_context_is_an_error(tmp_path, model):
    write_arpa(model, tmp_path / "lm.arpa")
    lines = (tmp_path / "lm.arpa").read_text().splitlines()
    remaining = [line for line in lines if "\tA B\t" not in line]
    assert len(remaining) == len(lines) - 1
    count = len(model.levels[1].word)
    text = "\n".join(remaining).replace(f"ngram 2={count}", f"ngram 2={count - 1}")
    with pytest.raises(ArpaError, match="context 'A B' is not a 2-gram"):
        read(tmp_path, text + "\n")


@given(cut=st.integers(0, len(ODD)), junk=st.text(max_size=12), length=st.integers(0, 30))
def test_damaged_files_are_read_or_refused(tmp_path_factory, cut, junk, length):
    folder = tmp_path_factory.mktemp("fuzz")
    message = "lm.arpa"
    try:
        read(folder, ODD[:cut] + junk + ODD[cut + length :])
    except ToolkitError as error:
        message = str(error)
    assert "lm.arpa" in message


@pytest.mark.skipif(importlib.util.find_spec("kaldilm") is None, reason="kaldilm is not installed")
def test_kaldilm_accepts_every_ngram(tmp_path, model):
    write_arpa(model, tmp_path / "lm.arpa")
    word_table(model.vocabulary).write(tmp_path / "words.txt")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "kaldilm",
            f"--read-symbol-table={tmp_path / 'words.txt'}",
            "--disambig-symbol=#0",
            tmp_path / "lm.arpa",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "skipped" not in done.stdout + done.stderr
    words = {line.split()[2] for line in done.stdout.splitlines() if len(line.split()) == 5}
    assert words == {"1", "2", "3", "4", "5", "6"}  # A B C D <UNK>, and #0 for back-off


def test_sentences_are_scored_separately_whatever_ngrams_the_file_has(tmp_path):
    text = ODD.replace("ngram  2 = 2", "ngram 2=3\nngram 3=1").replace(
        "\\end\\", "-0.1 </s> <s>\n\n\\3-grams:\n-0.01 </s> <s> B\n\n\\end\\"
    )
    model = read(tmp_path, text)
    tokens = np.array(model.word_ids(["<s>", "B", "</s>"] * 2))
    assert model.token_logprobs(tokens)[[4, 5]] == pytest.approx([-0.1, -0.2])


def test_a_binary_model_scores_the_same_after_loading(tmp_path):
    text = [["A", "B"], ["B", "A", "Ä"], ["A"], ["A", "B", "B", "A"]]
    model, _ = estimate(text, ["A", "B", "Ä"], 3, (1,))
    write_binary(model, tmp_path / "lm.safetensors")
    loaded = read_binary(tmp_path / "lm.safetensors")
    assert loaded.vocabulary == model.vocabulary
    assert loaded.order == 3
    for sentence in (*text, ["B", "B", "C"], []):
        assert loaded.logprob(sentence) == pytest.approx(model.logprob(sentence), abs=1e-5)
    for loaded_level, level in zip(loaded.levels, model.levels, strict=True):
        assert np.array_equal(loaded_level.context, level.context)
    write_binary(model, tmp_path / "twice.safetensors")
    first, second = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("lm", "twice"))
    assert first == second


def test_read_binary_refuses_another_file(tmp_path):
    (tmp_path / "lm.safetensors").write_text("\\data\\\n")
    with pytest.raises(ArpaError, match="not a language model"):
        read_binary(tmp_path / "lm.safetensors")
