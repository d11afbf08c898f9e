import json
import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.align.inputs import Recording
from toolkit.corpus.tags import is_tag, tags_in
from toolkit.kaldi.dict_lang import read_dict
from toolkit.lang.arpa import ArpaError, read_arpa
from toolkit.lang.config import LangConfig, NgramConfig, UnitsConfig
from toolkit.lang.dictionary import read_dictionary
from toolkit.lang.lang import Lang
from toolkit.lang.language import choose_policy
from toolkit.lang.letters import UnknownNormaliserError, normaliser
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.lm import prepare_lm, word_weights
from toolkit.lang.policy import AS_GIVEN, TextCounts, TextPolicy
from toolkit.lang.prepare import prepare_lang
from toolkit.lang.units import load_units, make_units
from toolkit.score.normalise import ScoringFilter

GIVEN = TextPolicy(AS_GIVEN)
ENGLISH = TextPolicy()
LETTERS = TextPolicy("letters-upper-1")
ODD = "dr.  saN\t97.4 / i.e. (left Straße’s m' ａ\u00a0b ½ 100%"
"""Words that any other rules would change, one with a no-break space in it."""


def test_as_given_words_are_what_stands_between_white_space():
    words = ["dr.", "saN", "97.4", "/", "i.e.", "(left", "Straße’s", "m'", "ａ\u00a0b", "½", "100%"]
    assert GIVEN.words(ODD) == words
    assert GIVEN.transcript(ODD) == GIVEN.unit_text(ODD) == " ".join(words)
    assert [GIVEN.lexicon_key(word) for word in words] == words


@given(st.text(max_size=40).filter(lambda text: not set(text) & set("[]<>{}!")))
def test_as_given_joins_to_the_same_bytes(text):
    words = GIVEN.words(text)
    assert (
        b" ".join(word.encode("utf-8", "surrogatepass") for word in words).split(b" ")
        == [word.encode("utf-8", "surrogatepass") for word in words]
        or not words
    )
    assert GIVEN.words(" ".join(words)) == words


@pytest.mark.parametrize("id", ["english-upper-1", "english-upper-2", "letters-upper-1"])
@given(text=st.text(alphabet="aBé'-. ,“’ü漢&\u0301", max_size=40))
def test_the_other_rules_are_what_they_were(id, text):
    policy, rules = TextPolicy(id), normaliser(id)
    assert policy.words(text) == rules.words(text)
    assert policy.transcript(text) == rules.transcript(text.upper())


def test_an_unknown_policy_is_refused():
    with pytest.raises(UnknownNormaliserError, match="'as-given' and 'english-upper-1'"):
        TextPolicy("klingon-1")


TAGS = "[background noise]", "<long pause>", "{breath}", "(cough)", "[[skip]]", "!SIL", "<s>"
MORE_TAGS = "<unk>", "%hesitation", "[phone_ring/]", "(door slams)", "<laughter,>"


@pytest.mark.parametrize("tag", [*TAGS, *MORE_TAGS])
@pytest.mark.parametrize("policy", [ENGLISH, LETTERS], ids=["english", "letters"])
def test_tags_are_left_out(tag, policy):
    assert is_tag(tag)
    text = f"go {tag} home {tag}"
    assert policy.words(text) == policy.transcript(text).split() == ["GO", "HOME"]
    assert policy.found_tags(text) == [tag]
    assert policy.words(f"go, {tag}, home.") == ["GO", "HOME"]
    normalise = ScoringFilter("english")
    assert normalise(text) == "GO HOME"
    assert "2 tags were removed" in normalise.remarks()[0]
    assert ScoringFilter("basic")(text) == "go home"


@pytest.mark.parametrize(
    "text", ["a < b and c > d", "colo(u)r", "he said (and so on)", "[un]real", "f(x)", "%PERCENT"]
)
def test_other_brackets_are_no_tags(text):
    assert [match.group() for match in tags_in(text)] == []


def test_what_becomes_of_tags_is_a_setting():
    text = "go [laughter] (he said) home"
    assert replace(ENGLISH, tags="keep").words(text) == ["GO", "LAUGHTER", "HE", "SAID", "HOME"]
    assert replace(ENGLISH, tags="drop").words(text) == ["GO", "HOME"]
    noise = replace(ENGLISH, tags="noise")
    assert noise.transcript("go [laughter] home <s>") == "GO <UNK> HOME"
    assert noise.words(noise.transcript("go [laughter] home")) == ["GO", "HOME"]
    with pytest.raises(ValueError, match="tags is 'burn', must be 'drop' or 'noise' or 'keep'"):
        LangConfig(tags="burn")


