"""Pronunciations of unseen words, and the graphones that they are learnt from."""

import itertools
from itertools import pairwise

import numpy as np
import pytest

from toolkit.lang import g2p
from toolkit.lang.g2p import Aligner, G2p, G2pError, Guess, spellable
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
    """Consonant, vowel, consonant and a silent E after some: a language with regular spelling."""
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


def test_regular_spelling_is_learnt_from_a_hundred_words(model):
    lexicon = regular_words()
    guesses = model.guess(HELD_OUT)
    assert {word: [guess.phones] for word, guess in guesses.items()} == {
        word: lexicon[word] for word in HELD_OUT
    }
    assert all(0 < guess.score <= 1 for guess in guesses.values())


def test_words_with_unknown_letters_get_no_guess(model):
    assert list(model.guess(["BIT", "BIT2", "ÉTAT", "", "ZAT"])) == ["BIT"]


def test_n_best_with_a_wide_beam_equals_enumeration(model, monkeypatch):
    monkeypatch.setattr(g2p, "BEAM", 100_000)
    word = "SHAXE"
    options = {}
    for index, (spelling, _) in enumerate(model.graphones):
        options.setdefault(spelling, []).append(index)

    def complete(position):
        if position == len(word):
            return [[]]
        return [
            [index, *tail]
            for span in (1, 2)
            for index in options.get(word[position : position + span], [])
            if position + span <= len(word)
            for tail in complete(position + span)
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
    guesses = model.n_best([word], 5)[word]
    assert [guess.phones for guess in guesses] == ranked
    for guess in guesses:
        assert guess.score == pytest.approx(probability[guess.phones] / total, rel=1e-9)


def test_words_do_not_influence_each_other(model):
    words = ["SHAX", "BIT", "TOSHE", "TOXISHE", "A"]
    assert model.guess(words) == {word: model.guess([word])[word] for word in words}


def test_save_and_load_round_trip(model, tmp_path):
    model.save(tmp_path / "g2p.npz")
    loaded = G2p.load(tmp_path / "g2p.npz")
    assert loaded.graphones == model.graphones
    guesses, loaded_guesses = model.guess(HELD_OUT), loaded.guess(HELD_OUT)
    assert {w: g.phones for w, g in loaded_guesses.items()} == {
        w: g.phones for w, g in guesses.items()
    }
    model.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "g2p.npz").read_bytes()


def test_a_model_of_one_direction_is_read(model, tmp_path):
    """Earlier versions wrote models without a backward direction."""
    G2p(model.graphones, model.model).save(tmp_path / "g2p.npz")
    loaded = G2p.load(tmp_path / "g2p.npz")
    assert loaded.backward is None
    assert {word: [guess.phones] for word, guess in loaded.guess(HELD_OUT).items()} == {
        word: regular_words()[word] for word in HELD_OUT
    }


def test_the_guess_is_the_consensus_of_both_directions(model, monkeypatch):
    forward_guesses = [
        Guess(("A", "B", "C"), 0.4),
        Guess(("X", "Y", "C"), 0.35),
        Guess(("X", "B", "C"), 0.25),
    ]
    backward_guesses = [Guess(("C", "B", "X"), 0.5), Guess(("C",), 0.5)]
    g2p_both = G2p(model.graphones, model.model, G2p(model.graphones, model.model))
    monkeypatch.setattr(g2p_both, "n_best", lambda words, count: {"BIT": list(forward_guesses)})
    monkeypatch.setattr(
        g2p_both.backward, "n_best", lambda words, count: dict.fromkeys(words, backward_guesses)
    )
    # One phone away from the two likeliest of the first direction, and the best of the second.
    assert g2p_both.guess(["BIT"]) == {"BIT": Guess(("X", "B", "C"), (0.25 + 0.5) / 2)}


def test_damaged_files_are_named(model, tmp_path):
    path = tmp_path / "g2p.npz"
    model.save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(G2pError, match=r"g2p\.npz"):
        G2p.load(path)
    np.savez(path, letters=np.array([{}], dtype=object), phones=np.array(["A"]))
    with pytest.raises(G2pError, match=r"g2p\.npz"):
        G2p.load(path)


