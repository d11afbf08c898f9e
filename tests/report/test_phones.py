"""Errors of the GMMs in phones."""

from pathlib import Path

from toolkit.lang.dictionary import read_dictionary
from toolkit.report.error_analysis import SplitErrors, phone_overview, phone_pairs
from toolkit.report.run_data import Decode, Split, Utterance
from toolkit.report.run_folder import RunFolder
from toolkit.score.wer import score

LEXICON = """<UNK> SPN
CAT K_B AE_I T_E
CAT K_B AH_I T_E
HAT HH_B AE_I T_E
A AH_S
SAT S_B AE_I T_E
"""
REFERENCES = {"u1": "A CAT SAT", "u2": "CAT ZEBRA", "u3": "SAT"}
HYPOTHESES = {"u1": "A HAT SAT A", "u2": "CAT", "u3": "SAT"}


def decoded(name):
    return Decode(name, "dev", score(REFERENCES, HYPOTHESES), Path())


def test_words_are_compared_by_their_first_pronunciations(tmp_path):
    (tmp_path / "lexicon.txt").write_text(LEXICON)
    pairs = phone_pairs(decoded("mono"), read_dictionary(tmp_path / "lexicon.txt").lexicon)
    assert pairs[0] == [
        *[("AH", "AH"), ("K", "HH"), ("AE", "AE"), ("T", "T")],
        *[("S", "S"), ("AE", "AE"), ("T", "T"), (None, "AH")],
    ]
    assert pairs[1] == [("K", "K"), ("AE", "AE"), ("T", "T"), ("SPN", None)]
    assert all(ref == hyp for ref, hyp in pairs[2])


def test_only_gmms_with_a_lexicon_have_phones(tmp_path):
    (tmp_path / "stages").mkdir()
    run = RunFolder.open(tmp_path)
    utterances = {id: Utterance(1.0, "s", text, 0) for id, text in REFERENCES.items()}
    split = Split("dev", Path(), utterances, 0)
    errors = SplitErrors(split, [decoded("lstm"), decoded("sat/first_pass")])
    assert phone_overview(run, errors) == ""
    (tmp_path / "sat").mkdir()
    (tmp_path / "sat/gmm.safetensors").touch()
    assert phone_overview(run, errors) == ""
    (tmp_path / "lang").mkdir()
    (tmp_path / "lang/lexicon.txt").write_text(LEXICON)
    html = phone_overview(run, errors)
    assert "dev, phones of sat/first_pass" in html
    assert "K → HH" in html
    assert "SPN" in html
    assert "wrong %" not in html  # no phone was said ten times
