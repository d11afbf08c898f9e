import pytest

from toolkit.new_corpus import checkout
from toolkit.new_corpus.checkout import CheckoutError, CorpusNameError, check_name, find_checkout


def test_the_folder_is_found_from_below(root):
    assert find_checkout(root / "recipes" / "librispeech") == root


def test_elsewhere_it_is_that_of_the_toolkit(tmp_path):
    assert (find_checkout(tmp_path) / "toolkit" / "new_corpus" / "checkout.py").is_file()


def test_without_any_it_says_what_to_do(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages" / "toolkit" / "__init__.py"
    monkeypatch.setattr(checkout.toolkit, "__file__", str(installed))
    with pytest.raises(CheckoutError, match=r"repository, run `make setup`.*new-corpus"):
        find_checkout(tmp_path)


@pytest.mark.parametrize("name", ["interviews", "smith2", "my_corpus"])
def test_good_names(root, name):
    check_name(name, root)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-corpus", "such as 'my_corpus'"),
        ("2024 calls", "such as 'c_2024_calls'"),
        ("class", "such as 'c_class'"),
        ("übung", "such as 'ubung'"),
        ("", "lower-case letters, digits and _$"),
        ("../x", "such as 'x'"),
        ("_mine", "such as 'mine'"),
        ("Smith", "such as 'smith'"),
        ("an4", r"'an4' is taken \(local/an4.py\)"),
        ("librispeech", r"taken \(recipes/librispeech\)"),
        ("steps", r"taken \(recipes/steps\)"),
    ],
)
def test_names_that_cannot_be(root, name, message):
    with pytest.raises(CorpusNameError, match=message):
        check_name(name, root)
