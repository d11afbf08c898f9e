"""The language stage, and lists of words."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from toolkit.kaldi.dict_lang import read_lexicon, write_dict
from toolkit.lang.config import LangConfig
from toolkit.lang.lang import Lang, LangError
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.prepare import prepare_lang, read_words, source_dictionary, words_stable_under
from toolkit.lang.text_policy import EnglishRules, LetterRules

LEXICON = "bat B AE T\ntab T AE B\ncat K AE T\nact AE K T\ntact T AE K T\nat AE T\n"
TEXTS = {
    "train": {"u1": "bat, tab", "u2": "Cab bat"},
    "dev": {"v1": "tact zoo bat", "v2": "zoo act", "v3": ""},
}


@pytest.fixture
def config(tmp_path):
    (tmp_path / "lexicon.txt").write_text(LEXICON)

    def make(**changes):
        return LangConfig(tmp_path / "lexicon.txt", **{"position_dependent": False, **changes})

    return make


def rows(path):
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_phones_may_depend_on_their_position_in_the_word(config, tmp_path):
    prepare_lang(config(position_dependent=True), TEXTS, None, tmp_path / "lang")
    lang = Lang.load(tmp_path / "lang")
    assert lang.position_dependent
    assert lang.lexicon["CAB"] == [("K_B", "AE_I", "B_E")]
    assert lang.lexicon["<UNK>"] == [("SPN",)]


@pytest.mark.parametrize("marked", [False, True])
def test_probabilities_of_the_lexicon_are_used(config, tmp_path, marked):
    lang_config = config(position_dependent=marked)
    weighted = LEXICON.replace("bat B", "bat 0.25 B").replace("tab T", "tab\t1\tT")
    lang_config.lexicon.write_text(weighted.replace("act AE", "act 0.5 0.2 1.5 0.5 AE"))
    prepare_lang(lang_config, TEXTS, {"ACT": 1}, tmp_path / "lang")
    lang = Lang.load(tmp_path / "lang")
    first = {word: lang.pronunciation_weights(word)[0] for word in lang.vocabulary}
    assert {word: weights.pronunciation for word, weights in first.items()} == {
        **{"ACT": 0.5, "BAT": 0.25, "CAB": 1.0, "TAB": 1.0}
    }
    assert (first["ACT"].silence_after, first["ACT"].silence_before) == (0.2, 1.5)
    assert len(lang.probabilities.entries) == 3


def test_extra_questions_of_kaldis_folder_are_kept(tmp_path):
    write_dict(Lang.of(Lexicon({"BAT": [("B", "AE", "T")], "TAB": [("T", "AE", "B")]})), tmp_path)
    (tmp_path / "extra_questions.txt").write_text("B T\n")
    transcripts = {"train": {"u1": "bat, tab"}}
    config = LangConfig(tmp_path)
    dictionary = source_dictionary(config, read=read_lexicon)
    prepare_lang(config, transcripts, None, tmp_path / "lang", dictionary=dictionary)
    assert (tmp_path / "lang/extra_questions.txt").read_text() == "B T\n"
    assert Lang.load(tmp_path / "lang").lexicon["TAB"] == [("T_B", "AE_I", "B_E")]


def test_vocabulary_guesses_and_report(config, tmp_path):
    weights = {"ACT": 3, "AT": 9, "TACT": 1, "TABAC": 5}
    out = tmp_path / "lang"
    headline = prepare_lang(config(vocabulary_size=2), TEXTS, weights, out)
    lang = Lang.load(out)
    assert lang.vocabulary == ["ACT", "AT", "BAT", "CAB", "TAB"]
    assert lang.lexicon["CAB"] == [("K", "AE", "B")]
    header, guess = rows(out / "g2p.tsv")
    assert header == ["word", "pronunciation", "score"]
    assert guess[:2] == ["CAB", "K AE B"]
    assert rows(out / "oov.tsv") == [
        ["split", "word", "count", "utterances"],
        ["dev", "ZOO", "2", "v1 v2"],
        ["dev", "TACT", "1", "v1"],
    ]
    assert headline == {
        "words": 5,
        "pronunciations": 5,
        "phones": 6,
        "guessed": 1,
        "left_out": 2,
        "left_out_share": 6 / 18,
        "oov_percent_dev": 60.0,
        "oov_percent_train": 0.0,
    }
    report = json.loads((out / "report.json").read_text())
    assert report["oov"]["dev"] == {"types": 2, "tokens": 3, "words": 5, "rate": 0.6}
    assert (out / "g2p.npz").exists()


def test_language_model_words_are_guessed_on_request(config, tmp_path):
    weights = {"TABAC": 5, "BAT2": 4, "ZZ": 3, "AT": 1}
    prepare_lang(config(g2p_for_lm_words=True, vocabulary_size=2), TEXTS, weights, tmp_path / "o")
    assert Lang.load(tmp_path / "o").vocabulary == ["BAT", "CAB", "TAB", "TABAC"]
    assert ["ZZ", "SPN", "0"] in rows(tmp_path / "o/g2p.tsv")


def test_all_words_of_the_lexicon(config, tmp_path):
    headline = prepare_lang(config(words="lexicon"), TEXTS, {"AT": 9, "ZOO": 1}, tmp_path / "o")
    vocabulary = ["ACT", "AT", "BAT", "CAB", "CAT", "TAB", "TACT"]
    assert Lang.load(tmp_path / "o").vocabulary == vocabulary
    assert (headline["oov_percent_dev"], headline["left_out"]) == (40.0, 1)
    assert headline["left_out_share"] == 0.1


def test_a_file_of_words(config, tmp_path):
    (tmp_path / "words.txt").write_text("tabac\ncat\n")
    lang_config = config(words=tmp_path / "words.txt", vocabulary_size=0)
    headline = prepare_lang(lang_config, TEXTS, {"AT": 9}, tmp_path / "o")
    assert Lang.load(tmp_path / "o").vocabulary == ["BAT", "CAB", "CAT", "TAB", "TABAC"]
    assert headline["guessed"] == 2
    assert headline["left_out_share"] == 1.0


def test_no_word_of_the_text_is_left_out_without_need(config, tmp_path):
    headline = prepare_lang(config(), TEXTS, {"AT": 9, "ACT": 1}, tmp_path / "o")
    assert "left_out" not in headline
    assert json.loads((tmp_path / "o/report.json").read_text())["left_out"] == 0


def test_a_warning_says_when_triphone_trees_need_much_memory(config, tmp_path, caplog):
    prepare_lang(config(), TEXTS, None, tmp_path / "few")
    assert "triphone tree" not in caplog.text
    words = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(450)]
    lines = [f"{word} P{i}\n" for i, word in enumerate(words)]
    (tmp_path / "lexicon.txt").write_text(LEXICON + "".join(lines))
    prepare_lang(config(), {"train": {"u": " ".join(words)}}, None, tmp_path / "many")
    assert "with 452 phones, a triphone tree takes 1.1 GB" in caplog.text


def test_no_g2p_model_is_trained_when_all_words_are_in_the_lexicon(config, tmp_path):
    texts = {"train": {"u1": "bat tab"}}
    prepare_lang(config(), texts, None, tmp_path / "o")
    assert Lang.load(tmp_path / "o").vocabulary == ["BAT", "TAB"]
    assert not (tmp_path / "o/g2p.npz").exists()


def test_words_without_a_guess_become_unknown(config, tmp_path):
    texts = {"train": {"u1": "bat bat bat", "u2": "zz"}}
    with pytest.raises(LangError, match=r"25\.0% of the training words.*oov\.tsv"):
        prepare_lang(config(), texts, None, tmp_path / "o")
    with pytest.raises(LangError, match=r"from the 6 words of the lexicon: ZZ; see"):
        prepare_lang(config(), texts, None, tmp_path / "o")
    headline = prepare_lang(config(max_unknown=0.3), texts, None, tmp_path / "o")
    assert headline["oov_percent_train"] == 25.0
    assert ["train", "ZZ", "1", "u2"] in rows(tmp_path / "o/oov.tsv")
    assert Lang.load(tmp_path / "o").word_id("ZZ") == Lang.load(tmp_path / "o").words["<UNK>"]


def test_a_lexicon_that_teaches_no_spelling_leaves_words_unknown(config, tmp_path, caplog):
    """Its words have more phones per letter than a graphone can have."""
    (tmp_path / "lexicon.txt").write_text("ab zh ong 1 x y z\ncd m i e 4 x y\n", "utf-8")
    headline = prepare_lang(
        config(max_unknown=0.5), {"train": {"u1": "ab cd ef"}}, None, tmp_path / "o"
    )
    assert headline["oov_percent_train"] == pytest.approx(33.33, abs=0.01)
    assert "no pronunciation is guessed" in caplog.text


@pytest.mark.parametrize("texts", [{}, {"train": {}}, {"train": {"u": "12"}}])
def test_no_transcripts(config, tmp_path, texts):
    with pytest.raises(LangError, match="'train' has no transcript"):
        prepare_lang(config(), texts, None, tmp_path / "o")


def test_a_lexicon_of_another_language_is_refused(config, tmp_path):
    with pytest.raises(LangError, match="lexicon of their language"):
        prepare_lang(config(), {"train": {"u": "zoo"}}, None, tmp_path / "o")


def test_a_lexicon_of_graphemes_for_another_language(tmp_path):
    german = LangConfig("graphemes", "letters-upper-1", position_dependent=False, max_unknown=0.4)
    texts = {"train": {"u": "Über Füße, 3"}, "dev": {"v": "Füße überall"}}
    headline = prepare_lang(german, texts, {"MÜDE": 2, "X9": 1}, tmp_path / "o")
    lang = Lang.load(tmp_path / "o")
    assert lang.normaliser == "letters-upper-1"
    assert lang.vocabulary == ["FÜSSE", "MÜDE", "ÜBER"]
    assert lang.lexicon["FÜSSE"] == [("F", "Ü", "S", "S", "E")]
    assert (headline["guessed"], headline["oov_percent_train"]) == (0, 33.33)
    assert headline["oov_percent_dev"] == 50.0
    assert json.loads((tmp_path / "o/report.json").read_text())["unknown_tokens"] == {"3": 1}


PROGRAM = """
import sys; from pathlib import Path
from toolkit.lang.config import LangConfig; from toolkit.lang.prepare import prepare_lang
prepare_lang(LangConfig(lexicon=Path(sys.argv[1])), {"train": {"u": "cab bat tab tact"},
    "dev": {"v": "zoo zip act"}}, {"AT": 1, "ACT": 1, "CAT": 1}, Path(sys.argv[2]))
