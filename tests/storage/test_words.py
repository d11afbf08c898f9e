from hypothesis import given
from hypothesis import strategies as st

from toolkit.storage.lines import has_other_space, key_and_rest, single_spaced, split_words

CHARACTERS = "ab \t\n\v\f\r\x1c\x1f\x85\xa0\u2028\u3000é"


@given(st.text(CHARACTERS))
def test_words_are_split_only_at_ascii_white_space(text):
    expected = [word.decode() for word in text.encode().split()]
    assert split_words(text) == expected
    assert single_spaced(text) == " ".join(expected)
    assert has_other_space(text) == any(c in "\x1c\x1f\x85\xa0\u2028\u3000" for c in text)
    key, text_after_key = key_and_rest(text)
    assert [key, *split_words(text_after_key)] == (expected or [""])
