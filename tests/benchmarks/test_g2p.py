from click.testing import CliRunner

from benchmarks.g2p import Guessed, compare
from benchmarks.run import main
from tests.lang.test_g2p import regular_words
from toolkit.lang.lexicon import Lexicon


def test_the_nearest_pronunciation_counts():
    lexicon = Lexicon({"A": [("X", "Y", "Z"), ("X", "Z")], "B": [("X",)], "C": [("Y", "Z")]})
    errors = compare({"A": ("X", "Z", "Z"), "B": ("X",), "C": ()}, lexicon)
    assert errors == Guessed(words=3, wrong=2, phones=3 + 1 + 2, errors=1 + 0 + 2)
    assert str(errors) == "PER 50.00 % [ 3 / 6 ], WER 66.67 % [ 2 / 3 ]"


def test_plain_rules_are_learnt(tmp_path):
    regular_words().write(tmp_path / "lexicon.txt")
    options = ["--lexicon", str(tmp_path / "lexicon.txt"), "--held-out", "6"]
    result = CliRunner().invoke(main, ["g2p", *options])
    assert result.exit_code == 0, result.output
    assert "90 training words: PER 0.00 % [ 0 / " in result.output
    assert "WER 0.00 % [ 0 / 6 ]" in result.output
    result = CliRunner().invoke(main, ["g2p", *options[:2]])
    assert "above 0 and below 96" in result.output
