import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.score.normalise import RULES, ScoringFilter, WordMap, basic
from toolkit.score.wer import score


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("none", "none", "It’s 3 o'clock, Dr. Who -- «Émile»!"),
        ("case", "case-1", "it’s 3 o'clock, dr. who -- «émile»!"),
        ("basic", "basic-5", "it's 3 o'clock dr who émile"),
        ("english", "english-upper-2+tags-1", "IT'S O'CLOCK DOCTOR WHO EMILE"),
    ],
)
def test_rules_change_the_text_and_have_names(rules, name, expected):
    normalise = ScoringFilter(rules)
    assert normalise("It’s 3 o'clock, Dr. Who -- «Émile»!") == expected
    assert normalise.name == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'tis the dogs' rock'n'roll", "tis the dogs rock'n'roll"),
        ("e-mail 3.5 % a_b", "e mail 3 5 a b"),
        ("ｆｕｌｌ ﬁne हिन्दी", "full fine हिन्दी"),
        ("...", ""),
    ],
)
def test_basic_keeps_letters_marks_numbers_and_apostrophes_inside_words(text, expected):
    assert basic(text) == expected


@given(st.text(max_size=30), st.sampled_from(RULES))
def test_normalising_twice_changes_nothing_and_spaces_are_single(text, rules):
    text = " ".join(text.split())
    normalise = ScoringFilter(rules)
    once = normalise(text)
    if rules not in ("none", "case"):  # lower case of some letters has others
        assert normalise(once) == once
        assert once == " ".join(once.split())


def test_words_are_dropped_before_the_rules_in_any_case():
    normalise = ScoringFilter("basic", drop=("<UNK>", "[noise]"))
    assert normalise("a <unk> b [NOISE] noise") == "a b noise"
    assert normalise.name == "basic-5 without <UNK> [noise]"


def test_digits_removed_by_english_get_a_remark():
    normalise = ScoringFilter("english")
    normalise("CALL 911 NOW")
    assert "removed 3 characters" in normalise.remarks()[0]
    assert ScoringFilter("none").remarks() == []


@pytest.fixture
def mapping(tmp_path):
    def write(content):
        path = tmp_path / "en.glm"
        path.write_text(content)
        return path

    return write


GLM = """;; a comment
* header
[can't]  =>  [can not] / [ ] __ [ ]
cannot => can not ;; a remark
uh =>
new york => ny
new => fresh
"""


def test_words_are_mapped_longest_first_and_once(mapping):
    normalise = ScoringFilter("none", mapping=mapping(GLM))
    assert normalise("uh i can't go to new york") == "i can not go to ny"
    assert normalise("new cannot") == "fresh can not"
    assert normalise("york news") == "york news"
    assert normalise.name.startswith("none mapped by en.glm (sha256 ")


def test_rules_are_applied_to_the_mapping_too(mapping):
    normalise = ScoringFilter("english", mapping=mapping("can't => can not\n"))
    assert normalise("Can't stop") == "CAN NOT STOP"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a => b\nc d\n", "en.glm:2: expected `FROM WORDS => TO WORDS`, found 'c d'"),
        ("a => b\na => c\n", "en.glm:2: 'a' is mapped to different words in an earlier line"),
        ("a => { b / c }\n", "en.glm:1: .*alternatives and contexts are not supported"),
        ("[a] => [b] / [x] __ [ ]\n", "en.glm:1: .*alternatives and contexts"),
        ("=> b\n", "en.glm:1: expected"),
        ("\\xff", "en.glm:1: expected"),
    ],
)
def test_faults_of_a_mapping_name_file_and_line(mapping, content, message):
    with pytest.raises(ToolkitError, match=message):
        WordMap.read(mapping(content))


def test_an_absent_or_vanishing_mapping_is_an_error(mapping, tmp_path):
    with pytest.raises(ToolkitError, match="absent"):
        ScoringFilter("none", mapping=tmp_path / "absent")
    with pytest.raises(ToolkitError, match=r"the left side of .* is empty after normalisation"):
        ScoringFilter("english", mapping=mapping("911 => emergency\n"))


def test_unknown_rules_are_refused():
    with pytest.raises(ValueError, match="none, case, basic, english"):
        ScoringFilter("whisper")


def test_a_score_names_its_normaliser():
    normalise = ScoringFilter("basic")
    result = score({"u": "A, b"}, {"u": "a b"}, normalise=normalise, normaliser=normalise.name)
    assert (result.errors, result.normaliser) == (0, "basic-5")


def test_basic_folds_case_in_any_alphabet():
    normalise = ScoringFilter("basic")
    for written, recognised in (
        ("Gr\u00fc\u00dfe aus K\u00f6ln", "GR\u00dcSSE AUS K\u00d6LN"),
        ("\u03bf\u03b4\u03cc\u03c2", "\u039f\u0394\u038c\u03a3"),
    ):
        assert normalise(written) == normalise(recognised)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("co\u00adoperate", "cooperate"),
        ("\u0dc1\u0dca\u200d\u0dbb\u0dd3", "\u0dc1\u0dca\u0dbb\u0dd3"),  # Sinhala sri
        ("\u200f\u05e9\u200e\u05dc\u2069", "\u05e9\u05dc"),
        ("a\u2060b c\ufeffd", "ab cd"),
        ("a\u200bb c\u200cd", "a b cd"),  # words of Thai; parts of a Persian word
    ],
)
def test_characters_without_a_glyph_do_not_divide_words(text, expected):
    assert basic(text) == expected


@pytest.mark.parametrize("letter", ["\u1ecd\u0300", "\u0105\u0301", "\u0915\u093e", "e"])
def test_apostrophes_after_marks_on_letters_are_inside_words(letter):
    assert basic(f"n{letter}'k' 'n'{letter}") == f"n{letter}'k n'{letter}"


@pytest.mark.parametrize("word", ["you know", "", " "])
def test_a_dropped_text_must_be_one_word(word):
    with pytest.raises(ToolkitError, match=r"not one word to drop.*FROM WORDS =>"):
        ScoringFilter(drop=["uh", word])
    assert ScoringFilter(drop=[" uh "])("so Uh yes") == "so yes"


@pytest.mark.parametrize("rules", ["none", "case", "basic"])
def test_hyphens_are_removed_before_the_rules(rules):
    normalise = ScoringFilter(rules, drop_hyphens=True)
    assert normalise("an e-mail - re-sent --") == "an email resent"
    assert normalise.name.endswith(" without hyphens")