def test_as_given_tags_stay_that_the_lexicon_has():
    policy = GIVEN.with_lexicon({"{LG}", "[laughter]", "!SIL"})
    text = "go {LG} [laughter] [noise] <a b> !SIL (cough) a[noise]b"
    assert policy.words(text) == ["go", "{LG}", "[laughter]", "(cough)", "a[noise]b"]
    assert policy.found_tags(text) == ["[noise]", "<a b>", "!SIL"]
    assert "(cough)" not in replace(policy, tags="drop").words(text)
    assert replace(policy, tags="keep").words("<a b> !SIL") == ["<a", "b>", "!SIL"]


def test_words_with_digits_are_unknown_as_a_whole():
    counts = TextCounts()
    assert ENGLISH.words("In the 1990s, MP3s: 5th 4x4!", counts) == ["IN", "THE", *4 * ["<UNK>"]]
    assert dict(counts.unknown) == {"1990S": 1, "MP3S": 1, "5TH": 1, "4X4": 1}
    assert LETTERS.words("5-jährig") == ["<UNK>", "JÄHRIG"]
    known = ENGLISH.with_lexicon({"MP3", "4X4"})
    assert known.words("An mp3 (4x4)") == ["AN", "MP3", "4X4"]
    assert ENGLISH.transcript("the 1990s") == "THE 1990S"


def test_foreign_letters_are_transliterated_in_english_alone():
    text = "Cæsar manœuvre Søren Straße Þór Đorđe Łódź"
    counts = TextCounts()
    english = ["CAESAR", "MANOEUVRE", "SOREN", "STRASSE", "THOR", "DORDE", "LODZ"]
    assert ENGLISH.words(text, counts) == ENGLISH.transcript(text).split() == english
    assert sum(counts.foreign.values()) == 8
    assert LETTERS.words(text) == ["CÆSAR", "MANŒUVRE", "SØREN", "STRASSE", "ÞÓR", "ĐORĐE", "ŁÓDŹ"]
    assert GIVEN.words(text) == text.split()


def test_full_width_letters_are_plain_ones():
    assert ENGLISH.words("ｆｕｌｌ") == LETTERS.words("ｆｕｌｌ") == ["FULL"]
    assert LETTERS.words("ｶﾞｽ") == LETTERS.words("ガス") == [LETTERS.lexicon_key("ｶﾞｽ")] == ["ガス"]
    assert LETTERS.words("น้ำ") == ["น้ำ"]  # NFKC would divide the vowel


def test_marks_of_language_model_text(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "text").write_text("<s> GO HOME </s>\n<s> GO <unk> 1990s </s>\nCæsar [noise]\n")
    config, words = NgramConfig(text=tmp_path / "text", order=2), {"GO", "HOME", "CAESAR"}
    assert word_weights(config) == {"GO": 2, "HOME": 1, "CAESAR": 1}
    prepare_lm(config, {}, words, tmp_path / "lm")
    model = read_arpa(tmp_path / "lm/lm.arpa")
    assert set(model.vocabulary) == {"<s>", "</s>", "<UNK>", *words}
    ngrams = (tmp_path / "lm/lm.arpa").read_text()
    assert "\tGO <UNK>" in ngrams
    assert "\t<UNK> <UNK>" in ngrams
    (line,) = [r.getMessage() for r in caplog.records if "language model text" in r.getMessage()]
    assert "1 words with digits taken as unknown (1990S)" in line
    assert "5 sentence and unknown marks (<s> </s> <unk>)" in line
    assert "1 tags dropped ([noise])" in line
    assert "1 foreign letters transliterated (æ)" in line


def arpa(path, words):
    prepare_lm(NgramConfig(order=1), {"train": {"u": " ".join(words)}}, words, path, policy=GIVEN)
    return NgramConfig(arpa=path / "lm.arpa")


def test_an_arpa_model_that_lacks_words_is_told(tmp_path, caplog):
    config = arpa(tmp_path / "one", {"go", "home", "AT"})
    prepare_lm(config, {}, {"GO", "HOME", "AT", "NIGHT"}, tmp_path / "two")
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "lacks 3 of 4 words of the vocabulary (75 %), such as GO, HOME, NIGHT" in warning
    assert "has 2 of them in the other case" in warning
    caplog.clear()
    prepare_lm(config, {}, {"go", "home", "AT"}, tmp_path / "three", policy=GIVEN)
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
    with pytest.raises(ArpaError, match=r"none of its words.*in the other case"):
        prepare_lm(config, {}, {"GO", "HOME"}, tmp_path / "four")


