import gzip

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkit.lang.letters import SecondLetterNormaliser
from toolkit.lang.text import (
    FirstNormaliser,
    Normaliser,
    TextError,
    ThirdNormaliser,
    check_sentences,
    count_words,
    read_sentences,
    split_clitics,
    text_files,
)
from toolkit.storage.lines import read_lines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, world!", "HELLO WORLD"),
        ("well-known — state–of", "WELL KNOWN STATE OF"),
        ("don’t 'tis ' boys'", "DON'T 'TIS BOYS'"),
        ("Mr. Bennet and Mrs Hurst, Dr.", "MISTER BENNET AND MISSUS HURST DOCTOR"),
        ("café naïve Ångström", "CAFE NAIVE ANGSTROM"),
        ("the U.S. and\tthe end.Next", "THE U S AND THE END NEXT"),
        ("“quoted” text…", "QUOTED TEXT"),
        ("straße", "STRASSE"),
        ("", ""),
    ],
)
def test_rules(text, words):
    normaliser = Normaliser()
    assert normaliser(text) == words
    assert not normaliser.removed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("‘Hello’ he said", "HELLO HE SAID"),
        ("‘I am here,’ he said. ‘Go!’", "I AM HERE HE SAID GO"),
        ("'Go home' he said, 'boys' or not", "GO HOME HE SAID BOYS OR NOT"),
        ("``Hello,'' she said", "HELLO SHE SAID"),
        ("`Don't,' I said, 'em all", "DON'T I SAID 'EM ALL"),
        ("‘’Tis the boys’ goin’ home’ he said", "'TIS THE BOYS' GOIN' HOME HE SAID"),
        ("O'Neill's 'rock 'n' roll'", "O'NEILL'S ROCK 'N' ROLL"),
        ("the dogs' bone", "THE DOGS' BONE"),
    ],
)
def test_quotation_marks_are_no_part_of_words(text, words):
    assert Normaliser()(text) == words
    assert Normaliser().transcript(text) == words


def test_accents_of_their_own_do_not_hide_the_letter_before_an_apostrophe():
    assert Normaliser()("the cafe\u0301's 'cafe\u0301'") == "THE CAFE'S CAFE"


@pytest.mark.parametrize(
    ("text", "without", "with_lexicon"),
    [
        ("he saw her' and so'", "HE SAW HER AND SO", "HE SAW HER AND SO"),
        ("'tis o' th' boys' goin'", "'TIS O' TH' BOYS' GOIN'", "'TIS O' TH BOYS GOIN"),
        ("dogs' 'dogs'", "DOGS' DOGS", "DOGS' DOGS"),
        ("rock 'n' roll", "ROCK 'N' ROLL", "ROCK 'N ROLL"),
        ("'em' 'her mr' don't", "'EM HER MISTER DON'T", "EM HER MISTER DON'T"),
    ],
)
def test_apostrophes_at_the_edges_of_words(text, without, with_lexicon):
    lexicon = {"'TIS", "O'", "DOGS'", "'N", "EM"}
    for rules, words in ((ThirdNormaliser(), without), (ThirdNormaliser(lexicon), with_lexicon)):
        assert rules(text) == rules.transcript(text) == words
        assert rules(words) == words


@given(
    st.lists(st.text("ABM'", min_size=1, max_size=6), max_size=5),
    st.frozensets(st.from_regex("'?[ABM]{1,2}('[ABM])?'?", fullmatch=True), max_size=6),
)
def test_with_a_lexicon_words_are_normalised_once(words, lexicon):
    text = " ".join(words)
    for rules in (ThirdNormaliser(lexicon, True), SecondLetterNormaliser(lexicon, True)):
        once = rules.words(text)
        assert rules.words(" ".join(once)) == once
        assert "".join(once).replace("'", "") == text.replace("'", "").replace(" ", "")
        edges = [word for word in once if word.strip("'") != word]
        assert lexicon.issuperset(edges) or not lexicon


def test_english_possessives_are_split_with_a_lexicon_that_has_them():
    rules = ThirdNormaliser({"'S", "DOG", "S"}, split_clitics=True)
    assert rules("the dog’s 'dog'") == rules("THE DOG 'S DOG") == "THE DOG 'S DOG"
    assert rules.split == {"DOG'S": 1}


