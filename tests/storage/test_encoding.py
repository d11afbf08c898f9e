import os

import pytest

from toolkit.storage.paths import encoding_error, printable

NAME = os.fsdecode(b"/data/a b/\xff\xe9.wav")


def test_bytes_that_are_not_utf8_are_shown():
    assert printable(NAME) == r"/data/a b/\xff\xe9.wav"
    assert printable("\ud800 größer") == r"\ud800 größer"


@pytest.mark.parametrize("around", ["{}", '{{"path": "{}"}}', "x\n{}\ny", "x" * 9000 + "\t{}"])
def test_the_error_names_what_cannot_be_written(around):
    with pytest.raises(UnicodeEncodeError) as caught:
        around.format(NAME).encode()
    assert r"`/data/a b/\xff\xe9.wav` is not UTF-8" in str(encoding_error(caught.value))
    outer = ValueError("somewhere")
    outer.__context__ = caught.value
    assert encoding_error(outer) is not None


def test_long_texts_are_shortened_and_other_errors_are_none():
    with pytest.raises(UnicodeEncodeError) as caught:
        ("x" * 9000 + "\udcff" + "y" * 9000).encode()
    assert len(str(encoding_error(caught.value))) < 600
    with pytest.raises(UnicodeEncodeError) as caught:
        "ä".encode("ascii")
    assert encoding_error(caught.value) is None
    assert encoding_error(ValueError("x")) is None
