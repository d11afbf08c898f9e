"""Characters and word pieces."""

import io
import itertools
import json
import pickle
import random
import re
from collections import Counter
from itertools import pairwise
from string import ascii_lowercase

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.lang.config import UnitsConfig
from toolkit.lang.units import MODEL, Characters, Pieces, UnitsError, load_units, make_units

UNITS = Characters()


def test_english_has_the_papers_thirty_symbols_in_order():
    assert UNITS.symbols == [" ", *ascii_lowercase, "'", "_", "<blank>"]
    assert (UNITS.size, UNITS.blank, UNITS.separator, UNITS.space) == (30, 29, 28, 0)


def test_a_separator_divides_double_letters():
    def written(text):
        return "".join(UNITS.symbols[i] for i in UNITS.encode(text))

    assert written("COOL") == "co_ol"
    assert written("ALL LLAMAS") == "al_l l_lamas"
    assert written("  aaa  o'er ") == "a_a_a o'er"


@settings(deadline=None)
@given(st.text(alphabet=" 'abcXYZlL"))
def test_characters_encode_and_decode_round_trip(text):
    ids = UNITS.encode(text)
    assert all(a != b for a, b in itertools.pairwise(ids))
    assert UNITS.blank not in ids
    assert UNITS.decode(ids) == " ".join(text.upper().split())
    # The definition: a separator between any two equal characters that follow each other.
    lowercase = " ".join(text.lower().split())
    assert "".join(UNITS.symbols[i] for i in ids) == re.sub(r"(.)(?=\1)", r"\1_", lowercase)


def test_decode_skips_separators_and_extra_spaces():
    assert UNITS.decode([0, 28, 1, 0, 28, 0, 2, 28]) == "A B"
    assert UNITS.decode([]) == ""


@pytest.mark.parametrize("labels", [[29], [30], [-1]])
def test_decode_refuses_ids_that_are_not_labels(labels):
    with pytest.raises(UnitsError, match="not a label"):
        UNITS.decode(labels)


@pytest.mark.parametrize("text", ["ROOM 3", "CAFÉ", "A-B", "A_B"])
def test_encode_refuses_other_characters(text):
    with pytest.raises(UnitsError, match=r"not among the 27 letters.*normalise.*units\.kind=bpe"):
        UNITS.encode(text)


def test_save_and_load_round_trip(tmp_path):
    make_units(UnitsConfig(), []).save(tmp_path)
    loaded = load_units(tmp_path)
    assert (loaded.kind, loaded.symbols) == ("characters", UNITS.symbols)
    path = tmp_path / "units.json"
    path.write_text(json.dumps({"kind": "characters", "symbols": ["a"]}))
    with pytest.raises(UnitsError, match="symbols differ from the symbols of the units"):
        load_units(tmp_path)
    path.write_text(json.dumps({"kind": "characters", "symbols": [" ", "ab", "_", "<blank>"]}))
    with pytest.raises(UnitsError, match=r"units\.json: 'ab' cannot be a letter of the units; "):
        load_units(tmp_path)
    path.unlink()
    with pytest.raises(UnitsError, match="not a file of output units"):
        load_units(tmp_path)


@pytest.mark.parametrize(
    ("texts", "letters"),
    [
        (["ЦЕ ДІМ", "їжа"], "едімцїжа"),
        (["DER ÄRGER", "Straße"], "dersatgäß"),
        (["ΣΟΦΟΣ", "σοφος"], "σοφ"),
        (["हिन्दी"], "हिन्दी"),
        (["მე ვსვამ"], "მევსამ"),
        (["ISTANBUL", "İZMİR"], "istanbulzmrİ"),
    ],
)
def test_other_languages_have_the_letters_of_their_transcripts(texts, letters, tmp_path):
    units = make_units(UnitsConfig(), texts)
    assert set(units.symbols) == {" ", *letters, "_", "<blank>"}
    units.save(tmp_path)
    assert load_units(tmp_path).symbols == units.symbols
    for text in texts:
        capitals = "".join(letter if letter in "ßმევსამ" else letter.upper() for letter in text)
        assert load_units(tmp_path).decode(units.encode(text)) == capitals


def test_english_transcripts_have_the_papers_symbols_whichever_letters_occur():
    assert make_units(UnitsConfig(), ["A CAB"]).symbols == UNITS.symbols


@pytest.mark.parametrize("letters", [["a", "A"], ["ab"], ["_"], [" "], [""]])
def test_characters_refuses_symbols_that_are_not_letters(letters):
    with pytest.raises(UnitsError, match=r"cannot be a letter|twice"):
        Characters(letters)


@pytest.mark.parametrize("changes", [{"kind": "words"}, {"pieces": 0}])
def test_refuses_impossible_settings(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        UnitsConfig(**changes)


@pytest.fixture(scope="module")
def texts():
    """Sentences of made-up words, without the letters Q and Z and without the apostrophe."""
    chance = random.Random(1)
    syllables = [c + v for c in "BCDFGHJKLMNPRST" for v in "AEIOU"]
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 3))) for _ in range(80)]
    weights = [1 / (i + 1) for i in range(len(words))]
    return [" ".join(chance.choices(words, weights, k=6)) for _ in range(200)]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_encode_and_decode_round_trip(kind, texts):
    units = make_units(UnitsConfig(kind, 60), texts)
    assert (units.kind, units.size, units.blank) == (kind, 61, 60)
    assert units.symbols[-1] == "<blank>"
    assert "<unk>" not in units.symbols
    for text in (*texts, "QUIZ QUIZ'S"):  # letters that no transcript has are units too
        ids = units.encode(text)
        assert all(0 <= i < units.blank for i in ids)
        assert units.decode(ids) == text
        assert units.encode(f" {text.lower()} ") == ids
        assert "".join(units.symbols[i] for i in ids) == "▁" + text.replace(" ", "▁")
    assert sum(map(len, map(units.encode, texts))) < 0.7 * sum(map(len, texts))
    assert (units.encode(""), units.decode([])) == ([], "")