FRENCH = {"M'", "QU'", "J'", "T'", "APPELLE", "IL", "AIME", "D'", "AUJOURD'HUI", "'S", "DOG"}


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("M'APPELLE", "M' APPELLE"),
        ("QU'IL", "QU' IL"),
        ("J'T'AIME", "J' T' AIME"),
        ("D'AUJOURD'HUI", "D' AUJOURD'HUI"),
        ("AUJOURD'HUI", "AUJOURD'HUI"),
        ("M'INCONNU", "M' INCONNU"),
        ("DOG'S", "DOG 'S"),
        ("L'HOMME", "L'HOMME"),
        ("M'", "M'"),
        ("APPELLE", "APPELLE"),
        ("M'DOG'S", "M' DOG 'S"),
    ],
)
def test_clitics(word, parts):
    assert split_clitics(word, FRENCH) == parts.split()
    rules = SecondLetterNormaliser(FRENCH, split_clitics=True)
    assert rules(word.lower().replace("'", "’")) == rules(parts) == rules.transcript(word) == parts
    assert rules.split == ({word: 2} if " " in parts else {})
    assert SecondLetterNormaliser(FRENCH)(word) == word


def test_the_first_rules_leave_them():
    assert FirstNormaliser()("‘Hello’ he said, ''go''") == "'HELLO' HE SAID ''GO''"


def test_other_characters_are_removed_and_counted():
    normaliser = Normaliser()
    assert normaliser("in 1984 we paid 5 £ Ж") == "IN WE PAID"
    assert normaliser.removed == {"1": 1, "9": 1, "8": 1, "4": 1, "5": 1, "£": 1, "Ж": 1}


@example("0´A")
@example("_'A")
@given(st.text())
def test_output_has_the_alphabet_alone_and_is_stable(text):
    words = Normaliser().words(text)
    assert all(word and set(word) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ'") for word in words)
    again = Normaliser()
    assert again.words(" ".join(words)) == words
    assert not again.removed


def test_sources(tmp_path):
    (tmp_path / "b.txt").write_text("second file\n\n!\n")
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("first file\n")
    (tmp_path / "LICENSE").write_text("no text\n")
    first, second = ["FIRST", "FILE"], ["SECOND", "FILE"]
    assert list(read_sentences(tmp_path, Normaliser())) == [first, second]
    assert list(read_sentences(tmp_path / "b.txt", Normaliser())) == [second]
    assert list(read_sentences(tmp_path / "*.gz", Normaliser())) == [first]
    assert count_words([first, second]) == {"FIRST": 1, "FILE": 2, "SECOND": 1}


def test_missing_text_is_named(tmp_path):
    with pytest.raises(TextError, match="no file, folder or pattern matches"):
        text_files(tmp_path / "absent*")
    with pytest.raises(TextError, match=r"no \.txt"):
        text_files(tmp_path)


def test_a_file_that_is_not_there_is_named_once(tmp_path):
    with pytest.raises(TextError) as caught:
        list(read_lines(tmp_path / "none.txt", TextError))
    assert str(caught.value) == f"{tmp_path / 'none.txt'}: no such file"


def test_sentences_that_are_not_utf8_are_left_out(tmp_path, caplog):
    (tmp_path / "a.txt").write_bytes(b"good day\ncaf" + b"\xc3\nna\xc3\xafve\n")
    found = list(read_sentences(tmp_path, Normaliser()))
    assert found == [["GOOD", "DAY"], ["NAIVE"]]
    assert "1 of 3 lines are not UTF-8: " in caplog.text
    assert "iconv" not in caplog.text


def test_broken_files_name_the_line(tmp_path):
    (tmp_path / "latin.txt").write_bytes("good\ncafé\n".encode("latin1"))
    with pytest.raises(TextError, match=r"latin\.txt:2: not UTF-8: `caf\\xe9`; .*iconv"):
        list(read_lines(tmp_path / "latin.txt", TextError))
    (tmp_path / "latin.txt").write_bytes("café\n".encode("latin1") * 30)
    for read in (lambda path: list(read_sentences(path, Normaliser())), check_sentences):
        with pytest.raises(TextError, match=r"30 of 30 lines are not UTF-8: .*iconv"):
            read(tmp_path / "latin.txt")
    packed = gzip.compress(b"word\n" * 10000)
    (tmp_path / "cut.txt.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "bad.txt.gz").write_bytes(packed[:12] + b"\xff" * 20)
    for name in ("cut", "bad"):
        with pytest.raises(TextError, match=rf"{name}\.txt\.gz: cannot be read"):
            list(read_sentences(tmp_path / f"{name}.txt.gz", Normaliser()))