def test_a_lexicon_as_given(tmp_path):
    path = tmp_path / "lexicon"
    path.write_text(
        "n N\nN M\ndr. D R\nread R D\nread(2) R M\nf(2) M\n# N M\n# a remark\na\u00a0b N\n"
    )
    lexicon = read_dictionary(path, policy=GIVEN).lexicon
    assert list(lexicon) == ["n", "N", "dr.", "read", "f(2)", "a\u00a0b", "#"]
    assert lexicon["read"] == [("R", "D"), ("R", "M")]
    lexicon.write(tmp_path / "written")
    assert Lexicon.load(tmp_path / "written") == lexicon
    assert list(read_dictionary(path).lexicon) == ["N", "DR.", "READ", "F", "A\u00a0B"]


def test_a_language_as_given(tmp_path):
    (tmp_path / "lexicon").write_text("san s a n\nsaN s a N\n3 t r i\n{LG} l g\n!SIL SIL\n")
    config = LangConfig(tmp_path / "lexicon", AS_GIVEN, position_dependent=False)
    texts = {"train": {"u": "san saN 3 {LG} [noise] !SIL"}}
    prepare_lang(config, texts, {"saN": 1.0}, tmp_path / "lang")
    lang = Lang.load(tmp_path / "lang")
    assert lang.vocabulary == ["3", "saN", "san", "{LG}"]
    assert lang.policy.words("SAN san {LG}, {LG} <b>") == ["SAN", "san", "{LG},", "{LG}"]
    report = json.loads((tmp_path / "lang/report.json").read_text())
    assert (report["oov"]["train"]["tokens"], report["tags"]) == (0, {"!SIL": 1, "[noise]": 1})


def test_tags_are_stored_in_the_language(tmp_path):
    (tmp_path / "lexicon").write_text("GO G O\n")
    config = LangConfig(tmp_path / "lexicon", tags="keep", max_unknown=1.0)
    prepare_lang(config, {"train": {"u": "go [go]"}}, None, tmp_path / "lang")
    assert Lang.load(tmp_path / "lang").policy.tags == "keep"
    (tmp_path / "lang/lang.json").write_text('{"normaliser": "as-given", "tags": "burn"}')
    with pytest.raises(Exception, match="run the language stage again"):
        Lang.load(tmp_path / "lang")


def test_kaldis_dictionary_as_given(tmp_path):
    for name, text in {
        "lexicon": "n n\nN N\n<unk> SPN\n",
        "silence_phones": "SIL\nSPN\n",
        "optional_silence": "SIL\n",
        "nonsilence_phones": "n\nN\n",
    }.items():
        (tmp_path / f"{name}.txt").write_text(text)
    assert list(read_dict(tmp_path, GIVEN).lexicon) == ["n", "N"]
    assert read_dict(tmp_path, GIVEN).lang(False).normaliser == AS_GIVEN
    assert list(read_dict(tmp_path).lexicon) == ["N"]


@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_units_as_given_write_every_word(kind, tmp_path):
    text = "saN san_3 dr. 97.4 / Straße"
    units = make_units(UnitsConfig(kind, 60), [text, text], GIVEN)
    units.save(tmp_path)
    for each in (units, load_units(tmp_path)):
        assert each.policy == GIVEN
        assert each.decode(each.encode(text)) == text
    folded = make_units(UnitsConfig(kind, 60), [text.replace("_", "")] * 2)
    assert folded.decode(folded.encode("saN")) == "SAN"


def test_units_of_unknown_rules_are_refused(tmp_path):
    make_units(UnitsConfig(), ["a b"], GIVEN).save(tmp_path)
    path = tmp_path / "units.json"
    path.write_text(path.read_text().replace("as-given", "klingon-1"))
    with pytest.raises(Exception, match=r"klingon-1.*make the units again"):
        load_units(tmp_path)


def french(folder):
    """Write a dictionary with clitics; return settings for it."""
    folder.mkdir(exist_ok=True)
    (folder / "french.dict").write_text("m' m\nc' s\nappelle a p\nest e\nje j\nleo l e o\n")
    return LangConfig(folder / "french.dict", "letters-upper-2", split_clitics=True)


