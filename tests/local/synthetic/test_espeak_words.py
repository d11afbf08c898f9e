import pytest

from local.synthetic.espeak import SONORANT_SHARE, Event, WordTimesError, locate


def word(sample, position):
    return Event(sample, position=position)


def sounds(*pairs):
    return [Event(sample, phoneme=phoneme) for sample, phoneme in pairs]


def never(word):
    raise AssertionError(f"{word} is not spoken with another word")


def located(text, events, phonemes_of=never):
    return [(w.text, w.start, w.end) for w in locate(text, events, phonemes_of)]


def test_a_consonant_takes_the_closure_before_it_but_not_a_silence():
    events = [
        word(0, 0), *sounds((50, "t"), (90, "'u:")),
        word(200, 4), *sounds((240, "t"), (300, "i:"), (400, "_:"), (500, "_:")),
        word(600, 9), *sounds((650, "d"), (700, "u"), (800, "_:"), (810, "_")),
    ]  # fmt: skip
    assert located("two tea, do", events) == [
        ("two", 50, 200),
        ("tea,", 200, 400),
        ("do", 650, 800),
    ]


def test_a_vowel_starts_at_its_own_event_and_leaves_a_gap():
    events = [
        word(0, 0), *sounds((0, "I"), (100, "t")),
        word(200, 3), *sounds((240, "'i:"), (300, "t"), (400, "_:")),
    ]  # fmt: skip
    assert located("it eat", events) == [("it", 0, 200), ("eat", 240, 400)]


@pytest.mark.parametrize("consonant", ["n", "m", "N", "l", "r-"])
def test_a_vowel_shares_its_beginning_with_the_sonorant_before(consonant):
    events = [
        word(0, 0), *sounds((0, "a#"), (1000, consonant)),
        word(1000, 3), *sounds((2000, "'a"), (3000, "_:")),
    ]  # fmt: skip
    middle = 1000 + round(1000 * SONORANT_SHARE)
    assert located("an a", events) == [("an", 0, middle), ("a", middle, 3000)]


def test_an_event_inside_a_word_starts_no_word():
    events = [
        word(0, 0), *sounds((0, "t"), (50, "u:")),
        word(100, 2), *sounds((110, "n"), (150, "a"), (190, "_:")),
    ]  # fmt: skip
    assert located("tuna", events) == [("tuna", 0, 190)]


ALONE = {"in": ["'I", "n"], "the": ["D", "'i:"], "for": ["f", "'O@"], "a": ["'eI"]}


def test_words_with_one_event_are_divided_by_their_sounds():
    events = [
        word(10, 0), *sounds((10, "I"), (20, "n"), (30, "D"), (40, "@2"),),
        word(100, 7), *sounds((110, "m"), (120, "u:"), (130, "_:")),
    ]  # fmt: skip
    assert located("in the moo", events, ALONE.__getitem__) == [
        ("in", 10, 30),
        ("the", 30, 100),
        ("moo", 100, 130),
    ]


def test_a_linking_sound_between_divided_words_belongs_to_the_first():
    events = [word(0, 0), *sounds((0, "f"), (100, "o@"), (200, "r"), (300, "a#"), (400, "_"))]
    middle = 200 + round(100 * SONORANT_SHARE)
    assert located("for a", events, ALONE.__getitem__) == [("for", 0, middle), ("a", middle, 400)]


def test_a_word_without_a_sound_is_named():
    events = [word(0, 0), *sounds((0, "f"), (100, "_:")), word(200, 3), *sounds((200, "_:"))]
    with pytest.raises(WordTimesError, match="'a'"):
        located("fo a", events)
    with pytest.raises(WordTimesError, match="'the' has no sound"):
        located("in the", [word(0, 0), *sounds((0, "I"), (50, "n"))], ALONE.__getitem__)