"""


def test_files_do_not_depend_on_the_hash_seed(config, tmp_path):
    contents = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        subprocess.run(
            [sys.executable, "-c", PROGRAM, config().lexicon, out],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        contents.append({p.name: p.read_bytes() for p in out.iterdir()})
    assert contents[0] == contents[1]


def test_numbers_in_digits_are_outside_the_vocabulary(config, tmp_path):
    texts = {"train": {"u1": "bat tab bat 1250", "u2": "cat, act"}, "dev": {"v": "bat 7, - <bat>"}}
    headline = prepare_lang(config(max_unknown=0.2), texts, None, tmp_path / "o")
    assert (headline["oov_percent_train"], headline["oov_percent_dev"]) == (16.67, 50.0)
    assert ["train", "1250", "1", "u1"] in rows(tmp_path / "o/oov.tsv")
    with pytest.raises(LangError, match=r"^16\.7% of the training words .*: 1250; see"):
        prepare_lang(config(max_unknown=0.1), texts, None, tmp_path / "p")


@pytest.mark.parametrize(
    "text",
    [
        "cat\nTom's\n\n",
        "# a comment\nCAT K AE T\ncat(2) K AA T\n;;; TOOLKIT\nTOM'S T AA M Z\n",
        "cat\t12\ntom’s 3\n",
        "     12 cat\n      3 tom's\n",
    ],
)
def test_words_lexicons_and_counts(tmp_path, text):
    (tmp_path / "words.txt").write_text(text)
    assert read_words(tmp_path / "words.txt", EnglishRules()) == {"CAT", "TOM'S"}


def test_packed_words_of_another_alphabet(tmp_path):
    (tmp_path / "words.txt.gz").write_bytes(gzip.compress("да\nнет-нет\n".encode()))
    assert read_words(tmp_path / "words.txt.gz", LetterRules()) == {"ДА", "НЕТ"}


def test_a_file_without_words_is_an_error(tmp_path):
    (tmp_path / "words.txt").write_text("# nothing\n42\n")
    with pytest.raises(LangError, match=r"words\.txt has no word"):
        read_words(tmp_path / "words.txt", EnglishRules())


def test_lexicon_entries_that_no_text_can_have_are_not_words():
    lexicon = Lexicon({"CAT": [("K",)], "A.M.": [("M",)], "<UNK>": [("SPN",)], "'BOUT": [("B",)]})
    assert list(words_stable_under(lexicon, EnglishRules())) == ["CAT", "'BOUT"]
