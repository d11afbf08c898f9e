import gzip

import pytest

from toolkit.errors import ToolkitError
from toolkit.storage.lines import LineCounts, TextLines, decoded_lines, is_faulty, shown, too_many


def read(path):
    counts = LineCounts()
    return list(decoded_lines(path, ToolkitError, counts)), counts


def test_a_line_cut_in_a_letter_is_counted_and_the_others_are_read(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("größe\n\nfu".encode() + b"\xc3\nover\r\n")
    lines, counts = read(path)
    assert [number for number, _ in lines] == [1, 2, 3, 4]
    assert [line for _, line in lines if not is_faulty(line)] == ["größe", "", "over"]
    assert shown(lines[2][1]) == r"`fu\xc3`"
    assert (counts.lines, counts.faulty, counts.advice) == (3, 1, "")


@pytest.mark.parametrize(
    ("content", "advised"),
    [
        ("Tür\nzwei\n".encode("cp1252"), "iconv -f cp1252"),
        ("Tür\n".encode("cp1252") + "Tür\n".encode(), ""),
        ("ä".encode() + b"\xc3\n", ""),  # cut within the line
        ("Tür\n".encode("utf-16-le"), "iconv -f utf-16le"),
        ("Tür\n".encode(), ""),
    ],
)
def test_another_encoding_is_advised_only_where_it_is_right_for_every_line(
    tmp_path, content, advised
):
    path = tmp_path / "text"
    path.write_bytes(content)
    advice = read(path)[1].advice
    assert advised in advice
    assert bool(advised) == bool(advice)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding(tmp_path, encoding):
    for name, pack in {"text": bytes, "text.gz": gzip.compress}.items():
        path = tmp_path / name
        path.write_bytes(pack("Tür\r\n\u2028ż\n".encode(encoding)))
        assert read(path)[0] == [(1, "Tür"), (2, "\u2028ż")]


def test_the_limit_is_a_share_and_a_number():
    assert not too_many(0, 0)
    assert not too_many(20, 21)
    assert not too_many(22, 1896)
    assert too_many(21, 100)
    assert too_many(1, 1)


def test_faulty_lines_are_left_out_up_to_the_limit(tmp_path, caplog):
    path = tmp_path / "lm.txt"
    path.write_bytes("ä\n".encode() * 90 + b"a\xc3\n" * 21)
    lines = TextLines(ToolkitError)
    assert len(list(lines.read(path))) == 90
    lines.finish()
    assert rf"21 of 111 lines are not UTF-8: {path}:91: `a\xc3`" in caplog.text
    assert "left out: " in caplog.text
    assert "and 11 more" in caplog.text
    lines = TextLines(ToolkitError)
    path.write_bytes("ä\n".encode() * 70 + b"a\xc3\n" * 21)
    assert len(list(lines.read(path))) == 70
    with pytest.raises(ToolkitError, match="21 of 91 lines are not UTF-8"):
        lines.finish()


def test_a_long_faulty_line_is_shown_around_the_fault():
    text = shown("a" * 500 + "\udcff" + "b" * 500)
    assert r"a\xffb" in text
    assert text.startswith("`...aaa")
    assert len(text) < 150