def test_clitics_are_split_alike_everywhere(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    config = french(tmp_path)
    prepare_lang(config, {"train": {"u": "Je m’appelle Leo, c'est Leo."}}, None, tmp_path / "lang")
    lang = Lang.load(tmp_path / "lang")
    words = ["JE", "M'", "APPELLE", "LEO", "C'", "EST"]
    assert {*words} == {*lang.vocabulary}
    assert lang.policy.split_clitics
    text = "Je m'appelle Leo: c'est..."
    assert lang.policy.words(text) == lang.policy.transcript(text).split() == words
    assert Recording("u", None, text, "s").spoken(lang.policy) == (words, "")
    (tmp_path / "text").write_text(f"{text}\n")
    lm = NgramConfig(text=tmp_path / "text", order=2)
    assert word_weights(lm, lang.policy) == dict.fromkeys(words, 1)
    prepare_lm(lm, {}, lang.vocabulary, tmp_path / "lm", policy=lang.policy)
    assert "\tM' APPELLE" in (tmp_path / "lm/lm.arpa").read_text()
    (line,) = [r.getMessage() for r in caplog.records if "language model text" in r.getMessage()]
    assert "2 words split at clitics (M'APPELLE C'EST)" in line
    assert replace(lang.policy, split_clitics=False).words("m'appelle") == ["M'APPELLE"]


def test_clitics_of_transcripts_that_new_corpora_split():
    lexicon = Lexicon({"m'": [("m",)], "appelle": [("a",)], "je": [("j",)]})
    policy, coverage, counts = choose_policy(["Je m'appelle", "m'appelle"], lexicon)
    assert (policy.split_clitics, counts.clitics) == (True, {"M'APPELLE": 2})
    assert coverage["letters-upper-2"].share == 1
    policy, _, counts = choose_policy(["Je appelle l'ami"], lexicon)
    assert (policy.split_clitics, counts.clitics) == (False, {})


def test_settings_of_clitics_belong_to_rules_that_have_them(tmp_path):
    with pytest.raises(ValueError, match="split_clitics needs the normaliser english-upper-3 or"):
        LangConfig(normaliser="english-upper-2", split_clitics=True)
    prepare_lang(french(tmp_path), {"train": {"u": "je"}}, None, tmp_path / "lang")
    path = tmp_path / "lang/lang.json"
    path.write_text(path.read_text().replace("true", '"maybe"'))
    with pytest.raises(Exception, match=r"split_clitics.*run the language stage again"):
        Lang.load(tmp_path / "lang")


def test_words_to_align_as_given():
    recording = Recording("u", None, "saN 3 [noise] {LG} & dr.", "s")
    policy = GIVEN.with_lexicon({"{LG}"})
    assert recording.spoken(policy) == (["saN", "3", "{LG}", "&", "dr."], "[noise]")
    words, left_out = Recording("u", None, "an MP3 (cough) & 7", "s").spoken(ENGLISH)
    assert (words, left_out) == (["AN", "MP3"], "(cough) &7")
    assert Recording("u", None, "an MP3", "s").spoken(ENGLISH, unknown=False) == (["AN"], "3MP")


@pytest.mark.parametrize(
    ("lexicon", "text", "prepared", "id"),
    [
        ("dr. D\n3 T\nrain R\n", "dr. 3 rain", False, AS_GIVEN),
        ("san s a n\nsaN s a N\n", "san saN", False, AS_GIVEN),
        ("rain R\nthe D\n", "The rain.", False, "letters-upper-2"),
        ("rain R\nthe D\n", "the rain", False, "letters-upper-2"),
        ("rain R\nthe D\n", "the rain", True, AS_GIVEN),
        ("RAIN R\nTHE D\n", "the rain", True, "letters-upper-2"),
    ],
)
def test_the_policy_that_suits_transcripts_and_lexicon(lexicon, text, prepared, id, tmp_path):
    (tmp_path / "lexicon").write_text(lexicon)
    words = read_dictionary(tmp_path / "lexicon", policy=GIVEN).lexicon
    policy, coverage, _ = choose_policy([text], words, prepared)
    assert policy.id == id
    assert {found.words for found in coverage.values()} == {len(text.split())}


@pytest.mark.parametrize(("opening", "closing"), ["()", "[]", "{}"])
def test_a_long_run_of_brackets_is_read(opening, closing):
    # Of 300,000 each was the beginning of a search through all that follow: hours.
    text = f"A {opening * 300_000} B"
    assert list(tags_in(text)) == []
    assert ENGLISH.words(text) == ["A", "B"]
    assert ENGLISH.words(f"A {opening * 3}noise{closing * 3} B") == ["A", "B"]
