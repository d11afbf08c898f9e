import itertools

import numpy as np
import pytest

from toolkit.lang import g2p
from toolkit.lang.g2p import G2p, G2pError, Guess, spellable
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.tables import END, START

SOUNDS = {
    "SH": ("SH",),
    "X": ("K", "S"),
    "B": ("B",),
    "T": ("T",),
    "A": ("AE",),
    "I": ("IH",),
    "O": ("AA",),
}


def regular_words():
    """Consonant, vowel, consonant and a silent E after some: a language with plain rules."""
    consonants, vowels = ("SH", "X", "B", "T"), "AIO"
    lexicon = Lexicon()
    for first, vowel, last in itertools.product(consonants, vowels, consonants):
        sounds = (*SOUNDS[first], *SOUNDS[vowel], *SOUNDS[last])
        lexicon.add(first + vowel + last, sounds)
        lexicon.add(first + vowel + last + "E", sounds)
    return lexicon


HELD_OUT = ("SHAX", "BIT", "TOSHE", "XOBE")


@pytest.fixture(scope="module")
def model():
    return G2p.train(regular_words(), exclude=HELD_OUT)


def test_a_hundred_words_teach_plain_rules(model):
    lexicon = regular_words()
    found = model.guess(HELD_OUT)
    assert {word: [guess.phones] for word, guess in found.items()} == {
        word: lexicon[word] for word in HELD_OUT
    }
    assert all(0 < guess.score <= 1 for guess in found.values())


def test_words_with_unknown_letters_get_no_guess(model):
    assert list(model.guess(["BIT", "BIT2", "ÉTAT", "", "ZAT"])) == ["BIT"]


def test_search_with_a_wide_beam_equals_enumeration(model, monkeypatch):
    monkeypatch.setattr(g2p, "BEAM", 100_000)
    word = "SHAXE"
    options = {}
    for index, (spelling, _) in enumerate(model.graphones):
        options.setdefault(spelling, []).append(index)

    def complete(position):
        if position == len(word):
            return [[]]
        return [
            [index, *rest]
            for span in (1, 2)
            for index in options.get(word[position : position + span], [])
            if position + span <= len(word)
            for rest in complete(position + span)
        ]

    probability = {}
    for path in complete(0):
        phones = tuple(p for index in path for p in model.graphones[index][1])
        names = [START, *map(str, path), END]
        ids = np.array([model.model.ids[name] for name in names])
        log = model.model.token_logprobs(ids)[1:].sum()
        probability[phones] = probability.get(phones, 0.0) + 10**log
    probability.pop((), None)
    total = sum(probability.values())
    ranked = sorted(probability, key=lambda phones: -probability[phones])[:5]
    found = model.n_best([word], 5)[word]
    assert [guess.phones for guess in found] == ranked
    for guess in found:
        assert guess.score == pytest.approx(probability[guess.phones] / total, rel=1e-9)


def test_words_do_not_influence_each_other(model):
    words = ["SHAX", "BIT", "TOSHE", "TOXISHE", "A"]
    together = model.guess(words)
    assert together == {word: model.guess([word])[word] for word in words}


def test_saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "g2p.npz")
    loaded = G2p.load(tmp_path / "g2p.npz")
    assert loaded.graphones == model.graphones
    before, after = model.guess(HELD_OUT), loaded.guess(HELD_OUT)
    assert {w: g.phones for w, g in before.items()} == {w: g.phones for w, g in after.items()}
    model.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "g2p.npz").read_bytes()


def test_a_model_of_one_direction_is_read(model, tmp_path):
    """As earlier versions wrote it."""
    G2p(model.graphones, model.model).save(tmp_path / "g2p.npz")
    loaded = G2p.load(tmp_path / "g2p.npz")
    assert loaded.backward is None
    assert {word: [guess.phones] for word, guess in loaded.guess(HELD_OUT).items()} == {
        word: regular_words()[word] for word in HELD_OUT
    }


def test_the_guess_is_near_to_all_that_both_directions_say(model, monkeypatch):
    ahead = [
        Guess(("A", "B", "C"), 0.4),
        Guess(("X", "Y", "C"), 0.35),
        Guess(("X", "B", "C"), 0.25),
    ]
    behind = [Guess(("C", "B", "X"), 0.5), Guess(("C",), 0.5)]
    both = G2p(model.graphones, model.model, G2p(model.graphones, model.model))
    monkeypatch.setattr(both, "n_best", lambda words, count: {"BIT": list(ahead)})
    monkeypatch.setattr(both.backward, "n_best", lambda words, count: dict.fromkeys(words, behind))
    # One phone away from the two likeliest of the first direction, and the best of the second.
    assert both.guess(["BIT"]) == {"BIT": Guess(("X", "B", "C"), (0.25 + 0.5) / 2)}


def test_damaged_files_are_named(model, tmp_path):
    path = tmp_path / "g2p.npz"
    model.save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(G2pError, match=r"g2p\.npz"):
        G2p.load(path)
    np.savez(path, letters=np.array([{}], dtype=object), phones=np.array(["A"]))
    with pytest.raises(G2pError, match=r"g2p\.npz"):
        G2p.load(path)


def test_nothing_to_learn_from():
    lexicon = Lexicon()
    lexicon.add("<UNK>", ("SPN",))
    lexicon.add("WWW", tuple("ABCDEFGHIJ"))
    with pytest.raises(G2pError, match="1 spellable"):
        G2p.train(lexicon)


def test_spellable():
    assert spellable("DON'T")
    assert not any(map(spellable, ["", "'", "X2", "A-B", "<UNK>"]))


def test_equal_pronunciations_share_their_probability():
    guesses = g2p.merge_hypotheses([(("X",), -1.0), (("Y",), -0.9), (("X",), -1.0)])
    assert [guess.phones for guess in guesses] == [("X",), ("Y",)]
    assert guesses[0].score == pytest.approx(0.2 / (0.2 + 10**-0.9))


def test_words_with_vowel_signs_are_spelled_and_guessed():
    """Devanagari writes most vowels as marks, which `str.isalpha` does not count as letters."""
    sounds = {"क": "K", "त": "T", "ब": "B", "न": "N", "ि": "I", "ा": "A", "ु": "U"}
    lexicon = Lexicon()
    signs = ("", "ि", "ा", "ु")
    for letters in itertools.product("कतबन", signs, "कतबन", signs):
        lexicon.add("".join(letters), [sounds[letter] for letter in letters if letter])
    assert spellable("किताब")
    assert not spellable("ि")
    assert not spellable("कि2")
    found = G2p.train(lexicon, exclude=("किब", "तान")).guess(["किब", "तान"])
    assert {word: guess.phones for word, guess in found.items()} == {
        "किब": ("K", "I", "B"),
        "तान": ("T", "A", "N"),
    }
