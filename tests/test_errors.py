"""Messages of errors, however much they quote of a file."""

import pytest

from toolkit.errors import LONGEST_MESSAGE, LONGEST_WORD, ToolkitError


@pytest.mark.parametrize("message", ["anna-1: no such utterance in feats", "", "a\n  b: c\td"])
def test_a_message_is_unchanged(message):
    assert str(ToolkitError(message)) == message


def test_only_the_middle_of_long_words_is_cut():
    name, number = "a" * 70000 + "z", "9" * LONGEST_WORD
    words = str(ToolkitError(f"{name}: data/x.ark: not a number:\n{number}")).split()
    assert words[0] == "a" * len(words[0])
    assert words[2].endswith("z:")
    assert words[3:] == ["data/x.ark:", "not", "a", "number:", number]
    assert len(" ".join(words[:3])) == LONGEST_WORD


def test_the_middle_of_long_messages_is_cut():
    message = str(ToolkitError("lexicon.txt: " + "a b " * 70000 + "(see words.txt)"))
    assert len(message) == LONGEST_MESSAGE
    assert message.startswith("lexicon.txt: a b")
    assert message.endswith("a b (see words.txt)")