def test_training_on_no_usable_words_is_an_error():
    lexicon = Lexicon()
    lexicon.add("<UNK>", ("SPN",))
    lexicon.add("WWW", tuple("ABCDEFGHIJ"))
    with pytest.raises(G2pError, match="entries for words of letters is 1"):
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
    guesses = G2p.train(lexicon, exclude=("किब", "तान")).guess(["किब", "तान"])
    assert {word: guess.phones for word, guess in guesses.items()} == {
        "किब": ("K", "I", "B"),
        "तान": ("T", "A", "N"),
    }


def paths(spelling, phones):
    """Every way to cut a pair into graphones."""
    if not spelling:
        return [] if phones else [[]]
    segmentations = []
    for n, m in ((1, 0), (1, 1), (1, 2), (2, 1)):
        if n <= len(spelling) and m <= len(phones):
            head = (spelling[:n], tuple(phones[:m]))
            segmentations += [[head, *tail] for tail in paths(spelling[n:], phones[m:])]
    return segmentations


def numbered(aligner):
    return {aligner.graphone(i): i for i in range(len(aligner.weights))}


def test_graphones_are_numbered_once():
    pairs = [("ab", ("X", "Y", "Z")), ("b", ("X",)), ("ba", ("Z", "Z"))]
    aligner = Aligner(pairs)
    expected = {
        (word[i : i + n], phones[j : j + m])
        for word, phones in pairs
        for n, m in ((1, 0), (1, 1), (1, 2), (2, 1))
        for i in range(len(word) - n + 1)
        for j in range(len(phones) - m + 1)
    }
    assert set(numbered(aligner)) == expected
    assert len(aligner.weights) == len(expected)


def test_thousands_of_letters_and_phones():
    letters = [chr(0x4E00 + i) for i in range(3500)]
    pairs = [(a + b, (f"P{i % 200}", f"Q{i % 7}")) for i, (a, b) in enumerate(pairwise(letters))]
    aligner = Aligner(pairs)
    aligner.train(pairs, iterations=2)
    assert len(aligner.weights) < 30 * len(letters)
    (graphone_ids,) = aligner.align(pairs[-1:])
    graphones = [aligner.graphone(i) for i in graphone_ids]
    assert "".join(spelling for spelling, _ in graphones) == pairs[-1][0]
    assert tuple(phone for _, phones in graphones for phone in phones) == pairs[-1][1]


PAIRS = [("abba", ("X", "Y", "X")), ("b", ("Y",)), ("ab", ("X",)), ("ab", ("X", "X", "Y", "Y"))]


@pytest.fixture
def aligner():
    aligner = Aligner(PAIRS)
    aligner.weights = np.random.default_rng(0).random(len(aligner.weights))
    return aligner


def test_one_pass_equals_enumeration(aligner):
    ids = numbered(aligner)
    expected = np.zeros_like(aligner.weights)
    for spelling, phones in PAIRS:
        ways = paths(spelling, phones)
        weights = [np.prod([aligner.weights[ids[g]] for g in way]) for way in ways]
        for way, weight in zip(ways, weights, strict=True):
            for graphone in way:
                expected[ids[graphone]] += weight / sum(weights)
    aligner.train(PAIRS, iterations=1)
    shares = [
        0.1 if len(aligner.graphone(i)[0]) + len(aligner.graphone(i)[1]) > 2 else 1
        for i in range(len(expected))
    ]
    np.testing.assert_allclose(aligner.weights, shares * expected / expected.sum(), atol=1e-14)


def test_alignment_equals_enumeration(aligner):
    ids = numbered(aligner)
    for (spelling, phones), graphone_ids in zip(PAIRS, aligner.align(PAIRS), strict=True):
        best = max(
            paths(spelling, phones), key=lambda w: np.prod([aligner.weights[ids[g]] for g in w])
        )
        assert [aligner.graphone(i) for i in graphone_ids] == best


def test_pairs_that_cannot_be_aligned_are_ignored():
    impossible = [("a", ("X", "X", "X")), ("b", ()), ("", ("X",))]
    aligner = Aligner([*impossible, ("a", ("X",))])
    aligner.train([*impossible, ("a", ("X",))], iterations=2)
    assert aligner.align(impossible) == [[], [], []]
    assert aligner.weights[numbered(aligner)["a", ("X",)]] == 1.0