def test_other_alphabets_need_no_pieces_for_latin_letters():
    texts = ["мама мыла раму", "рама мала", "ум мал"]
    letters = set("".join(texts).upper()) - {" "}
    with pytest.raises(UnitsError, match=f"at least {len(letters) + 1}"):
        make_units(UnitsConfig("bpe", len(letters)), texts)
    units = make_units(UnitsConfig("bpe", len(letters) + 1), texts)
    assert set(units.symbols) == {*letters, "▁", "<blank>"}


def test_byte_pairs_begin_with_the_most_frequent_pair(texts):
    words = [f"▁{word}" for text in texts for word in text.split()]
    pairs = Counter(a + b for word in words for a, b in pairwise(word))
    (best, count), (_, second) = pairs.most_common(2)
    assert count > second
    assert make_units(UnitsConfig("bpe", 60), texts).symbols[0] == best


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_are_reproducible(kind, texts, tmp_path):
    for name in ("a", "b"):
        make_units(UnitsConfig(kind, 60), texts).save(tmp_path / name)
    for file in (MODEL, "units.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    loaded = load_units(tmp_path / "a")
    again = pickle.loads(pickle.dumps(loaded))
    assert loaded.encode(texts[0]) == again.encode(texts[0]) != []


@pytest.fixture(scope="module")
def foreign(tmp_path_factory, texts):
    """Models like those of ESPnet: lower case, user-defined symbols, bytes."""
    folder = tmp_path_factory.mktemp("foreign")
    kinds = {
        "small": {"user_defined_symbols": ["<noise>"]},
        "bytes": {"byte_fallback": True, "pad_id": 3, "unk_id": 1, "bos_id": 0, "vocab_size": 330},
    }
    for name, options in kinds.items():
        trainer_options = {"vocab_size": 70, "model_type": "bpe", "minloglevel": 2} | options
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(text.lower() for text in texts),
            model_prefix=str(folder / name),
            **trainer_options,
        )
    return folder


@pytest.mark.parametrize("name", ["small", "bytes"])
def test_external_sentencepiece_models_are_used_unchanged(foreign, texts, tmp_path, name):
    path = foreign / f"{name}.model"
    units = make_units(UnitsConfig("sentencepiece", model=path), [])
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert not {"<unk>", "<s>", "</s>", "<pad>"} & {*units.symbols}
    units.save(tmp_path)
    assert (tmp_path / MODEL).read_bytes() == path.read_bytes()
    for text in (texts[0], texts[1]):
        ids = load_units(tmp_path).encode(text)
        assert [units.symbols[i] for i in ids] == processor.encode(text.lower(), out_type=str)
        assert units.decode(ids) == text
    if name == "bytes":
        assert units.decode(units.encode("BÉ")) == "BÉ"
    else:
        with pytest.raises(UnitsError, match="'é' cannot be written with the word pieces of the"):
            units.encode("BÉ")


@pytest.mark.parametrize(
    "settings",
    [
        {"user_defined_symbols": ["<blk>", "<sos/eos>"], "unk_id": 2, "bos_id": -1, "eos_id": -1},
        {"byte_fallback": True, "vocab_size": 330},
    ],
)
def test_symbols_in_brackets_do_not_decide_the_case_of_a_model(settings, texts):
    """The symbols of icefall, and byte tokens."""
    model_proto = io.BytesIO()
    options = {"vocab_size": 70, "model_type": "bpe", "minloglevel": 2} | settings
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model_proto, **options
    )
    units = Pieces("sentencepiece", model_proto.getvalue())
    ids = units.encode(texts[0].lower())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model_proto.getvalue())
    assert [units.symbols[i] for i in ids] == processor.encode(texts[0], out_type=str)
    assert not any(units.symbols[i].startswith("<") for i in ids)
    assert units.decode(ids) == texts[0]


def test_settings_of_external_models(tmp_path):
    for changes in ({"kind": "sentencepiece"}, {"kind": "bpe", "model": tmp_path / "x"}):
        with pytest.raises(ValueError, match="`model` must be set for"):
            UnitsConfig(**changes)
    with pytest.raises(UnitsError, match="not a sentencepiece model"):
        make_units(UnitsConfig("sentencepiece", model=tmp_path / "x"), [])


def test_errors_of_pieces(texts, tmp_path):
    with pytest.raises(UnitsError, match="5000 word pieces"):
        make_units(UnitsConfig("bpe", 5000), texts)
    with pytest.raises(UnitsError, match=r"27 different letters.*from 27 to at least 28"):
        make_units(UnitsConfig("bpe", 27), texts)
    with pytest.raises(UnitsError, match="no transcript"):
        make_units(UnitsConfig("bpe"), ["", " "])
    units = make_units(UnitsConfig("bpe", 60), texts)
    with pytest.raises(UnitsError, match="'3É' cannot be written"):
        units.encode("BA 3é 3")
    with pytest.raises(UnitsError, match="not a label"):
        units.decode([units.blank])
    units.save(tmp_path)
    (tmp_path / MODEL).write_bytes(b"nonsense")
    with pytest.raises(UnitsError, match="not a sentencepiece model"):
        load_units(tmp_path)
